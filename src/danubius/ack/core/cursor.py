"""A cursor: which offsets of a topic one subscription has acknowledged.

Invariants: every offset below `floor` is acknowledged, the floor itself is not; above it,
acknowledged offsets are the ranges of `above`, all of them beyond the floor. Nothing acknowledged
ever becomes unacknowledged, so the floor only rises.

Encoded form: one version byte (1), then unsigned LEB128 numbers: floor, number of ranges, and for
each range its distance from the end of the one before (the floor for the first) and its length.
Where some of it is kept as flags (`acked`), the version is 2: length of the above without its version
byte and the above, then for each block of 4,096 offsets its number, eight bytes little-endian, and a
bit for each offset, the lowest first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.ack.core.acked import BLOCK, BLOCK_BITS, PACKED_BYTES, AckedSet, Block
from danubius.ack.core.ranges import FEW, merge_ranges
from danubius.errors import DataDirectoryDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from danubius.ack.core.ranges import Range

_VERSION: Final = 1
_VERSION_BLOCKS: Final = 2
_NUMBER_BYTES: Final = 8
_BLOCK_BYTES: Final = _NUMBER_BYTES + PACKED_BYTES
_NUMBER_BYTES_MAX: Final = 10


class Cursor:
    """The acknowledged offsets of one subscription."""

    __slots__ = ("_above", "_floor")

    def __init__(self, floor: int = 0, above: Iterable[Range] = ()) -> None:
        assert floor >= 0, "offsets start at 0"
        self._floor = floor
        self._above = AckedSet()
        self.ack(above)

    @property
    def floor(self) -> int:
        """Every offset below is acknowledged."""
        return self._floor

    @property
    def above(self) -> AckedSet:
        """Acknowledged ranges above the floor; to be read, never changed."""
        return self._above

    def __contains__(self, offset: int) -> bool:
        return offset < self._floor or offset in self._above

    def __repr__(self) -> str:
        return f"Cursor(floor={self._floor}, above={list(self._above)})"

    def ack(self, ranges: Iterable[Range]) -> list[Range]:
        """Acknowledge ranges and return the parts that were not acknowledged before.

        They rise and are disjoint if the ranges were.
        """
        ranges = list(ranges)
        if len(ranges) > FEW:
            return self._ack_many(ranges)
        fresh: list[Range] = []
        above = self._above
        for first, end in ranges:
            start = max(first, self._floor)
            if start >= end:
                continue
            fresh += above.gaps(start, end) if above else [(start, end)]
            if start > self._floor:
                above.add(start, end)
                continue
            self._floor = above.first_gap(end)
            above.remove(0, self._floor)
        return fresh

    def _ack_many(self, ranges: list[Range]) -> list[Range]:
        """The same in one pass, for each range added by itself moves all that lie above it."""
        above = self._above
        merged = merge_ranges((max(one, self._floor), end) for one, end in ranges)
        lowest = merged[0][0] if merged else 0
        if above.next_first(lowest) is None and lowest not in above:
            fresh = merged  # all of it lies behind what is known
        else:
            fresh = [gap for first, end in merged for gap in above.gaps(first, end)]
        above.add_all(fresh)
        self._floor = above.first_gap(self._floor)
        above.remove(0, self._floor)
        return fresh

    def next_unacked(self, offset: int) -> int:
        """The lowest offset at or above `offset` that is not acknowledged."""
        return self._above.first_gap(max(offset, self._floor))

    def unacked(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are not acknowledged."""
        start = max(first, self._floor)
        return self._above.gaps(start, end) if start < end else []

    def unacked_count(self, first: int, end: int) -> int:
        """How many offsets of [first, end) are not acknowledged, without a list of them."""
        start = max(first, self._floor)
        return end - start - self._above.count_within(start, end) if start < end else 0

    def backlog(self, end: int) -> int:
        """How many offsets below `end` are not acknowledged."""
        if end <= self._floor:
            return 0
        beyond = self._above.count_within(end, 1 << 63)
        return end - self._floor - (self._above.count - beyond)

    def encode(self) -> bytes:
        ranges, blocks = self._above.parts()
        encoded = bytearray()
        _put_number(encoded, self._floor)
        _put_number(encoded, len(ranges))
        at = self._floor
        for first, end in ranges:
            _put_number(encoded, first - at)
            _put_number(encoded, end - first)
            at = end
        if not blocks:
            return bytes((_VERSION,)) + encoded
        head = bytearray((_VERSION_BLOCKS,))
        _put_number(head, len(encoded))
        packed = [number.to_bytes(_NUMBER_BYTES, "little") + one.pack() for number, one in blocks]
        return b"".join((head, encoded, *packed))

    @classmethod
    def decode(cls, encoded: bytes | memoryview) -> Cursor:
        view = memoryview(encoded)
        if view and view[0] == _VERSION:
            return cls._decode_ranges(view[1:])
        if not view or view[0] != _VERSION_BLOCKS:
            raise DataDirectoryDamaged("a stored cursor has an unknown version")
        at = 1
        while at < len(view) and view[at] > 0x7F:
            at += 1
        length = _get_numbers(view[1 : at + 1])
        begin = at + 1 + (length[0] if length else 0)
        if not length or (len(view) - begin) % _BLOCK_BYTES or begin > len(view):
            raise DataDirectoryDamaged("a stored cursor has the wrong length")
        cursor = cls._decode_ranges(view[at + 1 : begin])
        for start in range(begin, len(view), _BLOCK_BYTES):
            number = int.from_bytes(view[start : start + _NUMBER_BYTES], "little")
            block = Block.unpack(view[start + _NUMBER_BYTES : start + _BLOCK_BYTES])
            _adopt(cursor.above, number, block)
        if cursor.above.intersect(0, cursor.floor + 1):
            raise DataDirectoryDamaged("a stored cursor has a block below its floor")
        return cursor

    @classmethod
    def _decode_ranges(cls, encoded: memoryview) -> Cursor:
        numbers = _get_numbers(encoded)
        if len(numbers) < 2 or len(numbers) != 2 + 2 * numbers[1]:
            raise DataDirectoryDamaged("a stored cursor has the wrong length")
        cursor = cls(numbers[0])
        at = cursor.floor
        ranges: list[Range] = []
        for distance, length in zip(numbers[2::2], numbers[3::2], strict=True):
            if distance == 0 or length == 0:
                raise DataDirectoryDamaged("a stored cursor has an empty or touching range")
            at += distance
            ranges.append((at, at + length))
            at += length
        cursor.above.add_all(ranges)
        return cursor

    def check(self) -> None:
        self._above.check()
        first = next(iter(self._above), None)
        assert first is None or first[0] > self._floor, "the floor was left behind"


def _adopt(above: AckedSet, number: int, block: Block) -> None:
    base = number << BLOCK_BITS
    if above.intersect(base, base + BLOCK) or not 0 < block.count < BLOCK:
        raise DataDirectoryDamaged("a stored cursor has a block that is not one")
    above.adopt(number, block)


def _put_number(encoded: bytearray, number: int) -> None:
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)


def _get_numbers(encoded: bytes | memoryview) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in encoded:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte > 0x7F:
            if shift >= 7 * _NUMBER_BYTES_MAX:
                raise DataDirectoryDamaged("a stored cursor has a number that is too long")
            continue
        numbers.append(number)
        number = shift = 0
    if shift:
        raise DataDirectoryDamaged("a stored cursor ends inside a number")
    return numbers
