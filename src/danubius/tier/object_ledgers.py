"""Ledgers in an object store: the LedgerStore port over an ObjectStore, for brokers and storage servers without disks.

Every append is an object (`core/pieces.py`), stored when the call returns: `sync` has nothing left to do. All that is
known of a ledger is in the names of its pieces, so another process goes on where this one ended; what is in memory is a
cache of it. Only one process at a time may write a ledger; where that cannot be kept up (a broker without a disk that
was replaced, and does not know it yet), `epoch_max` keeps the older one from what the newer one made.

Pieces of sealed ledgers are joined by `tidy`, a few megabytes a step. A reader who looks for a piece that was joined
meanwhile asks for the names again.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import ObjectNotFound, StorageFailed, TierMisconfigured
from danubius.ledger.entry import LedgerRef
from danubius.model.limits import MIB
from danubius.record.ledger_file import INDEX_ROW_BYTES, encode_header
from danubius.runtime.parallel import Parallel
from danubius.runtime.threads import Lock
from danubius.tier.core.pieces import (
    DATA,
    INDEX,
    Life,
    Piece,
    PieceMap,
    folder_of,
    map_pieces,
    parse_piece,
    topic_folder,
)
from danubius.tier.objects import check_prefix

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

    from danubius.ledger.entry import LedgerMeta
    from danubius.ledger.store import Append
    from danubius.model.buffers import Buffer
    from danubius.record.ledger_file import LedgerHeader
    from danubius.tier.core.pieces import Extent
    from danubius.tier.objects import ObjectStore

JOIN_BYTES: Final = 8 * MIB
JOIN_PIECES_MAX: Final = 64
READ_LEDGERS_MAX: Final = 4096
"""Maps of ledgers that nobody writes; that of another one is made from a listing of its pieces."""
READ_TRIES: Final = 8
CALLS_AT_ONCE: Final = 8


class _Known(NamedTuple):
    """A ledger as its pieces are named. Replaced as a whole, so that readers see one state."""

    life: Life
    number: int
    """The largest number in use."""
    data: PieceMap
    rows: PieceMap
    dead: frozenset[str] = frozenset()
    """Objects of other lives, and those that others cover."""

    def map(self, kind: str) -> PieceMap:
        return self.data if kind == DATA else self.rows

    def with_map(self, kind: str, pieces: PieceMap) -> _Known:
        return self._replace(data=pieces) if kind == DATA else self._replace(rows=pieces)


class ObjectLedgerStore:
    """A LedgerStore whose ledgers are named pieces below a prefix of an ObjectStore."""

    def __init__(
        self,
        objects: ObjectStore,
        prefix: str = "",
        *,
        epoch_max: int | None = None,
        read_ledgers_max: int = READ_LEDGERS_MAX,
        calls_at_once: int = CALLS_AT_ONCE,
        join_bytes: int = JOIN_BYTES,
    ) -> None:
        self._pieces = _Pieces(objects, prefix, epoch_max)
        self._written: dict[LedgerRef, _Known] = {}
        """Ledgers that this process writes: it alone knows what a listing may not show yet."""
        self._read: OrderedDict[LedgerRef, _Known] = OrderedDict()
        """Others, the last read ones."""
        self._read_max = read_ledgers_max
        self._lock = Lock()
        """Around these two, which readers share with the writer."""
        self._unjoined: deque[LedgerRef] = deque()
        """Sealed ledgers whose pieces are to be joined: no more than there are ledgers."""
        self._epochs: dict[LedgerRef, int] = {}
        """Of the ledgers that the snapshot named: what others wrote under these names does not count."""
        self._join_bytes = join_bytes
        self._parallel = Parallel("danubius-pieces", calls_at_once)

    # ------------------------------------------------------------ writing

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        found = self._pieces.below(folder_of(*ref))
        life = Life(header.epoch, 0)
        last = max((piece.life for piece, _ in found), default=None)
        if last is not None and last >= life:
            if last.epoch == life.epoch:
                life = Life(last.epoch, last.attempt + 1)
            else:
                # Left by an epoch that was undone, and it would count for more than this one.
                self.delete(ref)
                found = []
        parts = [encode_header(header), *buffers]
        piece = Piece(*ref, life, 0, DATA, 0)
        self._pieces.put(piece, parts)
        self._epochs.pop(ref, None)
        data = PieceMap().overlay(piece, sum(map(len, parts)))
        self._remember(ref, _Known(life, 0, data, PieceMap()))
        self._pieces.drop(old.name for old, _ in found)

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self._write(ref, DATA, at, buffers)

    def append_many(self, appends: Sequence[Append]) -> None:
        # Those of one ledger come one after the other; ledgers do not wait for each other.
        by_ledger: dict[LedgerRef, list[Append]] = {}
        for append in appends:
            by_ledger.setdefault(append.ref, []).append(append)
        self._parallel.run(self._append_all, list(by_ledger.values()))

    def _append_all(self, appends: Sequence[Append]) -> None:
        for ref, header, at, buffers, _ in appends:
            if header is None:
                self.append(ref, at, buffers)
            else:
                self.create(ref, header, buffers)

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        del header  # rows are proven by themselves
        self._write(ref, INDEX, at_row * INDEX_ROW_BYTES, [rows])

    def _write(self, ref: LedgerRef, kind: str, at: int, buffers: Sequence[Buffer]) -> None:
        known = self._writable(ref)
        size = sum(map(len, buffers))
        if at > known.map(kind).end:
            raise StorageFailed(f"there is nothing before position {at} of the ledger {ref}")
        if size:
            self._add(ref, known, kind, at, buffers)

    def _add(
        self, ref: LedgerRef, known: _Known, kind: str, at: int, buffers: Sequence[Buffer]
    ) -> _Known:
        # The number is used up even if the answer is lost: the object may be there.
        known = known._replace(number=known.number + 1)
        self._remember(ref, known)
        piece = Piece(*ref, known.life, known.number, kind, at)
        self._pieces.put(piece, buffers)
        pieces = known.map(kind).overlay(piece, sum(map(len, buffers)))
        known = known.with_map(kind, pieces)
        self._remember(ref, known)
        return known

    # ------------------------------------------------------------ reading

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        return self._read_kind(ref, DATA, at, count)

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        return self._read_kind(ref, INDEX, at_row * INDEX_ROW_BYTES, count * INDEX_ROW_BYTES)

    def _read_kind(self, ref: LedgerRef, kind: str, at: int, count: int) -> bytes:
        for number in range(READ_TRIES):
            known, is_certain = self._readable(ref)
            if known is None:
                return b""
            # A map that was cached may be of before the last writes.
            may_be_stale = not is_certain and number == 0
            with contextlib.suppress(ObjectNotFound):  # joined or deleted meanwhile
                data = self._pieces.fetch(known.map(kind).find(at, at + count))
                if len(data) == count or not may_be_stale:
                    return data
            with self._lock:
                self._read.pop(ref, None)
        raise StorageFailed(f"pieces of the ledger {ref} vanish while they are read")

    # ------------------------------------------------------------ keeping

    def size_of(self, ref: LedgerRef) -> int:
        known, _ = self._readable(ref)
        return 0 if known is None else known.data.end

    def set_aside(self, ref: LedgerRef) -> str:
        """Objects cannot be renamed."""
        del ref
        return ""

    def sync(self, refs: Collection[LedgerRef]) -> None:
        for ref in refs:
            self._writable(ref)

    def settle(self) -> None:
        pass

    def seal(self, ref: LedgerRef) -> None:
        self._release(ref)
        self._unjoined.append(ref)

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        known = self._look(ref)
        if known is None:
            return
        for kind, end in ((DATA, data_bytes), (INDEX, index_rows * INDEX_ROW_BYTES)):
            known = self._cut(ref, known, kind, end)
        with self._lock:
            self._written.pop(ref, None)
            self._read.pop(ref, None)

    def _cut(self, ref: LedgerRef, known: _Known, kind: str, end: int) -> _Known:
        before = known.map(kind)
        kept = before.cut(end)
        known = known.with_map(kind, kept)
        for extent in kept.extents:
            if extent.stop > end:
                # What it has behind the end would be seen again: what is kept of it is written anew.
                head = self._pieces.fetch([extent])
                if len(head) != extent.end - extent.start:
                    raise StorageFailed(f"pieces of the ledger {ref} are shorter than they were")
                known = self._add(ref, known, kind, extent.start, [head])
        stale = before.names() | {name for name in known.dead if _kind(name) == kind}
        self._pieces.delete(stale - known.map(kind).names())
        return known

    def recover(self, known: Mapping[LedgerRef, LedgerMeta]) -> None:
        with self._lock:
            self._epochs = {ref: meta.epoch for ref, meta in known.items()}
            self._written.clear()
            self._read.clear()
        self._unjoined = deque(known)

    def tidy(self) -> None:
        """Remove what is dead of one sealed ledger, or join some of its pieces. What fails is tried again later."""
        if not self._unjoined:
            return
        ref = self._unjoined.popleft()
        with contextlib.suppress(StorageFailed, ObjectNotFound):
            if self._tidy_one(ref):
                self._unjoined.appendleft(ref)
            return
        self._unjoined.append(ref)

    def _tidy_one(self, ref: LedgerRef) -> bool:
        """Whether there may be more to do."""
        known = self._look(ref)
        if known is None:
            return False
        self._pieces.delete(known.dead)
        for kind in (DATA, INDEX):
            run = known.map(kind).joinable(self._join_bytes, JOIN_PIECES_MAX)
            if run:
                data = self._pieces.fetch(run)
                if len(data) != run[-1].end - run[0].start:
                    raise StorageFailed(f"pieces of the ledger {ref} are shorter than they were")
                before = known.map(kind).names()
                known = self._add(ref, known, kind, run[0].start, [data])
                self._release(ref)
                self._pieces.delete(before - known.map(kind).names())
                return True
        return False

    def delete(self, ref: LedgerRef) -> None:
        self._delete_below(folder_of(*ref), {ref})

    def delete_topic(self, topic_id: int) -> None:
        with self._lock:
            refs = {*self._epochs, *self._written, *self._read}
        own = {ref for ref in refs if ref.topic_id == topic_id}
        self._delete_below(topic_folder(topic_id), own)

    def _delete_below(self, folder: str, refs: Collection[LedgerRef]) -> None:
        # Before, so that readers look for what is left; and after, for what they saw meanwhile.
        self._forget(refs)
        self._pieces.delete_below(folder)
        self._forget(refs)

    def _forget(self, refs: Collection[LedgerRef]) -> None:
        with self._lock:
            for ref in refs:
                self._epochs.pop(ref, None)
                self._written.pop(ref, None)
                self._read.pop(ref, None)

    def list(self) -> list[LedgerRef]:
        return sorted({LedgerRef(*piece[:2]) for piece, _ in self._pieces.below("")})

    def close(self) -> None:
        self._parallel.close()

    # ------------------------------------------------------------ what is known

    def _writable(self, ref: LedgerRef) -> _Known:
        known = self._written.get(ref)
        if known is None:
            known = self._look(ref)
            if known is None:
                raise StorageFailed(f"there is no ledger {ref}")
        return known

    def _readable(self, ref: LedgerRef) -> tuple[_Known | None, bool]:
        """What is known of a ledger, and whether it is certain that nobody knows more."""
        with self._lock:
            known = self._written.get(ref)
            if known is not None:
                return known, True
            known = self._read.get(ref)
            if known is not None:
                self._read.move_to_end(ref)
                return known, False
        known = self._look(ref)
        if known is not None:
            with self._lock:
                self._cache(ref, known)
        return known, False

    def _look(self, ref: LedgerRef) -> _Known | None:
        found = self._pieces.below(folder_of(*ref))
        epoch = self._epochs.get(ref)
        # A life begins with the piece at position 0; without one, its pieces were left by a deletion.
        life = max(
            (
                piece.life
                for piece, _ in found
                if piece.kind == DATA and piece.position == 0 and epoch in {None, piece.life.epoch}
            ),
            default=None,
        )
        if life is None:
            return None
        own = [(piece, size) for piece, size in found if piece.life == life]
        data = map_pieces((piece, size) for piece, size in own if piece.kind == DATA)
        rows = map_pieces((piece, size) for piece, size in own if piece.kind == INDEX)
        names = data.names() | rows.names()
        dead = frozenset(piece.name for piece, _ in found) - names
        return _Known(life, max(piece.number for piece, _ in own), data, rows, dead)

    def _remember(self, ref: LedgerRef, known: _Known) -> None:
        with self._lock:
            self._written[ref] = known

    def _release(self, ref: LedgerRef) -> None:
        """The writer is done with a ledger for now: readers get what it knows."""
        with self._lock:
            known = self._written.pop(ref, None)
            if known is not None:
                self._cache(ref, known)

    def _cache(self, ref: LedgerRef, known: _Known) -> None:
        self._read[ref] = known
        self._read.move_to_end(ref)
        while len(self._read) > self._read_max:
            self._read.popitem(last=False)


class _Pieces:
    """Objects of a store by their pieces. Failures are StorageFailed, as a LedgerStore's are, and ObjectNotFound."""

    def __init__(self, objects: ObjectStore, prefix: str, epoch_max: int | None) -> None:
        self._objects = objects
        self._prefix = check_prefix(prefix)
        self._epoch_max = epoch_max
        """Pieces of later epochs are those of a broker that has replaced this one: not seen, and so not deleted."""

    def put(self, piece: Piece, parts: Iterable[Buffer]) -> None:
        with _passing():
            self._objects.put(self._prefix + piece.name, parts, replace=True)

    def fetch(self, extents: Iterable[Extent]) -> bytes:
        """The bytes of adjacent parts of pieces, up to the first that is shorter than its name said."""
        found: list[bytes] = []
        for start, end, piece, _ in extents:
            with _passing():
                data = self._objects.get(
                    self._prefix + piece.name, start - piece.position, end - start
                )
            found.append(data)
            if len(data) < end - start:
                break
        return found[0] if len(found) == 1 else b"".join(found)

    def below(self, folder: str) -> list[tuple[Piece, int]]:
        """All pieces below a folder, with their sizes."""
        found: list[tuple[Piece, int]] = []
        with _passing():
            for info in self._objects.list(self._prefix + folder):
                piece = parse_piece(info.name.removeprefix(self._prefix))
                if piece is not None and self._is_ours(piece):
                    found.append((piece, info.size))
        return found

    def _is_ours(self, piece: Piece) -> bool:
        return self._epoch_max is None or piece.life.epoch <= self._epoch_max

    def delete(self, names: Iterable[str]) -> None:
        with _passing():
            for name in names:
                self._objects.delete(self._prefix + name)

    def drop(self, names: Iterable[str]) -> None:
        """Delete what nobody needs; what a failure leaves is found by a later listing."""
        with contextlib.suppress(StorageFailed):
            self.delete(names)

    def delete_below(self, folder: str) -> None:
        """Beginnings of ledgers last: what a crash leaves of a deletion is still a ledger, and is deleted again."""
        pieces = sorted(piece for piece, _ in self.below(folder))
        beginnings = [piece.name for piece in pieces if piece.kind == DATA and not piece.position]
        self.delete(piece.name for piece in pieces if piece.kind == INDEX or piece.position)
        self.delete(beginnings)


@contextlib.contextmanager
def _passing() -> Generator[None]:
    """Whoever writes ledgers tries again, whatever it is: somebody may set it right meanwhile."""
    try:
        yield
    except TierMisconfigured as error:
        raise StorageFailed(error.message) from error


def _kind(name: str) -> str:
    piece = parse_piece(name)
    return "" if piece is None else piece.kind
