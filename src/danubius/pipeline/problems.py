"""Mistakes in a file: gathered, not thrown, so that all of them are told at once.

Every sentence begins with `FILE:LINE` and says what would be right.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

SHOWN_MAX: Final = 60
"""Characters of a wrong value that are repeated in the sentence about it."""


class InvalidPipeline(InvalidArgument):
    """A pipeline file cannot be run as it is. The message has a line for every mistake."""


@dataclass
class Problems:
    """What is wrong so far."""

    sentences: list[str] = field(default_factory=list[str])

    def add(self, where: str, sentence: str) -> None:
        self.sentences.append(f"{where}: {sentence}")

    def raise_if_any(self) -> None:
        if self.sentences:
            raise InvalidPipeline("\n".join(self.sentences))


def nearest(given: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or all there is to choose from."""
    names = list(known)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(names)}" if names else ""


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"
