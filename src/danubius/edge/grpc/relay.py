"""The socket between the broker and its gRPC front, at either end: frames in callbacks, no task and no stream a call.

What is sent in one turn of the loop leaves in one write, and what is read at once is handed over frame by frame, in
turns: after TURN_FRAMES, or TURN_BYTES, whatever else the loop has to do comes first. Invariant: `on_closed` is called
exactly once, last.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from danubius.edge.grpc.frames import FrameReader
from danubius.errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.edge.grpc.frames import Frame

BODY_BYTES_MAX: Final = 17 * 1024 * 1024
"""Of one frame: a request as large as the front takes it, and its peer."""
TURN_FRAMES: Final = 128
"""Handed over in one turn: a few milliseconds of work."""
TURN_BYTES: Final = 512 * 1024
"""Read in one turn; a single larger frame is read in several."""
HIGH_WATER_BYTES: Final = 4 * 1024 * 1024
"""Above this, what waits to be read by the other side stops streams."""
FLUSH_BYTES: Final = 256 * 1024
"""So much does not wait for the end of the turn: whoever writes must see that nobody reads."""

log = logging.getLogger(__name__)


class Relay(asyncio.Protocol):
    """One end of the socket."""

    def __init__(
        self,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[], None],
        on_writable: Callable[[bool], None] | None = None,
    ) -> None:
        """`on_writable` hears that the other side does not keep up with reading, and that it does again."""
        self._loop = asyncio.get_running_loop()
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_writable = on_writable
        self._reader = FrameReader(BODY_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._turn: asyncio.Handle | None = None
        self._turn_bytes = 0
        self._turn_frames = 0
        self._is_paused = False
        self.is_closed = False

    # ------------------------------------------------------------ sending

    @property
    def buffered_bytes(self) -> int:
        """What was sent and is not in the kernel's hands yet."""
        written = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._outgoing_bytes + written

    def send(self, head: bytes, body: bytes = b"") -> None:
        """Send a header and its body, with everything else of this turn; nothing once it is closed."""
        if self.is_closed:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(head)
        if body:
            self._outgoing.append(body)
        self._outgoing_bytes += len(head) + len(body)
        if self._outgoing_bytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None and not self.is_closed:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()
        self._outgoing_bytes = 0

    def close(self) -> None:
        """End it, after what was sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._turn_bytes += len(data)
        self._hand_over()

    def pause_writing(self) -> None:
        if self._on_writable is not None:
            self._on_writable(False)

    def resume_writing(self) -> None:
        if self._on_writable is not None:
            self._on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # the other side is gone, however it went
        self.is_closed = True
        self._outgoing.clear()
        if self._turn is not None:
            self._turn.cancel()
        self._on_closed()

    # ------------------------------------------------------------ reading in turns

    def _hand_over(self) -> None:
        take, on_frame = self._reader.take, self._on_frame
        try:
            while self._turn_frames < TURN_FRAMES and not self.is_closed:
                frame = take()
                if frame is None:
                    break
                self._turn_frames += 1
                on_frame(frame)
        except ProtocolViolation as violation:
            log.exception("the gRPC relay is broken", extra={"why": violation.message})
            self.abort()
            return
        if self._turn is None:
            self._turn = self._loop.call_soon(self._begin_turn)
        if self._turn_frames >= TURN_FRAMES or self._turn_bytes >= TURN_BYTES:
            self._pause()

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None and not self.is_closed:
            self._is_paused = True
            self._transport.pause_reading()

    def _begin_turn(self) -> None:
        """The others had theirs."""
        self._turn = None
        was_full = self._turn_frames >= TURN_FRAMES
        self._turn_bytes = self._turn_frames = 0
        if self.is_closed:
            return
        if was_full:
            self._hand_over()
            if self._turn_frames >= TURN_FRAMES:
                return
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
