"""Messages larger than one may be: cut into pieces by a producer, put together by whoever has the last piece.

The last piece is sent when all others are stored, and says where they are. So a message is there if its last piece is,
whoever has that can find the others, and nobody needs to have received all of them: `PieceStore` keeps what came,
within a bound, only to save fetching it. Pieces without a last one are what a producer left behind that died; nobody
is given them. The format is on the page of the record batch.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.client.core.acks import Range, merge
from danubius.errors import InvalidBatch, MessageTooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ID: Final = "x-chunk-id"
INDEX: Final = "x-chunk-index"
COUNT: Final = "x-chunk-count"
BYTES: Final = "x-chunk-bytes"
UNTIL: Final = "x-chunk-until"
OFFSETS: Final = "x-chunk-offsets"
BEFORE: Final = "before"
"""As offsets: the others lie directly before the last piece, as those of a transaction do."""
_OURS: Final = frozenset({ID, INDEX, COUNT, BYTES, UNTIL, OFFSETS})
_MOVED: Final = ("x-original-topic-offset", "x-redriven")
"""Attributes of a message that was moved: where its pieces were says nothing about where they are."""

WHOLE_BYTES_MAX: Final = 1 << 30
"""The payload of one message, however it is sent."""
PIECES_MAX: Final = 1024
ATTRIBUTES_BYTES: Final = 256
"""Room for what a piece says about itself, apart from the offsets."""
OFFSET_BYTES: Final = 24
"""Room for one offset in the list of the last piece."""
STORE_BYTES_MAX: Final = 256 * 1024 * 1024
HELD_MAX: Final = 10_000
"""Messages whose pieces are remembered before the last one came."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What a piece says about itself."""

    id: str
    index: int
    count: int
    bytes: int
    until_ms: int
    offsets: str | None
    """Only of the last one."""
    is_moved: bool = False

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1


# ------------------------------------------------------------ sending


def plan(size: int, piece_bytes: int, key_bytes: int, attribute_bytes: int) -> list[Range]:
    """Where to cut a payload: every piece with its key, the last one with all attributes too, within `piece_bytes`."""
    if size > WHOLE_BYTES_MAX:
        raise MessageTooLarge(
            f"the message has {size} bytes, at most {WHOLE_BYTES_MAX} can be sent in pieces:"
            " send a reference to larger data"
        )
    room = piece_bytes - key_bytes - ATTRIBUTES_BYTES
    for count in range(2, PIECES_MAX + 1):
        last_room = room - attribute_bytes - OFFSET_BYTES * (count - 1)
        if last_room < 0:
            break
        if (count - 1) * room + last_room >= size:
            # The last is as large as it may be, so that the others can be of one size.
            share = min(room, -(-size // count))
            share = max(share, -(-(size - last_room) // (count - 1)))
            cuts = [min(size, share * number) for number in range(count)]
            return list(pairwise([*cuts, size]))
    raise MessageTooLarge(
        f"the message has {size} bytes, which do not fit into {PIECES_MAX} pieces of {piece_bytes} bytes with"
        " its key and attributes: send larger pieces (chunk_bytes), or a reference to the data"
    )


class Slicer:
    """The pieces of one message as they are sent."""

    __slots__ = ("_attributes", "_cuts", "_id", "_payload")

    def __init__(
        self,
        message_id: str,
        payload: bytes,
        attributes: Mapping[str, str] | None,
        cuts: Sequence[Range],
    ) -> None:
        """`message_id`: one that nobody else has."""
        self._payload = payload
        self._attributes = attributes or {}
        self._cuts = cuts
        self._id = message_id

    def __len__(self) -> int:
        return len(self._cuts)

    def piece(self, index: int, until_ms: int) -> tuple[bytes, dict[str, str]]:
        """Payload and attributes of a piece; of the last one without the offsets."""
        first, end = self._cuts[index]
        told = {
            ID: self._id,
            INDEX: str(index),
            COUNT: str(len(self._cuts)),
            BYTES: str(len(self._payload)),
            UNTIL: str(until_ms),
        }
        is_last = index == len(self._cuts) - 1
        return self._payload[first:end], {**self._attributes, **told} if is_last else told

    def last(self, until_ms: int, offsets: str) -> tuple[bytes, dict[str, str]]:
        payload, attributes = self.piece(len(self._cuts) - 1, until_ms)
        return payload, attributes | {OFFSETS: offsets}


def write_offsets(offsets: Sequence[int]) -> str:
    """Offsets as runs, in their order."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and offset == runs[-1][1] + 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    return " ".join(f"{first}-{last}" if first < last else str(first) for first, last in runs)


# ------------------------------------------------------------ receiving


def read_piece(attributes: Mapping[str, str]) -> Piece | None:
    """What a piece says about itself; None if it makes no sense."""
    try:
        piece = Piece(
            attributes[ID],
            _number(attributes[INDEX]),
            _number(attributes[COUNT]),
            _number(attributes[BYTES]),
            _number(attributes[UNTIL]),
            attributes.get(OFFSETS),
            any(name in attributes for name in _MOVED),
        )
    except (KeyError, ValueError):
        return None
    is_sound = (
        0 <= piece.index < piece.count
        and 2 <= piece.count <= PIECES_MAX
        and piece.bytes <= WHOLE_BYTES_MAX
        and piece.is_last == (piece.offsets is not None)
    )
    return piece if is_sound else None


def read_offsets(text: str, count: int, last: int) -> list[int] | None:
    """Where the first `count` pieces are whose last one is at `last`; None if it makes no sense."""
    if text == BEFORE:
        return list(range(last - count, last)) if last >= count else None
    offsets: list[int] = []
    try:
        for run in text.split(" "):
            first, _, end = run.partition("-")
            begin = _number(first)
            stop = _number(end) if end else begin
            if not 0 <= stop - begin < count - len(offsets):
                return None
            offsets += range(begin, stop + 1)
    except ValueError:
        return None
    return offsets if len(offsets) == count else None


def user_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a message without those of its last piece."""
    return {name: text for name, text in attributes.items() if name not in _OURS}


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19:  # as 64 bits have
        raise ValueError(text)
    return int(text)


class Whole:
    """A message whose last piece came: what is there of it, and where the rest is."""

    __slots__ = ("_offsets", "_parts", "last_offset", "piece")

    def __init__(
        self, piece: Piece, last_offset: int, parts: dict[int, bytes], offsets: dict[int, int]
    ) -> None:
        """`parts` and `offsets` by index; every piece has an offset."""
        self.piece = piece
        self.last_offset = last_offset
        self._parts = parts
        self._offsets = offsets

    @property
    def missing(self) -> tuple[int, int] | None:
        """Index and offset of a piece that is to be fetched; None: all are there."""
        for index in range(self.piece.count):
            if index not in self._parts:
                return index, self._offsets[index]
        return None

    def add(self, index: int, payload: bytes) -> None:
        self._parts[index] = payload

    @property
    def ranges(self) -> list[Range]:
        """All its pieces: what an acknowledgement of it names."""
        return merge([(offset, offset + 1) for offset in self._offsets.values()])

    def payload(self) -> bytes:
        payload = b"".join([self._parts[index] for index in range(self.piece.count)])
        if len(payload) != self.piece.bytes:
            raise InvalidBatch(
                f"the pieces of the message at offset {self.last_offset} have {len(payload)} bytes,"
                f" it was sent with {self.piece.bytes}"
            )
        return payload


class Held:
    """Pieces of a message whose last one has not come."""

    __slots__ = ("last", "offsets", "until_ms")

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        """By index."""
        self.until_ms = 0
        self.last: Piece | None = None
        """Only of a message that was moved: its last piece does not tell where the others are."""

    @property
    def newest(self) -> int:
        return max(self.offsets.values())

    @property
    def ranges(self) -> list[Range]:
        return merge([(offset, offset + 1) for offset in self.offsets.values()])


class PieceStore:
    """Pieces that came before their last one. Bytes beyond the bound are forgotten, the oldest first."""

    __slots__ = ("_bytes_max", "_parts", "held", "size")

    def __init__(self, bytes_max: int = STORE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._parts: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self.size = 0
        self.held: OrderedDict[str, Held] = OrderedDict()
        """By message, those first that came first."""

    def take(self, piece: Piece, offset: int, payload: bytes) -> Whole | None:
        """Take a piece; the message it belongs to, if it is the last one, or the last of a moved one to come."""
        if piece.is_last and not piece.is_moved:
            return self._complete(piece, offset, payload)
        held = self.held.setdefault(piece.id, Held())
        held.offsets[piece.index] = offset
        held.until_ms = max(held.until_ms, piece.until_ms)
        if piece.is_last:
            held.last = piece
        if held.last is not None and len(held.offsets) == held.last.count:
            del self.held[piece.id]
            parts = {**self._parts_of(piece.id, piece.count), piece.index: payload}
            return Whole(held.last, held.offsets[held.last.count - 1], parts, held.offsets)
        self._keep(piece, payload)
        if len(self.held) > HELD_MAX:
            self.forget(next(iter(self.held)))
        return None

    def forget(self, message_id: str) -> None:
        held = self.held.pop(message_id, None)
        if held is not None:
            self._parts_of(message_id, max(held.offsets) + 1)

    def clear(self) -> None:
        self._parts.clear()
        self.held.clear()
        self.size = 0

    def spared(self, below: int) -> list[Range]:
        """The pieces with lower offsets: whoever acknowledges all before some message does not mean these."""
        return [
            (offset, offset + 1)
            for held in self.held.values()
            for offset in held.offsets.values()
            if offset < below
        ]

    def _complete(self, piece: Piece, offset: int, payload: bytes) -> Whole:
        assert piece.offsets is not None
        told = read_offsets(piece.offsets, piece.count - 1, offset)
        if told is None:
            raise InvalidBatch(
                f"the last piece at offset {offset} does not tell where the others are"
            )
        held = self.held.pop(piece.id, None)
        places = dict(enumerate(told))
        if held is not None:
            places.update(held.offsets)
        places[piece.index] = offset
        parts = {**self._parts_of(piece.id, piece.count), piece.index: payload}
        return Whole(piece, offset, parts, places)

    def _keep(self, piece: Piece, payload: bytes) -> None:
        key = (piece.id, piece.index)
        self.size += len(payload) - len(self._parts.pop(key, b""))
        self._parts[key] = payload
        while self.size > self._bytes_max:
            _, gone = self._parts.popitem(last=False)
            self.size -= len(gone)

    def _parts_of(self, message_id: str, count: int) -> dict[int, bytes]:
        """Take out what is there of a message."""
        parts: dict[int, bytes] = {}
        for index in range(count):
            part = self._parts.pop((message_id, index), None)
            if part is not None:
                parts[index] = part
                self.size -= len(part)
        return parts
