"""Redaction: the one place that decides what is secret, and how text from others becomes one harmless line.

Two dangers lie in repeating what one was given. It may be secret: a password in an address, an option whose name says
so. And it may be more than text: a line break that begins a second line of a log, a control character that a terminal
obeys. Errors are without the first from the moment they are made (`errors.DanubiusError`), logs and the command line
go through both. Everything here is pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN: Final = "***"

_SECRET_NAME: Final = re.compile(
    r"secret|passw|passphrase|token|credential|connection_?string|authorization|delegation|signature|private|cookie"
    r"|key|(?:^|[_-])sas|(?:^|[_-])(?:sig|auth|pin|pwd)(?:$|[_-])",
    re.IGNORECASE,
)
"""In the name of a setting, an option or a parameter: its value is not shown."""
_USER: Final = re.compile(r"(\b[A-Za-z][\w+.-]*://)[^\s/?#'\"<>]*@")
"""Of an address in a text: who, and with which password."""
_MALFORMED_USER: Final = re.compile(r"://\S*:\S*@")
"""The same where the password has characters in it that do not belong there."""
_PARAMETER: Final = re.compile(r"([?&;])([\w.%~-]+)=([^\s&;#'\"<>]+)")


def is_secret_name(name: str) -> bool:
    """Whether what bears this name is nobody's business."""
    return _SECRET_NAME.search(name) is not None


def shown_options(options: Mapping[str, object]) -> dict[str, object]:
    """Options with the secret ones hidden."""
    return {name: _shown_option(name, value) for name, value in options.items()}


def _shown_option(name: str, value: object) -> object:
    if is_secret_name(name):
        return HIDDEN
    return redact(value) if isinstance(value, str) else value


def redact_address(address: str) -> str:
    """An address without user and password, also a malformed one, and without secret parameters."""
    return _MALFORMED_USER.sub("://", redact(address))


def redact(text: str) -> str:
    """A text without the users and passwords of the addresses in it, and without secret parameters."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(_shown_parameter, _USER.sub(r"\1", text))


def _shown_parameter(found: re.Match[str]) -> str:
    sign, name, value = found.groups()
    return f"{sign}{name}={HIDDEN if is_secret_name(name) else value}"


# ---------------------------------------------------------------- one line, and nothing but text


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with every character that cannot be seen written out, as `\n`, `\x1b` or `\u202e`, but for `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


def visible_bytes(data: bytes, *, keep: str = "") -> str:
    r"""Bytes as text in which everything is to be seen: what is no UTF-8 is written out as `\xff`."""
    return visible(data.decode("utf-8", "backslashreplace"), keep=keep)
