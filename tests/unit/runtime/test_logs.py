"""A line of the log is one line, whatever it is about."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from danubius.runtime.logs import JsonFormatter, TextFormatter

FORGED = 'no\n2026-01-01T00:00:00.000+00:00 INFO    danubius.app: all is well user="root'


def _record(
    message: str = "nacked", error: Exception | None = None, **facts: Any
) -> logging.LogRecord:
    caught = None if error is None else (type(error), error, None)
    logger = logging.getLogger("danubius.test")
    return logger.makeRecord("danubius.test", 20, "f", 1, message, (), caught, extra=facts)  # fmt: skip


def test_a_value_with_a_line_break_stays_on_its_line() -> None:
    line = TextFormatter().format(_record(reason=FORGED, topic="/default/a"))
    assert "\n" not in line
    assert r'reason="no\n2026' in line
    assert line.endswith(" topic=/default/a")


def test_a_value_of_several_words_cannot_pass_for_several_facts() -> None:
    line = TextFormatter().format(_record(reason='late" level=error', count=3, ratio=0.5))
    assert line.endswith(r' reason="late\" level=error" count=3 ratio=0.5')


@pytest.mark.parametrize("raw", ["\x1b[2J", "\x9b31m", "\r", "\u2028", "\u202e", "\x00"])
def test_a_terminal_obeys_nothing_in_the_log(raw: str) -> None:
    line = TextFormatter().format(_record(f"said {raw}", path=f"/api/{raw}"))
    assert raw not in line


def test_no_line_of_a_trace_passes_for_a_line_of_the_log() -> None:
    text = TextFormatter().format(_record(error=ValueError(FORGED + "\x1b[2J")))
    first, *rest = text.split("\n")
    assert first.endswith("nacked")
    assert all(line.startswith("  ") for line in rest)
    assert "\x1b" not in text


def test_json_is_one_line_of_ascii() -> None:
    line = JsonFormatter().format(_record(reason=FORGED + "\x9b", error=ValueError(FORGED)))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["reason"] == FORGED + "\x9b"


def test_no_log_shows_the_password_of_an_address() -> None:
    record = _record("at redis://a:hush@b", url="redis://a:hush@b", error=ValueError("http://a:hush@b"))  # fmt: skip
    for formatter in (TextFormatter(), JsonFormatter()):
        assert "hush" not in formatter.format(record)
