"""Key filters: which keys a Key-Shared consumer takes, as glob patterns.

`*` stands for any characters, also none, and `?` for one; all else stands for itself, and case counts. A consumer
takes a key if one of its patterns matches the whole of it, and every key if it has no patterns. A message
without a key counts as one with an empty key: `*` matches it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from danubius.errors import InvalidArgument
from danubius.model.subscription import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Sequence

FILTERS_MAX: Final = 64
"""Patterns of one consumer."""
FILTER_CHARS_MAX: Final = 200
"""Of one pattern."""


class KeyFilter:
    """The patterns of one consumer, compiled. Matching takes time in proportion to key and patterns, never more."""

    __slots__ = ("_pattern", "globs")

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._pattern = re.compile("|".join(map(_to_regex, self.globs)), re.DOTALL)

    def accepts(self, key: bytes) -> bool:
        return self._pattern.fullmatch(key.decode(errors="surrogateescape")) is not None


def check_key_filters(filters: object, kind: SubscriptionType) -> tuple[str, ...]:
    """The patterns, if a consumer of this type may have them; InvalidArgument says which one is wrong, and why."""
    if not isinstance(filters, list | tuple):
        raise InvalidArgument(
            f'key_filters is {filters!r}; it must be a list of patterns, such as ["eu-*", "us-*"]'
        )
    checked = tuple(map(_check_one, cast("Sequence[object]", filters)))
    if len(checked) > FILTERS_MAX:
        raise InvalidArgument(
            f"a consumer may have {FILTERS_MAX} key filters, not {len(checked)}; join some with * or ?"
        )
    if checked and kind is not SubscriptionType.KEY_SHARED:
        raise InvalidArgument(
            f"key_filters are for type 'key-shared', not {kind.value!r}: the other types do not look at keys"
        )
    return checked


def _check_one(glob: object) -> str:
    if not isinstance(glob, str):
        raise InvalidArgument(f'the key filter {glob!r} is no text; write it like "eu-*"')
    if not glob:
        raise InvalidArgument("a key filter is empty; use * for all keys, or leave the filters out")
    if len(glob) > FILTER_CHARS_MAX:
        raise InvalidArgument(
            f"a key filter has {len(glob)} characters; at most {FILTER_CHARS_MAX} are allowed"
        )
    if any(char in glob for char in "[]{}\\"):
        raise InvalidArgument(
            f"the key filter {glob!r} has one of [ ] {{ }} \\, which stand for nothing here: "
            "only * (any characters) and ? (one character) are patterns"
        )
    try:
        glob.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"the key filter {glob!r} is not valid Unicode") from None
    return glob


def _to_regex(glob: str) -> str:
    """Each star but the last takes as little as it can and never thinks again, so that there is nothing to try out."""
    head, *rest = (
        "".join("." if one == "?" else re.escape(one) for one in part) for part in glob.split("*")
    )
    if not rest:
        return head
    *middle, tail = rest
    return head + "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + tail
