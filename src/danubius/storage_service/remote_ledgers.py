"""Ledgers on a storage server: the LedgerStore port over gRPC.

Invariants:
- Every call ends within its deadline, repetitions included. What fails for now is repeated a few times: positions are
  explicit, and each repetition of a writing call has a number of its own, so that one which was given up is refused by
  the server if it comes late.
- `sync` succeeds only if everything since the last good one went to a server that still vouches for it (one `life`);
  otherwise it fails as a disk's would, and the caller writes again.
- Failures are StorageFull or StorageFailed; each says which server, and why.
- Writing methods may be called by any thread, one at a time goes on the wire. Reading ones share nothing.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import grpc

from danubius.errors import BrokerReplaced, InvalidArgument, StorageFailed, StorageFull
from danubius.ledger.entry import LedgerRef
from danubius.ledger.store import Append
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import encode_header
from danubius.redaction import redact_address
from danubius.storage_service import messages
from danubius.storage_service.bounds import (
    APPENDS_MAX,
    ATTEMPTS_MAX,
    DATA_BYTES_MAX,
    DEADLINE_SECONDS,
    KEEPALIVE_MS,
    KNOWN_PER_MESSAGE,
    MESSAGE_BYTES_MAX,
    READ_BYTES_MAX,
    RECONNECT_MS_MAX,
    RETRY_FIRST_SECONDS,
    SLOW_DEADLINE_SECONDS,
    SYNCED_PER_MESSAGE,
)
from danubius.storage_service.messages import SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from danubius.ledger.entry import LedgerMeta
    from danubius.model.buffers import Buffer
    from danubius.record.ledger_file import LedgerHeader

log = logging.getLogger(__name__)

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.enable_retries", 0),  # repetitions need numbers of their own
    ("grpc.use_local_subchannel_pool", 1),  # each store has a connection of its own
]
_Code = grpc.StatusCode
_REPEATED: Final = {_Code.UNAVAILABLE, _Code.CANCELLED, _Code.DATA_LOSS}
_Answer = TypeVar("_Answer")


class _Damaged(Exception):
    """An answer fails its checksum, or is longer than what was asked for."""


def parse_address(url: str) -> str:
    """`grpc://host:port` or `host:port`, as gRPC dials it."""
    address = url.removeprefix("grpc://").rstrip("/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in address:
        raise InvalidArgument(
            f"{redact_address(url)!r} is no address of a storage server; write it as grpc://host:port"
        )
    return address


class RemoteLedgerStore:
    """The ledgers of one broker, on a server. Dials when it is first needed."""

    def __init__(  # noqa: PLR0913  # three are bounds of time
        self,
        url: str,
        store: str,
        epoch: int,
        *,
        process: int | None = None,
        deadline_s: float = DEADLINE_SECONDS,
        slow_deadline_s: float = SLOW_DEADLINE_SECONDS,
        retry_s: float = RETRY_FIRST_SECONDS,
    ) -> None:
        self._address = parse_address(url)
        self._store = store
        self._epoch = epoch
        self._process = process or secrets.randbits(64) | 1
        self._deadline_s = deadline_s
        self._retry_s = retry_s
        self._slow_deadline_s = max(deadline_s, slow_deadline_s)
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()
        self._lives: set[int] = set()
        """Of the server, in answers to what was written since the last good sync."""
        self._closing = threading.Event()
        self._channel = grpc.insecure_channel(self._address, options=_OPTIONS)
        self._methods = {method.name: self._method(method) for method in SERVICE.methods}

    def _method(self, method: Any) -> Any:
        make = (
            self._channel.unary_stream
            if method.server_streaming
            else self._channel.stream_unary
            if method.client_streaming
            else self._channel.unary_unary
        )
        request = messages.GetMessageClass(method.input_type)
        answer = messages.GetMessageClass(method.output_type)
        return make(
            f"/{SERVICE.full_name}/{method.name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )

    # ------------------------------------------------------------ writing

    def claim(self, *, is_known: bool = False) -> int:
        """Shut out earlier writers; returns the highest epoch before, 0 for a new store.

        `is_known`: it was claimed before; one that nobody has claimed is not taken then, and the answer is 0.
        Waits for a server that is not there yet. Raises BrokerReplaced where a later start has the store.
        """
        request = messages.FenceRequest(is_known=is_known)
        call = self._methods["Fence"]

        def attempt(left_s: float) -> Any:
            request.writer.CopyFrom(self._writer())
            try:
                return call(request, timeout=left_s, wait_for_ready=True)
            except grpc.RpcError as error:
                refusal = cast("grpc.Call", error)
                if refusal.code() is _Code.ABORTED:
                    raise BrokerReplaced(
                        f"the storage server {self._address}: {refusal.details()}: the data directory is an old copy"
                    ) from error
                raise

        with self._writing:
            return self._repeat(attempt, self._deadline_s).previous_epoch

    def create(self, ref: LedgerRef, header: LedgerHeader, buffers: Sequence[Buffer] = ()) -> None:
        self.append_many([Append(ref, header, 0, buffers, sum(map(len, buffers)))])

    def append(self, ref: LedgerRef, at: int, buffers: Sequence[Buffer]) -> None:
        self.append_many([Append(ref, None, at, buffers, sum(map(len, buffers)))])

    def append_many(self, appends: Sequence[Append]) -> None:
        request = messages.AppendRequest()
        size = 0
        for piece in _pieces(appends):
            length = len(piece["data"])
            is_full = size + length > DATA_BYTES_MAX or len(request.appends) >= APPENDS_MAX
            if is_full and request.appends:
                self._lives.add(self._write("Append", request))
                request, size = messages.AppendRequest(), 0
            request.appends.add(**piece)  # the data are copied once
            size += length
        if request.appends:
            self._lives.add(self._write("Append", request))

    def append_index(self, ref: LedgerRef, header: LedgerHeader, at_row: int, rows: Buffer) -> None:
        data = bytes(rows)
        request = messages.AppendIndexRequest(
            ref=_ref(ref),
            header=encode_header(header),
            at_row=at_row,
            rows=data,
            crc32c=crc32c(data),
        )
        self._lives.add(self._write("AppendIndex", request))

    def sync(self, refs: Collection[LedgerRef]) -> None:
        names = list(map(_ref, refs))
        try:
            for at in range(0, max(len(names), 1), SYNCED_PER_MESSAGE):
                request = messages.SyncRequest(refs=names[at : at + SYNCED_PER_MESSAGE])
                self._lives.add(self._write("Sync", request, is_slow=True))
        finally:
            lives = len(self._lives)
            # Whatever becomes of it, what counts from now on is what is written from now on.
            self._lives.clear()
        if lives > 1:
            raise StorageFailed(
                f"the storage server {self._address} was restarted, or failed, before it had synced "
                "everything; that is written again"
            )

    def settle(self) -> None:
        """The server does that by itself, and says by another life if it failed."""

    def tidy(self) -> None:
        """As `settle`."""

    def seal(self, ref: LedgerRef) -> None:
        self._write("Seal", messages.SealRequest(ref=_ref(ref)), is_slow=True)

    def truncate(self, ref: LedgerRef, data_bytes: int, index_rows: int) -> None:
        self._write(
            "Truncate",
            messages.TruncateRequest(ref=_ref(ref), data_bytes=data_bytes, index_rows=index_rows),
        )

    def recover(self, known: Mapping[LedgerRef, LedgerMeta]) -> None:
        call = self._methods["Recover"]

        def attempt(left_s: float) -> Any:
            return call(_recovering(self._writer(), known), timeout=left_s)

        with self._writing:
            self._repeat(attempt, self._slow_deadline_s)

    def delete(self, ref: LedgerRef) -> None:
        self._write("Delete", messages.DeleteRequest(ref=_ref(ref)))

    def delete_topic(self, topic_id: int) -> None:
        self._write("DeleteTopic", messages.DeleteTopicRequest(topic_id=topic_id), is_slow=True)

    def _write(self, name: str, request: Any, *, is_slow: bool = False) -> int:
        """Call a writing method; the server's life."""
        call = self._methods[name]

        def attempt(left_s: float) -> Any:
            request.writer.CopyFrom(self._writer())
            return call(request, timeout=left_s)

        with self._writing:
            seconds = self._slow_deadline_s if is_slow else self._deadline_s
            return self._repeat(attempt, seconds).life

    def _writer(self) -> Any:
        return messages.Writer(
            store=self._store, epoch=self._epoch, process=self._process, call=next(self._numbers)
        )

    # ------------------------------------------------------------ reading

    def read(self, ref: LedgerRef, at: int, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0:
            size = min(count, READ_BYTES_MAX)
            request = messages.ReadRequest(store=self._store, ref=_ref(ref), at=at, count=size)
            data = self._read("Read", request, size)
            parts.append(data)
            if len(data) < size:
                break
            at, count = at + size, count - size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_index(self, ref: LedgerRef, at_row: int, count: int) -> bytes:
        rows = min(count, READ_BYTES_MAX // 64)
        request = messages.ReadIndexRequest(
            store=self._store, ref=_ref(ref), at_row=at_row, rows=rows
        )
        return self._read("ReadIndex", request, READ_BYTES_MAX)

    def list(self) -> list[LedgerRef]:
        call = self._methods["List"]

        def attempt(left_s: float) -> list[LedgerRef]:
            answers: Iterator[Any] = call(messages.ListRequest(store=self._store), timeout=left_s)
            return [
                LedgerRef(ref.topic_id, ref.ledger_id) for answer in answers for ref in answer.refs
            ]

        return self._repeat(attempt, self._slow_deadline_s)

    def _read(self, name: str, request: Any, size_max: int) -> bytes:
        call = self._methods[name]

        def attempt(left_s: float) -> bytes:
            parts: list[bytes] = []
            size = 0
            answers: Any = call(request, timeout=left_s)
            for piece in answers:
                data: bytes = piece.data
                size += len(data)
                if crc32c(data) != piece.crc32c or size > size_max:
                    answers.cancel()
                    raise _Damaged
                parts.append(data)
            return parts[0] if len(parts) == 1 else b"".join(parts)

        return self._repeat(attempt, self._deadline_s)

    def size_of(self, ref: LedgerRef) -> int:
        """Asked by halves: servers say how much they have only by what they read."""
        end = 1
        while self.read(ref, end - 1, 1):
            end *= 2
        low, high = end // 2, end - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.read(ref, middle - 1, 1) else (low, middle - 1)
        return low

    def set_aside(self, ref: LedgerRef) -> str:
        """It stays on the server."""
        del ref
        return ""

    # ------------------------------------------------------------ calling

    def close(self) -> None:
        self._closing.set()
        self._channel.close()

    def _repeat(self, attempt: Callable[[float], _Answer], seconds: float) -> _Answer:
        """Try until it works, the deadline has come, or it makes no sense to go on."""
        limit = time.monotonic() + seconds
        wait_s = self._retry_s
        for number in itertools.count(1):
            try:
                return attempt(max(limit - time.monotonic(), 0.001))
            except grpc.RpcError as error:
                failure = self._translate(cast("grpc.Call", error), seconds)
                is_final = cast("grpc.Call", error).code() not in _REPEATED
            except _Damaged:
                failure = self._failed("its answer was damaged on the way")
                is_final = False
            except ValueError as error:  # what gRPC raises once the channel is closed
                raise self._failed("the connection was closed") from error
            is_late = time.monotonic() + wait_s >= limit
            if is_final or is_late or number >= ATTEMPTS_MAX or self._closing.wait(wait_s):
                raise failure
            wait_s *= 2
        raise AssertionError("unreachable")

    def _translate(self, error: grpc.Call, seconds: float) -> StorageFailed | StorageFull:
        code, details = error.code(), error.details() or "it gave no reason"
        if code is _Code.RESOURCE_EXHAUSTED:
            return StorageFull(f"the storage server {self._address} is full: {details}")
        if code is _Code.DEADLINE_EXCEEDED:
            return self._failed(f"no answer within {seconds:g} s")
        if code is _Code.UNAVAILABLE:
            return self._failed(f"it is not available: {details}")
        if code is _Code.ABORTED:
            return self._failed(f"this broker was fenced off: {details}")
        return self._failed(details)

    def _failed(self, reason: str) -> StorageFailed:
        return StorageFailed(f"the storage server {self._address}: {reason}")


def _ref(ref: LedgerRef) -> Any:
    return messages.Ref(topic_id=ref.topic_id, ledger_id=ref.ledger_id)


def _pieces(appends: Iterable[Append]) -> Iterator[dict[str, Any]]:
    """The fields of messages for all appends, none with more data than a call may have."""
    for ref, header, at, buffers, _ in appends:
        # The port does not say what `at` is where a ledger is made.
        start, at = ([], at) if header is None else ([encode_header(header)], 0)
        data = b"".join([*start, *buffers])
        where = _ref(ref)
        for done in range(0, max(len(data), 1), DATA_BYTES_MAX):
            part = data if len(data) <= DATA_BYTES_MAX else data[done : done + DATA_BYTES_MAX]
            yield {
                "ref": where,
                "create": header is not None and done == 0,
                "at": at + done,
                "data": part,
                "crc32c": crc32c(part),
            }


def _recovering(writer: Any, known: Mapping[LedgerRef, LedgerMeta]) -> Iterator[Any]:
    """Everything that is known, in messages of a bounded size; the first one has the writer."""
    request = messages.RecoverRequest(writer=writer)
    for ref, meta in known.items():
        if len(request.known) >= KNOWN_PER_MESSAGE:
            yield request
            request = messages.RecoverRequest()
        request.known.add(
            ref=_ref(ref),
            epoch=meta.epoch,
            base_offset=meta.base_offset,
            end_offset=meta.end_offset,
            data_bytes=meta.data_bytes,
            index_rows=meta.index_entries,
            is_sealed=meta.is_sealed,
        )
    yield request
