"""The acknowledged offsets above a cursor's floor: ranges, and flags where ranges are many and small.

A set of ranges costs by the range, which is right for consumers that acknowledge what they get. Where every other
message is left out, a range is a message: then a block of offsets is kept as a flag for each. So the set costs little
more than a byte for each offset that it spans, whatever is in it, and a change costs no more than the block it is in.

Invariants: an offset is in a block of flags or in `_ranges`, as its block says; no block of flags is empty or full.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import groupby
from typing import TYPE_CHECKING, Final

from danubius.ack.core.ranges import RangeSet, merge_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from danubius.ack.core.ranges import Range

BLOCK_BITS: Final = 12
BLOCK: Final = 1 << BLOCK_BITS
"""Offsets in a block."""
MANY: Final = 4096
"""Up to so many ranges are kept as they are, wherever they lie."""
DENSE: Final = 64
"""A block with so many ranges is kept as flags: less than as many ranges take."""
_NONE: Final = bytes(BLOCK)
_ALL: Final = b"\1" * BLOCK
_TO_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")
_FROM_DIGITS: Final = bytes.maketrans(b"01", b"\0\1")
PACKED_BYTES: Final = BLOCK // 8


class Block:
    """A flag, as a byte, for each of some offsets."""

    __slots__ = ("count", "flags", "runs")

    def __init__(self, flags: bytearray | None = None) -> None:
        self.flags = bytearray(_NONE) if flags is None else flags
        self.count = 0
        self.runs = 0
        self.measure()

    def measure(self) -> None:
        self.count = self.flags.count(1)
        self.runs = self.flags.count(b"\0\1") + self.flags[0]

    def put(self, first: int, end: int, fill: bytes) -> None:
        """Set some flags, all alike."""
        flags = self.flags
        low, high = max(0, first - 1), min(BLOCK, end + 1)
        self.runs -= flags.count(b"\0\1", low, high) + flags[low]
        self.count -= flags.count(1, first, end)
        flags[first:end] = fill[: end - first]
        self.runs += flags.count(b"\0\1", low, high) + flags[low]
        self.count += flags.count(1, first, end)

    def ranges(self, base: int, first: int, end: int) -> Iterator[Range]:
        """What is set from `first` to `end`, as offsets from `base` on."""
        find = self.flags.find
        at = find(1, first, end)
        while at >= 0:
            behind = find(0, at, end)
            if behind < 0:
                yield base + at, base + end
                return
            yield base + at, base + behind
            at = find(1, behind, end)

    def pack(self) -> bytes:
        """A bit for each flag, the lowest first."""
        digits = self.flags[::-1].translate(_TO_DIGITS)
        return int(digits, 2).to_bytes(PACKED_BYTES, "little")

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Block:
        digits = format(int.from_bytes(packed, "little"), f"0{BLOCK}b").encode()
        return cls(bytearray(digits.translate(_FROM_DIGITS)[::-1]))


class AckedSet:
    """See the module. It answers as `RangeSet` does."""

    __slots__ = ("_block_count", "_block_runs", "_blocks", "_numbers", "_ranges")

    def __init__(self) -> None:
        self._ranges = RangeSet()
        self._blocks: dict[int, Block] = {}
        self._numbers: list[int] = []
        """Of the blocks, rising."""
        self._block_count = 0
        self._block_runs = 0

    @property
    def count(self) -> int:
        """How many offsets are in the set."""
        return self._ranges.count + self._block_count

    @property
    def blocks(self) -> int:
        """How many blocks are kept as flags."""
        return len(self._blocks)

    def __len__(self) -> int:
        """How many ranges the set is made of; one that reaches over the edge of a block may be counted twice."""
        return len(self._ranges) + self._block_runs

    def __iter__(self) -> Iterator[Range]:
        return iter(self.intersect(0, 1 << 63))

    def __contains__(self, offset: int) -> bool:
        block = self._blocks.get(offset >> BLOCK_BITS) if self._blocks else None
        return offset in self._ranges if block is None else bool(block.flags[offset & (BLOCK - 1)])

    def add(self, first: int, end: int) -> None:
        if first >= end:
            return
        if not self._blocks and len(self._ranges) < MANY:
            self._ranges.add(first, end)
            return
        for at, stop, number in list(self._split(first, end)):
            if number is None:
                self._ranges.add(at, stop)
            else:
                base = number << BLOCK_BITS
                self._put(number, at - base, stop - base, _ALL)
        self._condense({first >> BLOCK_BITS, (end - 1) >> BLOCK_BITS})

    def add_all(self, ranges: Sequence[Range]) -> None:
        """Add any number of ranges; many of them in one pass."""
        if not self._blocks and len(self._ranges) + len(ranges) <= MANY:
            self._ranges.add_all(ranges)
            return
        rest: list[Range] = []
        for number, group in groupby(merge_ranges(ranges), _block_of):
            some = list(group)
            # Those that reach beyond the block are few: one in a block at the most.
            inside = some if some[-1][1] <= (number + 1) << BLOCK_BITS else some[:-1]
            if len(inside) < DENSE and number not in self._blocks:
                rest += some
                continue
            self._fill(number, inside)
            for first, end in some[len(inside) :]:
                self.add(first, end)
        if not self._blocks:
            self._ranges.add_all(rest)
        else:
            for first, end in rest:
                self.add(first, end)
        self._condense({first >> BLOCK_BITS for first, _ in rest})

    def remove(self, first: int, end: int) -> None:
        if first >= end:
            return
        for at, stop, number in list(self._split(first, end)):
            if number is None:
                self._ranges.remove(at, stop)
            else:
                base = number << BLOCK_BITS
                self._put(number, at - base, stop - base, _NONE)

    def intersect(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are in the set."""
        if not self._blocks:
            return self._ranges.intersect(first, end)
        found: list[Range] = []
        for at, stop, number in self._split(first, end):
            if number is None:
                parts: Iterable[Range] = self._ranges.intersect(at, stop)
            else:
                base = number << BLOCK_BITS
                parts = self._blocks[number].ranges(base, at - base, stop - base)
            for part in parts:
                if found and found[-1][1] == part[0]:
                    found[-1] = (found[-1][0], part[1])
                else:
                    found.append(part)
        return found

    def gaps(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are not in the set."""
        found: list[Range] = []
        at = first
        for one_first, one_end in self.intersect(first, end):
            if at < one_first:
                found.append((at, one_first))
            at = one_end
        if at < end:
            found.append((at, end))
        return found

    def count_within(self, first: int, end: int) -> int:
        """How many offsets of [first, end) are in the set, without a list of them."""
        total = 0
        for at, stop, number in self._split(first, end):
            if number is None:
                total += sum(b - a for a, b in self._ranges.intersect(at, stop))
            else:
                base = number << BLOCK_BITS
                total += self._blocks[number].flags.count(1, at - base, stop - base)
        return total

    def first_gap(self, offset: int) -> int:
        """The lowest offset at or above `offset` that is not in the set."""
        while True:
            block = self._blocks.get(offset >> BLOCK_BITS) if self._blocks else None
            if block is None:
                behind = self._ranges.first_gap(offset)
                if behind == offset:
                    return offset
                offset = behind
            else:
                base = offset & -BLOCK
                at = block.flags.find(0, offset - base)
                if at >= 0:
                    return base + at
                offset = base + BLOCK

    def next_first(self, offset: int) -> int | None:
        """Where the first range above `offset` starts, which is not in the set itself; None if there is none."""
        found = self._ranges.next_first(offset)
        for number in self._numbers[bisect_left(self._numbers, offset >> BLOCK_BITS) :]:
            base = number << BLOCK_BITS
            at = self._blocks[number].flags.find(1, max(0, offset - base))
            if at >= 0:
                return base + at if found is None else min(found, base + at)
        return found

    def parts(self) -> tuple[list[Range], list[tuple[int, Block]]]:
        """What is kept as ranges, and as blocks: number and flags, rising."""
        return list(self._ranges), [(number, self._blocks[number]) for number in self._numbers]

    def adopt(self, number: int, block: Block) -> None:
        """Take a block that was stored; nothing of it is known yet."""
        self._insert(number, block)

    def check(self) -> None:
        self._ranges.check()
        assert sorted(self._blocks) == self._numbers
        for number, block in self._blocks.items():
            base = number << BLOCK_BITS
            assert not self._ranges.intersect(base, base + BLOCK), "in two places"
            known = (block.count, block.runs)
            block.measure()
            assert known == (block.count, block.runs)
            assert 0 < block.count < BLOCK
        assert self._block_count == sum(one.count for one in self._blocks.values())
        assert self._block_runs == sum(one.runs for one in self._blocks.values())

    # ------------------------------------------------------------ blocks

    def _split(self, first: int, end: int) -> Iterator[tuple[int, int, int | None]]:
        """A range cut at the edges of blocks of flags: first, end and the number of the block, if it is one."""
        numbers, at = self._numbers, first
        low = bisect_left(numbers, first >> BLOCK_BITS)
        high = bisect_right(numbers, (end - 1) >> BLOCK_BITS)
        for number in numbers[low:high]:
            base = number << BLOCK_BITS
            if at < base:
                yield at, base, None
                at = base
            stop = min(end, base + BLOCK)
            yield at, stop, number
            at = stop
        if at < end:
            yield at, end, None

    def _condense(self, numbers: Iterable[int]) -> None:
        """Keep blocks as flags that have become worth it."""
        if len(self._ranges) + self._block_runs <= MANY:
            return
        for number in numbers:
            base = number << BLOCK_BITS
            if self._ranges.touching(base, base + BLOCK) >= DENSE:
                self._fill(number, [])

    def _fill(self, number: int, ranges: list[Range]) -> None:
        """Keep a block as flags, and set these ranges, which lie in it."""
        base = number << BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            known = self._ranges.intersect(base, base + BLOCK)
            self._ranges.remove(base, base + BLOCK)
            block, ranges = Block(), [*known, *ranges]
            self._insert(number, block)
        flags = block.flags
        for first, end in ranges:
            flags[first - base : end - base] = _ALL[: end - first]
        count, runs = block.count, block.runs
        block.measure()
        self._changed(number, block, count, runs)

    def _put(self, number: int, first: int, end: int, fill: bytes) -> None:
        block = self._blocks[number]
        count, runs = block.count, block.runs
        block.put(first, end, fill)
        self._changed(number, block, count, runs)

    def _insert(self, number: int, block: Block) -> None:
        self._blocks[number] = block
        insort(self._numbers, number)
        self._block_count += block.count
        self._block_runs += block.runs

    def _changed(self, number: int, block: Block, count: int, runs: int) -> None:
        """Count what it holds now; one that is empty or full is no block of flags any more."""
        self._block_count += block.count - count
        self._block_runs += block.runs - runs
        if 0 < block.count < BLOCK:
            return
        self._block_count -= block.count
        self._block_runs -= block.runs
        del self._blocks[number]
        del self._numbers[bisect_left(self._numbers, number)]
        if block.count:
            base = number << BLOCK_BITS
            self._ranges.add(base, base + BLOCK)


def _block_of(one: Range) -> int:
    return one[0] >> BLOCK_BITS
