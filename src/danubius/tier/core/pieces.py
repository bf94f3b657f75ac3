"""A ledger in pieces: every append is an object of its own, named for where it belongs and when it was written.

    <topic id>/<ledger id>/<epoch>.<attempt>-<number>-<d|i>-<position>

All numbers are hexadecimal with 16, 8, 8, 4, 8 and 16 digits. `d` holds bytes of the ledger, `i` rows of its index,
whose positions are in bytes too. The pieces of one epoch and attempt are one life of a ledger: `create` begins another,
with position 0, and only the last life counts. In a life a piece of a higher number covers those of lower ones, so that
a call whose answer was lost is repeated under the next number, and pieces are joined without anybody seeing it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

DATA: Final = "d"
INDEX: Final = "i"

_NAME: Final = re.compile(
    r"([0-9a-f]{16})/([0-9a-f]{8})/([0-9a-f]{8})\.([0-9a-f]{4})-([0-9a-f]{8})-([di])-([0-9a-f]{16})"
)


class Life(NamedTuple):
    """Which creation of a ledger a piece belongs to; the largest is the last."""

    epoch: int
    attempt: int


class Piece(NamedTuple):
    """One object, by its name."""

    topic_id: int
    ledger_id: int
    life: Life
    number: int
    kind: str
    position: int

    @property
    def name(self) -> str:
        life = self.life
        return (
            f"{folder_of(self.topic_id, self.ledger_id)}{life.epoch:08x}.{life.attempt:04x}"
            f"-{self.number:08x}-{self.kind}-{self.position:016x}"
        )


def topic_folder(topic_id: int) -> str:
    return f"{topic_id:016x}/"


def folder_of(topic_id: int, ledger_id: int) -> str:
    return f"{topic_id:016x}/{ledger_id:08x}/"


def parse_piece(name: str) -> Piece | None:
    """None for a name that is no piece's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    topic, ledger, epoch, attempt, number, kind, position = match.groups()
    life = Life(int(epoch, 16), int(attempt, 16))
    return Piece(int(topic, 16), int(ledger, 16), life, int(number, 16), kind, int(position, 16))


class Extent(NamedTuple):
    """The bytes [start, end) are those of the piece from `start - piece.position` on."""

    start: int
    end: int
    piece: Piece
    stop: int
    """Where the piece itself ends: others may cover it from `end` on."""


class PieceMap:
    """Which bytes lie in which piece. Immutable, so that readers share it with the writer."""

    __slots__ = ("_starts", "extents")

    def __init__(self, extents: Sequence[Extent] = ()) -> None:
        self.extents = extents
        self._starts = [extent.start for extent in extents]

    @property
    def end(self) -> int:
        return self.extents[-1].end if self.extents else 0

    def names(self) -> set[str]:
        return {extent.piece.name for extent in self.extents}

    def overlay(self, piece: Piece, size: int) -> PieceMap:
        """With a piece over what it covers."""
        if size == 0:
            return self
        start, end = piece.position, piece.position + size
        extents = list(_before(self.extents, start))
        extents.append(Extent(start, end, piece, end))
        extents.extend(_behind(self.extents, end))
        return PieceMap(extents)

    def cut(self, end: int) -> PieceMap:
        """Without what lies behind `end`."""
        return PieceMap(list(_before(self.extents, end)))

    def find(self, start: int, end: int) -> Iterator[Extent]:
        """The parts of pieces that hold [start, end), in order, up to the first gap."""
        number = max(0, bisect_right(self._starts, start) - 1)
        for extent in self.extents[number:]:
            if start >= end or extent.start > start:
                return
            if extent.end > start:
                stop = min(end, extent.end)
                yield extent._replace(start=start, end=stop)
                start = stop

    def joinable(self, bytes_max: int, pieces_max: int) -> list[Extent]:
        """Adjacent parts, at least two, that would better be one piece; empty if there are none."""
        run: list[Extent] = []
        for extent in self.extents:
            is_next = not run or extent.start == run[-1].end
            if run and is_next and extent.end - run[0].start <= bytes_max and len(run) < pieces_max:
                run.append(extent)
            elif len(run) > 1:
                return run
            else:
                run = [extent]
        return run if len(run) > 1 else []


def map_pieces(pieces: Iterable[tuple[Piece, int]]) -> PieceMap:
    """The map of pieces of one life and kind, with their sizes, in any order."""
    extents = PieceMap()
    for piece, size in sorted(pieces, key=lambda item: item[0].number):
        extents = extents.overlay(piece, size)
    return extents


def _before(extents: Sequence[Extent], end: int) -> Iterator[Extent]:
    for extent in extents:
        if extent.start >= end:
            return
        yield extent if extent.end <= end else extent._replace(end=end)


def _behind(extents: Sequence[Extent], start: int) -> Iterator[Extent]:
    for extent in extents:
        if extent.end > start:
            yield extent if extent.start >= start else extent._replace(start=start)
