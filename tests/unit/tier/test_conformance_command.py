"""The suites from the command line: what they print, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.conformance.__main__ import main
from danubius.conformance.checks import Finding, report
from danubius.tier.memory_objects import MemoryObjects

if TYPE_CHECKING:
    from pathlib import Path


class Losing(MemoryObjects):
    def delete(self, name: str) -> None:
        raise OSError("this store deletes nothing")


def test_a_good_store_ends_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["objects", f"fs://{tmp_path}", "--large-bytes", "9000000"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"ObjectStore at fs://{tmp_path}, below conformance-")
    assert said[1].startswith("ok    what was put is got back (")
    assert said[-1] == "all 21 checks passed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["memory:", "local:{}/ledgers", "fs://{}/objects", "memory://x"])
def test_ledger_stores_are_named_in_several_ways(
    place: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["ledgers", place.format(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("all ")


def test_a_store_of_ones_own_is_named_by_where_it_is_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = "python:danubius.tier.memory_objects:MemoryObjects"
    assert main(["objects", url, "--large-bytes", "100000"]) == 0
    assert main(["objects", "python:danubius.tier.memory_objects:Nobody"]) == 2
    assert "cannot be found" in capsys.readouterr().out
    assert main(["objects", "python:nowhere"]) == 2


def test_what_is_wrong_with_the_call_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["objects", "s4://bucket"]) == 2
    assert "TierMisconfigured: there is no object store 's4://'" in capsys.readouterr().out
    assert main(["objects", "s3://bucket", "--option", "region"]) == 2
    assert "an option is key=value, and 'region' has no '='" in capsys.readouterr().out


def test_a_report_says_what_was_found_instead() -> None:
    lines: list[str] = []
    findings = [
        Finding("one thing holds", seconds=0.5),
        Finding("another does not", "it is 1, and should be 2\nraised in x", "", 1.0),
        Finding("a third does, nearly", "", "but for this", 0.0),
    ]
    assert not report(findings, lines.append)
    assert lines == [
        "ok    one thing holds (0.50 s)",
        "FAIL  another does not (1.00 s)",
        "      it is 1, and should be 2",
        "      raised in x",
        "ok    a third does, nearly (0.00 s)",
        "      note: but for this",
        "2 of 3 checks passed",
    ]
