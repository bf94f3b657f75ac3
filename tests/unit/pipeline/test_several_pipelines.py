"""Ready-made pipelines by name, several in one run, and what `status` says of one that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from danubius.cli import main
from danubius.cli.query_figures import COLUMNS, live_table
from danubius.pipeline import status as statuses
from danubius.pipeline.problems import InvalidPipeline
from danubius.pipeline.progress import Figures
from danubius.pipeline.reading import read
from danubius.pipeline.ready_made import find, names, resolve
from danubius.pipeline.run import merged_settings
from danubius.pipeline.status import QueryStatus, Status

FILE = """
name = "{name}"
checkpoint = "c/{name}"
[spark]
sql.shuffle.partitions = {partitions}
[source.a]
topic = "/default/a"
[sink.b]
from = "a"
console = true
"""


def test_ready_made_pipelines_have_names() -> None:
    assert {"aggregate", "archive", "compact", "deduplicate", "enrich", "replay"} <= set(names())
    assert find("archive").name == "archive.toml"
    assert resolve(Path("archive")) == find("archive")
    assert resolve(Path("my/archive")) == Path("my/archive")
    with pytest.raises(InvalidPipeline, match="did you mean archive"):
        find("archiv")


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("archive").touch()
    assert resolve(Path("archive")) == Path("archive")


def test_settings_of_several_files_must_agree() -> None:
    first, same, other = (
        read(FILE.format(name=name, partitions=partitions), f"{name}.toml")
        for name, partitions in (("one", 2), ("two", 2), ("three", 4))
    )
    assert merged_settings([first, same]) == {"spark.sql.shuffle.partitions": "2"}
    with pytest.raises(InvalidPipeline, match=r"three.toml: .* is 4, and 2 in one.toml"):
        merged_settings([first, same, other])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "table=x"], "write aggregate.table or archive.table"),
        (["--set", "archive.tabel=x"], "did you mean table?"),
    ],
)
def test_of_several_files_set_says_which(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "validate", "aggregate", "archive", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_each_of_several_files_is_told_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--set", "archive.topic=/eu/orders", "--set", "aggregate.input=/eu/sensors"]
    assert main(["pipeline", "validate", "aggregate", "archive", *given]) == 0
    said = capsys.readouterr().out
    assert "/eu/orders" in said
    assert "/eu/sensors" in said
    assert main(["pipeline", "validate", "archive", "archive"]) == 2
    assert "two pipelines have the name archive" in capsys.readouterr().err


def test_a_run_that_was_killed_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = Figures(batches=3, batch=2, rows_in=10, rows_out=9, in_per_second=5.0, batch_ms=40)
    queries = {"table": QueryStatus("running", figures=figures)}
    started, updated = "2026-11-16T08:00:00.000+00:00", "2026-11-16T09:05:07.000+00:00"
    status = Status("archive", "archive.toml", 1, "running", started, updated, None, queries)
    statuses.write(tmp_path, status)
    assert main(["pipeline", "status", "archive", "--checkpoint", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "state       died" in said
    assert "2026-11-16 09:05:07Z, after 1 h 5 min" in said
    assert "gone" in said
    assert "The next run goes on from the checkpoint." in said
    assert main(["pipeline", "status", "archive", "--checkpoint", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "died"


def test_a_narrow_terminal_gets_what_matters_most() -> None:
    figures = Figures(batches=3, batch=2, rows_in=10, watermark="2026-11-16T09:05:07.250Z")
    queries = {"topic": QueryStatus("running", figures=figures), "table": QueryStatus("waiting")}
    status = Status("archive", "archive.toml", 1, "running", "", "", None, queries)
    wide = live_table({"archive": status}, "title", 200)
    assert [column.header for column in wide.columns] == list(COLUMNS)
    narrow = live_table({"archive": status}, "title", 80)
    cells = {str(column.header): list(column.cells) for column in narrow.columns}
    assert cells["QUERY"] == ["topic", "table waiting"]
    assert cells["WATERMARK"] == ["09:05:07", "-"]
    assert "STATE" not in cells
