"""Names and numbers of Danube's producers, consumers and subscriptions, as this broker has them.

Danube takes any text for such a name, this broker only letters, digits, `_` and `-`. A name with anything else is
spelled out: `x--`, and each other character as `-hex-`; so it stays one name, and can be told back as it was given.
Topic names are not touched: both brokers allow the same there, and a topic that is called otherwise by others is lost.

Numbers are made of names: a client that holds one goes on after a restart of the broker, whatever it remembers.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from danubius.model.ids import parse_name

_PREFIX: Final = "x--"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_OTHER: Final = re.compile(r"[^A-Za-z0-9_]")
_SPELLED: Final = re.compile(r"-([0-9a-f]{1,6})-")
_NUMBER_MAX: Final = 2**63 - 1
"""Clients in languages without unsigned numbers get one they can write."""


def inner_name(kind: str, text: str) -> str:
    """The name under which this broker knows it; InvalidName if there is none."""
    if _PLAIN.match(text) and not text.startswith(_PREFIX):
        return parse_name(kind, text)
    if not text:
        return parse_name(kind, text)
    return parse_name(kind, _PREFIX + _OTHER.sub(lambda one: f"-{ord(one[0]):x}-", text))


def outer_name(name: str) -> str:
    """The name as its client gave it."""
    if not name.startswith(_PREFIX):
        return name
    return _SPELLED.sub(lambda one: chr(int(one[1], 16)), name[len(_PREFIX) :])


def number_of(*names: str) -> int:
    """The same number for the same names, never 0."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") & _NUMBER_MAX) or 1
