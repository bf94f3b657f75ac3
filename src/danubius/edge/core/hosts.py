"""Host names that the HTTP port answers to.

A page of any site can have its own name resolved to this machine, and its reader's browser then sends requests here as
if to that site: the Host header is all that tells them apart. An address cannot be taken over like that, so every
address is answered to; of names, this machine's own and those that the operator allows.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

ANY: Final = "*"
_LABEL_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


class AllowedHosts:
    """The names of one broker."""

    def __init__(self, own: Iterable[str], allowed: Iterable[str] = ()) -> None:
        """`own` may be empty ones; `allowed` are checked: each a name, `*.name`, or `*` for all."""
        names = {"localhost", *(_bare(name) for name in own if name)}
        patterns = [_checked(pattern) for pattern in allowed]
        self.is_any = ANY in patterns
        self._endings = (".localhost", *(one[1:] for one in patterns if one.startswith("*.")))
        self._names = names | {one for one in patterns if "*" not in one}

    def allows(self, host: str) -> bool:
        """Whether a Host header, with or without a port, is one of these."""
        if self.is_any:
            return True
        name = _bare(host)
        return name in self._names or name.endswith(self._endings) or _is_address(name)


def parse_allowed(text: str) -> list[str]:
    """The patterns of a setting, separated by commas; InvalidArgument if one is none."""
    return [_checked(part.strip()) for part in text.split(",") if part.strip()]


def _checked(pattern: str) -> str:
    name = pattern.lower().removesuffix(".")
    if name != ANY:
        labels = name.removeprefix("*.").split(".")
        if not all(label and _LABEL_CHARACTERS.issuperset(label) for label in labels):
            raise InvalidArgument(
                f"{pattern[:80]!r} is no name of a host; give names such as broker.example.com or *.example.com"
            )
    return name


def _bare(host: str) -> str:
    """Without the port, brackets and a dot at the end."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    if colon and ":" not in name and port.isdigit():
        host = name
    return host.removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
