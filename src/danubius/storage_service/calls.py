"""The calls of the storage service, one method each: what a request says is checked here, and then done.

Nothing of gRPC is known here. A method gets its request and the seconds that are left; it raises InvalidArgument for
what makes no sense, and lets through what the stores raise.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final

from danubius.errors import DanubiusError, InvalidArgument, Overloaded
from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.ledger.store import Append
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import FILE_HEADER_BYTES, INDEX_ROW_BYTES, decode_header
from danubius.storage_service import messages
from danubius.storage_service.bounds import (
    APPENDS_MAX,
    DATA_BYTES_MAX,
    KNOWN_MAX,
    READ_BYTES_MAX,
    READERS_MAX,
    REFS_PER_MESSAGE,
)
from danubius.storage_service.claims import CLAIM_TOPIC, Claim
from danubius.storage_service.stores import Stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.ledger.store import LedgerStore
    from danubius.record.ledger_file import LedgerHeader
    from danubius.storage_service.figures import Figures
    from danubius.storage_service.stores import Stores

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_POSITION_MAX: Final = 1 << 62


class DamagedOnTheWay(Exception):
    """Data do not have the checksum that came with them."""


# ruff: noqa: N802  # methods are called as in the proto
class Calls:
    """What the service does, over the stores."""

    def __init__(self, stores: Stores, figures: Figures) -> None:
        self._stores = stores
        self._figures = figures
        self._readers = threading.BoundedSemaphore(READERS_MAX)

    # ------------------------------------------------------------ writing

    def Fence(self, request: Any, left_s: float) -> Any:
        stamp = _stamp(request.writer)
        if request.is_known and not self._stores.is_claimed(stamp.store, left_s):
            return messages.FenceResponse()
        written = self._stores.write(stamp, lambda _: None, left_s)
        return messages.FenceResponse(life=written.life, previous_epoch=written.previous_epoch)

    def Append(self, request: Any, left_s: float) -> Any:
        stamp = _stamp(request.writer)
        if len(request.appends) > APPENDS_MAX:
            raise InvalidArgument(
                f"{len(request.appends)} appends in one call; at most {APPENDS_MAX} are allowed"
            )
        appends = [_append(each) for each in request.appends]
        self._figures.wrote(sum(append.size for append in appends))
        return self._write(stamp, lambda store: store.append_many(appends), left_s)

    def AppendIndex(self, request: Any, left_s: float) -> Any:
        stamp, ref = _stamp(request.writer), _ref(request)
        header = _header(request.header)
        rows: bytes = request.rows
        if not rows or len(rows) % INDEX_ROW_BYTES:
            raise InvalidArgument(
                f"{len(rows)} bytes are not a whole number of rows of {INDEX_ROW_BYTES}"
            )
        at_row = _position(request.at_row)
        _prove(rows, request.crc32c)
        self._figures.wrote(len(rows))
        return self._write(
            stamp, lambda store: store.append_index(ref, header, at_row, rows), left_s
        )

    def Sync(self, request: Any, left_s: float) -> Any:
        refs = [_checked_ref(ref) for ref in request.refs]
        return messages.WriteResponse(
            life=self._stores.sync(_stamp(request.writer), refs, left_s).life
        )

    def Seal(self, request: Any, left_s: float) -> Any:
        ref = _ref(request)
        return self._write(_stamp(request.writer), lambda store: store.seal(ref), left_s)

    def Truncate(self, request: Any, left_s: float) -> Any:
        ref, data_bytes, rows = _ref(request), request.data_bytes, request.index_rows
        _position(data_bytes)
        _position(rows)
        return self._write(
            _stamp(request.writer), lambda store: store.truncate(ref, data_bytes, rows), left_s
        )

    def Recover(self, requests: Iterator[Any], left_s: float) -> Any:
        stamp: Stamp | None = None
        known: dict[LedgerRef, LedgerMeta] = {}
        for request in requests:
            if stamp is None:
                stamp = _stamp(request.writer)
            known.update(map(_known, request.known))
            if len(known) > KNOWN_MAX:
                raise InvalidArgument(f"more than {KNOWN_MAX} ledgers")
        if stamp is None:
            raise InvalidArgument("the stream is empty: its first message has the writer")
        return self._write(stamp, lambda store: store.recover(known), left_s)

    def Delete(self, request: Any, left_s: float) -> Any:
        ref = _ref(request)
        return self._write(_stamp(request.writer), lambda store: store.delete(ref), left_s)

    def DeleteTopic(self, request: Any, left_s: float) -> Any:
        topic_id = _topic(request.topic_id)
        return self._write(
            _stamp(request.writer), lambda store: store.delete_topic(topic_id), left_s
        )

    def _write(self, stamp: Stamp, work: Callable[[LedgerStore], None], left_s: float) -> Any:
        return messages.WriteResponse(life=self._stores.write(stamp, work, left_s).life)

    # ------------------------------------------------------------ reading

    def Read(self, request: Any, left_s: float) -> Iterator[Any]:
        ref, at, count = _ref(request), _position(request.at), request.count
        if count > READ_BYTES_MAX:
            raise InvalidArgument(
                f"{count} bytes in one read; at most {READ_BYTES_MAX} are allowed"
            )
        store = self._stores.reading(_name(request.store), left_s)
        if store is not None:
            yield from self._pieces(
                lambda done, size: store.read(ref, at + done, size), count, DATA_BYTES_MAX
            )

    def ReadIndex(self, request: Any, left_s: float) -> Iterator[Any]:
        ref, at_row = _ref(request), _position(request.at_row)
        count = request.rows * INDEX_ROW_BYTES
        if count > READ_BYTES_MAX:
            raise InvalidArgument(
                f"{request.rows} rows in one read; at most {READ_BYTES_MAX // INDEX_ROW_BYTES} are allowed"
            )
        store = self._stores.reading(_name(request.store), left_s)
        row = INDEX_ROW_BYTES
        if store is not None:
            yield from self._pieces(
                lambda done, size: store.read_index(ref, at_row + done // row, size // row),
                count,
                DATA_BYTES_MAX // row * row,
            )

    def List(self, request: Any, left_s: float) -> Iterator[Any]:
        refs = self._stores.list(_name(request.store), left_s)
        for at in range(0, len(refs), REFS_PER_MESSAGE):
            answer = messages.ListResponse()
            for ref in refs[at : at + REFS_PER_MESSAGE]:
                answer.refs.add(topic_id=ref.topic_id, ledger_id=ref.ledger_id)
            yield answer

    def _pieces(
        self, read: Callable[[int, int], bytes], count: int, piece_bytes: int
    ) -> Iterator[Any]:
        """What is read from `done` on, piece by piece, until one is short."""
        if not self._readers.acquire(blocking=False):
            raise Overloaded(f"{READERS_MAX} reads are under way; try again")
        try:
            done = 0
            while done < count:
                size = min(piece_bytes, count - done)
                data = read(done, size)
                if data:
                    self._figures.read(len(data))
                    yield messages.Piece(data=data, crc32c=crc32c(data))
                if len(data) < size:
                    return
                done += size
        finally:
            self._readers.release()


# ---------------------------------------------------------------- what requests say


def _name(store: str) -> str:
    if not _NAME.fullmatch(store):
        raise InvalidArgument(
            f"{store[:80]!r} is no name of a store: 1 to 64 of a-z, 0-9 and `-`, the first one no `-`"
        )
    return store


def _stamp(writer: Any) -> Stamp:
    name = _name(writer.store)
    for field in ("epoch", "process", "call"):
        if not getattr(writer, field):
            raise InvalidArgument(f"the writer has no {field}")
    return Stamp(name, Claim(writer.epoch, writer.process), writer.call)


def _topic(topic_id: int) -> int:
    if topic_id == CLAIM_TOPIC:
        raise InvalidArgument(f"the topic id {topic_id} is reserved")
    return topic_id


def _checked_ref(ref: Any) -> LedgerRef:
    return LedgerRef(_topic(ref.topic_id), ref.ledger_id)


def _ref(request: Any) -> LedgerRef:
    if not request.HasField("ref"):
        raise InvalidArgument("the request names no ledger: `ref` is missing")
    return _checked_ref(request.ref)


def _position(value: int) -> int:
    if value > _POSITION_MAX:
        raise InvalidArgument(f"no ledger has a position {value}")
    return value


def _prove(data: bytes, crc: int) -> None:
    if crc32c(data) != crc:
        raise DamagedOnTheWay(f"{len(data)} bytes fail their checksum; send them again")


def _header(data: bytes) -> LedgerHeader:
    if len(data) != FILE_HEADER_BYTES:
        raise InvalidArgument(f"a ledger's header has {FILE_HEADER_BYTES} bytes, not {len(data)}")
    try:
        return decode_header(data)
    except DanubiusError as error:
        raise InvalidArgument(f"this is no ledger's header: {error.message}") from error


def _append(append: Any) -> Append:
    ref, at, data = _ref(append), _position(append.at), append.data
    _prove(data, append.crc32c)
    if not append.create:
        return Append(ref, None, at, [data], len(data))
    if at:
        raise InvalidArgument(f"a ledger is made from position 0 on, not from {at}")
    header = _header(data[:FILE_HEADER_BYTES])
    rest = memoryview(data)[FILE_HEADER_BYTES:]
    return Append(ref, header, 0, [rest] if rest else [], len(rest))


def _known(known: Any) -> tuple[LedgerRef, LedgerMeta]:
    ref = _ref(known)
    return ref, LedgerMeta(
        ledger_id=ref.ledger_id,
        epoch=known.epoch,
        base_offset=known.base_offset,
        end_offset=known.end_offset,
        data_bytes=known.data_bytes,
        index_entries=known.index_rows,
        first_time_us=0,
        last_time_us=0,
        created_ms=0,
        is_sealed=known.is_sealed,
    )
