"""Extents, where the bytes of pooled ledgers lie: runs of ledger positions in pool files.

Invariants:
- A ledger's extents are in order of position and do not overlap. What is put later replaces what it covers.
- A ledger has the extents of one epoch: that of its last writer. `put` of an earlier one changes nothing.
- `live_bytes` of a file is the sum over its extents, frame headers included: 0 exactly if there are none.
- One thread changes a map; others may `get` at any time, and what they got never changes: an entry is replaced, not
  altered. It is packed, so that a ledger of one extent costs some 70 bytes.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.ledger.core.pool_format import FRAME_HEADER_BYTES
from danubius.ledger.entry import LedgerRef

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EPOCH: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<IIII")
POSITION_MAX: Final = 2**32 - 1


class Extent(NamedTuple):
    """`length` bytes of a ledger from `position` on, in the pool file `file` from `offset` on."""

    position: int
    length: int
    file: int
    offset: int

    @property
    def end(self) -> int:
        return self.position + self.length


class Entry:
    """One ledger's extents as they were at some moment."""

    __slots__ = ("_packed",)

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    @property
    def epoch(self) -> int:
        return _EPOCH.unpack_from(self._packed)[0]

    @property
    def end(self) -> int:
        position, length, _, _ = _ROW.unpack_from(self._packed, len(self._packed) - _ROW.size)
        return position + length

    @property
    def extents(self) -> list[Extent]:
        rows = memoryview(self._packed)[_EPOCH.size :]
        return [Extent(*row) for row in _ROW.iter_unpack(rows)]

    @property
    def is_contiguous(self) -> bool:
        extents = self.extents
        return all(a.end == b.position for a, b in itertools.pairwise(extents))

    def __len__(self) -> int:
        return (len(self._packed) - _EPOCH.size) // _ROW.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._packed == other._packed

    def __hash__(self) -> int:
        return hash(self._packed)


class ExtentMap:
    """All pooled ledgers of a store."""

    def __init__(self) -> None:
        self._topics: dict[int, dict[int, bytes]] = {}
        self.live_bytes: dict[int, int] = {}
        """By pool file; one that is absent has none."""

    def get(self, ref: LedgerRef) -> Entry | None:
        ledgers = self._topics.get(ref.topic_id)
        packed = None if ledgers is None else ledgers.get(ref.ledger_id)
        return None if packed is None else Entry(packed)

    def refs(self) -> list[LedgerRef]:
        return [
            LedgerRef(topic_id, ledger_id)
            for topic_id, ledgers in self._topics.items()
            for ledger_id in ledgers
        ]

    def put(self, ref: LedgerRef, epoch: int, extent: Extent, *, is_first: bool = False) -> None:
        """Bytes were written; with `is_first` the ledger starts with them, and what was there is gone."""
        topic_id, ledger_id = ref
        ledgers = self._topics.get(topic_id)
        packed = None if ledgers is None else ledgers.get(ledger_id)
        if packed is not None:
            known, position, length = _unpack_ends(packed)
            if epoch < known:
                return
            if epoch > known or is_first:
                self.drop(ref)
                packed = None
            elif extent[0] < position + length:
                extents = Entry(packed).extents
                self._replace(ref, epoch, extents, _overlay(extents, extent))
                return
        if packed is None:
            self._store(ref, _EPOCH.pack(epoch) + _ROW.pack(*extent))
        else:
            assert ledgers is not None
            ledgers[ledger_id] = packed + _ROW.pack(*extent)
        self._count(extent, 1)

    def covers(self, ref: LedgerRef, epoch: int, extent: Extent) -> bool:
        """Whether all of these positions of a ledger lie somewhere."""
        entry = self.get(ref)
        if entry is None or entry.epoch != epoch:
            return False
        at = extent.position
        for known in entry.extents:
            if known.position <= at < known.end:
                at = known.end
        return at >= extent.end

    def move(self, ref: LedgerRef, old: Extent, new: Extent) -> bool:
        """Let an extent lie elsewhere, if it is still as it was."""
        entry = self.get(ref)
        extents = [] if entry is None else entry.extents
        if entry is None or old not in extents:
            return False
        changed = [new if extent == old else extent for extent in extents]
        self._replace(ref, entry.epoch, extents, changed)
        return True

    def cut(self, ref: LedgerRef, position: int) -> None:
        """Forget everything from a position on."""
        entry = self.get(ref)
        if entry is None or entry.end <= position:
            return
        extents = entry.extents
        kept = [
            extent._replace(length=min(extent.length, position - extent.position))
            for extent in extents
            if extent.position < position
        ]
        self._replace(ref, entry.epoch, extents, kept)

    def drop(self, ref: LedgerRef) -> None:
        self.cut(ref, 0)

    def drop_topic(self, topic_id: int) -> None:
        for ledger_id in list(self._topics.get(topic_id, ())):
            self.drop(LedgerRef(topic_id, ledger_id))

    def extents_in(self, file: int) -> list[tuple[LedgerRef, Extent]]:
        """What lies in a file, in order of offset. Looks at every ledger."""
        found = [
            (LedgerRef(topic_id, ledger_id), extent)
            for topic_id, ledgers in self._topics.items()
            for ledger_id, packed in ledgers.items()
            for extent in Entry(packed).extents
            if extent.file == file
        ]
        return sorted(found, key=lambda item: item[1].offset)

    def check(self) -> None:
        """Assert the invariants."""
        live: dict[int, int] = {}
        for ref in self.refs():
            entry = self.get(ref)
            assert entry is not None
            assert len(entry) > 0
            end = 0
            for extent in entry.extents:
                assert extent.length > 0
                assert extent.position >= end
                end = extent.end
                live[extent.file] = live.get(extent.file, 0) + _cost(extent)
        assert live == self.live_bytes

    def _replace(
        self, ref: LedgerRef, epoch: int, old: Sequence[Extent], new: Sequence[Extent]
    ) -> None:
        for extent in old:
            self._count(extent, -1)
        for extent in new:
            self._count(extent, 1)
        if new:
            self._store(ref, b"".join([_EPOCH.pack(epoch), *(_ROW.pack(*e) for e in new)]))
            return
        ledgers = self._topics[ref.topic_id]
        del ledgers[ref.ledger_id]
        if not ledgers:
            del self._topics[ref.topic_id]

    def _store(self, ref: LedgerRef, packed: bytes) -> None:
        ledgers = self._topics.get(ref.topic_id)
        if ledgers is None:
            self._topics[ref.topic_id] = {ref.ledger_id: packed}
        else:
            ledgers[ref.ledger_id] = packed

    def _count(self, extent: Extent, sign: int) -> None:
        live = self.live_bytes.get(extent.file, 0) + sign * _cost(extent)
        if live:
            self.live_bytes[extent.file] = live
        else:
            self.live_bytes.pop(extent.file, None)


def _unpack_ends(packed: bytes) -> tuple[int, int, int]:
    """The epoch, and position and length of the last extent."""
    position, length, _, _ = _ROW.unpack_from(packed, len(packed) - _ROW.size)
    return _EPOCH.unpack_from(packed)[0], position, length


def _cost(extent: Extent) -> int:
    return extent.length + FRAME_HEADER_BYTES


def _overlay(extents: Sequence[Extent], new: Extent) -> list[Extent]:
    """The extents with a new one on top of them: what it covers goes, what juts out stays."""
    return sorted([new, *(piece for extent in extents for piece in _outside(extent, new))])


def _outside(extent: Extent, new: Extent) -> Iterator[Extent]:
    if extent.position < new.position:
        yield extent._replace(length=min(extent.end, new.position) - extent.position)
    if extent.end > new.end:
        skipped = max(0, new.end - extent.position)
        yield Extent(
            extent.position + skipped,
            extent.length - skipped,
            extent.file,
            extent.offset + skipped,
        )
