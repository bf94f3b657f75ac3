"""What others wrote reaches a terminal as text only."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import click
import pytest

from danubius.cli import root
from danubius.cli.commands.message_lines import json_line, renderer
from danubius.cli.output import json_text, print_facts, print_json, print_line, print_table
from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    import danubius

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e"


def message(payload: bytes) -> danubius.Message:
    made = SimpleNamespace(
        payload=payload, key=HOSTILE.encode(), attributes={HOSTILE: HOSTILE}, topic="/default/a", offset=1,
        publish_time=datetime.now(UTC), redelivery_count=0,
    )  # fmt: skip
    return cast("Any", made)


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *, is_one: bool) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_one)


def is_harmless(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def test_a_payload_at_a_terminal_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch, is_one=True)
    line = renderer(as_json=False, raw=False)(message(b"a\tb\n\x1b[2J\xff"))
    assert line == b"a\tb\n\\x1b[2J\\xff\n"


@pytest.mark.parametrize(("is_terminal", "raw"), [(False, False), (True, True)])
def test_a_payload_in_a_pipe_or_with_raw_is_as_it_is(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, raw: bool
) -> None:
    at_a_terminal(monkeypatch, is_one=is_terminal)
    assert renderer(as_json=False, raw=raw)(message(b"\x1b[2J\xff")) == b"\x1b[2J\xff\n"


def test_json_says_the_same_and_can_all_be_seen() -> None:
    value = {"reason": HOSTILE + "\U000e0001\n", "name": "é水"}
    text = json_text(value)
    assert text.isprintable()
    assert "é水" in text
    assert json.loads(text) == value
    assert is_harmless(json_line(message(HOSTILE.encode())).decode())


def test_tables_facts_and_lines_can_all_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME"], [[HOSTILE + "\nforged"]])
    print_facts({"reason": HOSTILE + "\nforged"})
    print_line(HOSTILE + "\nforged")
    print_json({"reason": HOSTILE + "\nforged"})
    out = capsys.readouterr().out
    assert is_harmless(out)
    assert len(out.splitlines()) == 5


@pytest.mark.parametrize("error", [InvalidArgument, click.UsageError])
def test_the_sentence_of_a_failure_can_all_be_seen(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error(f"no topic {HOSTILE} at redis://a:hush@b")

    monkeypatch.setattr(root.cli, "main", fail)
    assert root.run([]) in {1, 2}
    said = capsys.readouterr().err
    assert is_harmless(said)
    assert "hush" not in said
