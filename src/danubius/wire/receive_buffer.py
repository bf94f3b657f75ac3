"""The buffer in which received bytes wait to become frames.

Two places: one reused buffer for whatever comes, out of which small frames are copied; and, for a large payload,
memory of its own that the socket reads straight into. That memory has a little room at its end, so
that the same read also brings the next frame's header: a stream of large frames is never copied.

Invariants: bytes [start, end) of the reused buffer are received and not yet consumed; while a payload is
incomplete the reused buffer is empty; the buffer offered for reading is never empty. The reused buffer grows when
reads fill it and shrinks after a run of small ones, so that an idle connection costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.errors import InvariantViolation
from danubius.wire.memory import unfilled

if TYPE_CHECKING:
    from danubius.model.buffers import Buffer

CAPACITY_MIN: Final = 8 * 1024
CAPACITY_MAX: Final = 256 * 1024
"""How far reads alone make it grow. One frame's command may need more, for a while."""
DIRECT_BYTES_MIN: Final = 64 * 1024
"""Payloads of this size get memory of their own while they come in; smaller ones are cheaper to copy."""
_DIRECT_ROOM: Final = 256
"""Room behind a direct payload: the header and command of the next frame fit."""
_GROWTH: Final = 4
_SMALL_READS_MAX: Final = 16


class ReceiveBuffer:
    """Bytes of one connection between the socket and the parser."""

    __slots__ = (
        "_capacity",
        "_direct",
        "_direct_bytes",
        "_direct_filled",
        "_offered",
        "_small_reads",
        "_wanted",
        "end",
        "start",
        "view",
    )

    def __init__(self) -> None:
        self.view = memoryview(bytearray(CAPACITY_MIN))
        self.start = 0
        self.end = 0
        self._capacity = CAPACITY_MIN
        self._wanted = CAPACITY_MIN
        self._offered = 0
        self._small_reads = 0
        self._direct: memoryview | None = None
        self._direct_bytes = 0
        self._direct_filled = 0

    @property
    def is_empty(self) -> bool:
        return self.start == self.end and self._direct is None

    @property
    def direct_progress(self) -> tuple[int, int]:
        """Received and expected bytes of the direct payload."""
        return self._direct_filled, self._direct_bytes

    def get_buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._direct is not None and self._direct_filled < self._direct_bytes:
            window = self._direct[self._direct_filled :]
        else:
            self._make_room()
            if not self.end:
                self._offered = self._capacity
                return self.view
            window = self.view[self.end :]
        self._offered = len(window)
        return window

    def updated(self, count: int) -> None:
        """`count` bytes were put into the buffer offered last."""
        if self._direct is not None and self._direct_filled < self._direct_bytes:
            self._direct_filled += count
            excess = self._direct_filled - self._direct_bytes
            if excess > 0:
                self._direct_filled = self._direct_bytes
                self.view[:excess] = self._direct[self._direct_bytes : self._direct_bytes + excess]
                self.start, self.end = 0, excess
            return
        self.end += count
        if count == self._offered:
            self._small_reads = 0
            if self._capacity < CAPACITY_MAX:
                self._wanted = min(self._capacity * _GROWTH, CAPACITY_MAX)
        elif count * 8 < self._capacity:
            self._small_reads += 1
        else:
            self._small_reads = 0

    def append(self, data: Buffer) -> None:
        """Take bytes by copying, as many as there are."""
        rest = memoryview(data).cast("B")
        while rest:
            window = self.get_buffer()
            count = min(len(window), len(rest))
            window[:count] = rest[:count]
            self.updated(count)
            rest = rest[count:]

    def reserve(self, size: int) -> None:
        """Make sure that `size` bytes from `start` will fit."""
        if size > self._capacity:
            self._wanted = max(self._wanted, 1 << (size - 1).bit_length())

    def begin_direct(self, at: int, payload_bytes: int) -> None:
        """The payload begins at `at` and is not complete: give it memory of its own."""
        assert self._direct is None
        assert self.end - at < payload_bytes
        self._direct = memoryview(unfilled(payload_bytes + _DIRECT_ROOM))
        self._direct_bytes = payload_bytes
        self._direct_filled = self.end - at
        self._direct[: self._direct_filled] = self.view[at : self.end]
        self.start = self.end = 0

    def take_direct(self) -> memoryview | None:
        """The direct payload, once it is complete."""
        if self._direct is None or self._direct_filled < self._direct_bytes:
            return None
        payload = self._direct[: self._direct_bytes]
        self._direct = None
        return payload

    def discard(self) -> None:
        """Forget everything; what comes from now on is of no interest."""
        self._direct = None
        self.start = self.end = 0

    def _make_room(self) -> None:
        pending = self.end - self.start
        if not pending:
            self.start = self.end = 0
            if self._small_reads >= _SMALL_READS_MAX:
                self._small_reads = 0
                self._wanted = CAPACITY_MIN
            if self._wanted != self._capacity:
                self._replace()
        elif self._wanted > self._capacity:
            self._replace()
        elif self.end == self._capacity or self.start > self._capacity // 2:
            if not self.start:
                self._wanted = self._capacity * 2
                self._replace()
                return
            self.view[:pending] = self.view[self.start : self.end]
            self.start, self.end = 0, pending

    def _replace(self) -> None:
        pending = self.end - self.start
        if self._wanted < pending:
            raise InvariantViolation(f"a buffer of {self._wanted} bytes cannot hold {pending}")
        view = memoryview(bytearray(self._wanted))
        view[:pending] = self.view[self.start : self.end]
        self.view = view
        self.start, self.end = 0, pending
        self._capacity = self._wanted
