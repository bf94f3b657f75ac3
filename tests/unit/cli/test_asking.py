"""What is gone for good is asked for first."""

from __future__ import annotations

import sys
from typing import Any

import click
import pytest

from danubius.cli import main
from danubius.cli.commands.administering import duration
from danubius.cli.commands.asking import ask_to_lose


@pytest.mark.parametrize(
    "arguments",
    [["topics", "delete", "/default/orders"], ["namespaces", "delete", "shop", "--force"]],
)
def test_where_nobody_can_be_asked_nothing_is_deleted_without_yes(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert main([*arguments, "--url", "danube://127.0.0.1:1"]) == 2
    assert "--yes" in capsys.readouterr().err


def test_the_question_says_what_is_lost_and_no_is_no(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirm(text: str, **how: Any) -> None:
        asked.append(text)
        raise click.Abort

    monkeypatch.setattr(click, "confirm", confirm)
    with pytest.raises(click.Abort):
        ask_to_lose("/default/a with 3 messages\x1b will be gone", yes=False)
    assert asked == [r"/default/a with 3 messages\x1b will be gone. Go on?"]
    ask_to_lose("anything", yes=True)


@pytest.mark.parametrize(
    ("time_ms", "words"),
    [
        (1, "1 ms"), (1000, "1 s"), (1500, "1.5 s"), (90_000, "1.5 m"), (3_600_000, "1 h"), (604_800_000, "7 d"),
        (1234 * 86_400_000, "1,234 d"),
    ],
)  # fmt: skip
def test_a_time_is_told_in_the_unit_that_fits(time_ms: int, words: str) -> None:
    assert duration(time_ms) == words
