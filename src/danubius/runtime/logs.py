"""Structured logging: a constant message and facts beside it, as text for people or JSON lines for programs.

What is logged comes from others too: names, reasons, paths. So no value begins a line of its own, none looks like two,
no terminal obeys it, and no address shows its password, whoever logs it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

from danubius.redaction import redact, visible

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_WHOLE = re.compile(r'[^\s="]+')
"""Text that is one value without quotation marks."""


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _value(value: object) -> str:
    """A fact's value: quoted, with quotation marks escaped, where it would not be one word otherwise."""
    text = redact(str(value))
    if text.isprintable() and (_WHOLE.fullmatch(text) or isinstance(value, int | float)):
        return text
    return '"' + visible(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


class TextFormatter(logging.Formatter):
    """For people: `time LEVEL logger: message key=value key="a value of several words" …`."""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={_value(value)}" for key, value in _facts(record).items())
        message = visible(redact(record.getMessage()))
        line = f"{_stamp(record)} {record.levelname:<7} {record.name}: {message}{facts}"
        if record.exc_info:
            # Lines of a trace are indented, so that none of them passes for a line of the log.
            trace = visible(redact(self.formatException(record.exc_info)), keep="\n")
            line += "\n" + "\n".join(f"  {each}" for each in trace.split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """For programs: one JSON object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **{key: _plain(value) for key, value in _facts(record).items()},
        }
        if record.exc_info:
            fields["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(fields)


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float | None):
        return value
    return redact(str(value))


def set_up_logging(level: str, log_format: str) -> None:
    """Send everything of ours to stderr in the chosen format."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger("danubius")
    logger.handlers[:] = [stream]
    logger.setLevel(level.upper())
    logger.propagate = False
    if logging.lastResort is not None:  # what libraries say, which nobody else listens to
        logging.lastResort.setFormatter(stream.formatter)
