"""The book of consumers by number, also after a restart: a client that reconnects gives nothing but its number.

One line of JSON for each consumer that subscribed, appended and synced before its client is answered; the last line of
a number holds. What cannot be read, at the end after a crash or anywhere, is passed over: whoever is forgotten must
subscribe again, and nothing else is lost. The file is written anew at a start, and when most of it is outdated.
Invariant: at most KNOWN_CONSUMERS_MAX are known; the one that subscribed longest ago goes first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.edge.grpc.bounds import KNOWN_CONSUMERS_MAX
from danubius.errors import DanubiusError, StorageFailed
from danubius.model.subscription import SubscriptionType
from danubius.runtime.answers import answer_of
from danubius.runtime.threads import Worker

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from danubius.runtime.files import File, Files
    from danubius.runtime.threads import Spawn, WorkerPort

FILE_NAME: Final = "grpc-consumers.jsonl"
DAMAGED_SUFFIX: Final = ".damaged"
"""The file as it was found, if some of it cannot be read: a start deletes nothing."""
REWRITE_LINES_MIN: Final = 1_000
"""A shorter file is not worth it."""

log = logging.getLogger(__name__)


class Known(msgspec.Struct, frozen=True, gc=False):
    """One consumer: everything that attaching it again needs."""

    number: int
    topic: str
    subscription: str
    consumer: str
    type: SubscriptionType
    key_filters: tuple[str, ...] = ()


class _Write(msgspec.Struct, frozen=True):
    """Lines on their way to disk; `is_whole`: instead of all that was there."""

    data: bytes
    is_whole: bool
    on_done: Callable[[DanubiusError | None], None]


_decoder: Final = msgspec.json.Decoder(Known)
_encode: Final = msgspec.json.Encoder().encode


class ConsumerBook:
    """All consumers that may come back."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        spawn: Spawn = Worker,
    ) -> None:
        self._path = folder / FILE_NAME
        self._files = files
        self._loop = loop
        self._known: dict[int, Known] = {}
        self._file: File | None = None
        self._size = 0
        self._lines = 0
        """In the file."""
        self._worker: WorkerPort[_Write] = spawn(
            "danubius-grpc-book", self._write, on_crash=self._crashed
        )

    def __len__(self) -> int:
        return len(self._known)

    def open(self) -> None:
        """Read what there is. Blocks; nobody is served yet."""
        if self._files.exists(self._path):
            self._read(self._files.read_bytes(self._path))
        self._lines = len(self._known)
        data = self._whole()
        self._files.write_atomic(self._path, data)
        self._file, self._size = self._files.open(self._path), len(data)
        self._worker.start()

    def _read(self, content: bytes) -> None:
        forgotten = 0
        for line in content.splitlines():
            try:
                self._keep(_decoder.decode(line))
            except msgspec.MsgspecError:
                forgotten += 1
        if forgotten:
            kept = self._path.with_name(FILE_NAME + DAMAGED_SUFFIX)
            self._files.write_atomic(kept, content)
            log.warning(
                "consumers of Danube clients cannot be read and are forgotten",
                extra={"count": forgotten, "path": str(self._path), "kept_as": str(kept)},
            )

    def close(self) -> None:
        """Write what is under way."""
        self._worker.stop()
        if self._file is not None:
            self._file.close()

    def find(self, number: int) -> Known | None:
        return self._known.get(number)

    async def keep(self, known: Known) -> None:
        """Remember a consumer; returns once that is durable."""
        if self._known.get(known.number) == known:
            return
        try:
            await answer_of(lambda written: self._begin_write(known, written))
        except DanubiusError:
            self.forget(known.number)
            raise

    def _begin_write(self, known: Known, on_done: Callable[[DanubiusError | None], None]) -> None:
        self._keep(known)
        self._lines += 1
        if self._lines > max(REWRITE_LINES_MIN, 2 * len(self._known)):
            self._lines = len(self._known)
            self._worker.put(_Write(self._whole(), True, on_done))
        else:
            self._worker.put(_Write(_encode(known) + b"\n", False, on_done))

    def forget(self, number: int) -> None:
        """It cannot come back. The file learns of it when it is written anew."""
        self._known.pop(number, None)

    def _keep(self, known: Known) -> None:
        self._known.pop(known.number, None)
        self._known[known.number] = known
        if len(self._known) > KNOWN_CONSUMERS_MAX:
            del self._known[next(iter(self._known))]

    def _whole(self) -> bytes:
        return b"".join(_encode(known) + b"\n" for known in self._known.values())

    # ------------------------------------------------------------ on the thread

    def _write(self, writes: list[_Write], _now_ns: int) -> None:
        error: DanubiusError | None = None
        try:
            for write in writes:
                self._put(write)
            if self._file is not None and writes:
                self._file.datasync()
        except DanubiusError as failure:
            error = failure
        for write in writes:
            self._loop.call_soon_threadsafe(write.on_done, error)

    def _put(self, write: _Write) -> None:
        assert self._file is not None
        if write.is_whole:
            self._files.write_atomic(self._path, write.data)
            self._file.close()
            self._file, self._size = self._files.open(self._path), len(write.data)
        else:
            self._file.pwritev([write.data], self._size)
            self._size += len(write.data)

    def _crashed(self, writes: list[_Write], crash: BaseException) -> None:
        for write in writes:
            error = StorageFailed(f"the thread that keeps consumers ended: {crash}")
            self._loop.call_soon_threadsafe(write.on_done, error)
