"""A simulated connection: two transports, and between them two flows of bytes that keep their order, as TCP does.

- What is written goes into the sender's buffer, and from there, as far as the window has room, onto the link, in
  pieces. It arrives when the link says, in order, or waits there while the link is cut. The window is what is under way
  or not yet read by the other side: a peer that does not read fills it, and then the sender's buffer.
- Who waits on a cut link for longer than `GIVE_UP_S` with something unsent is told of a time-out. Who has nothing to
  send hears nothing: a connection may be half open for ever.
- An end of which the process is gone takes nothing: what arrives there is answered with a reset, if the host is up.
- Protocols are called by the loop, one call a turn, in the context in which they were made.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Iterable

    from danubius.sim.link import Link
    from danubius.sim.loop import SimLoop
    from danubius.sim.processes import Process

WINDOW_BYTES: Final = 64 * 1024
GIVE_UP_S: Final = 30.0
HIGH_BYTES: Final = 64 * 1024

_EOF: Final = b""


class Wires(Protocol):
    """The network, as far as a connection needs it; see `sim.net.SimNet`."""

    loop: SimLoop
    context: contextvars.Context
    stuck: dict[SimTransport, None]

    def link(self, source: str, target: str) -> Link: ...
    def is_up(self, host: str) -> bool: ...
    def moved(self, source: SimTransport, data: bytes) -> None: ...
    def forget(self, transport: SimTransport) -> None: ...


class SimTransport(asyncio.Transport):
    """One end."""

    def __init__(self, net: Wires, process: Process | None, host: str, peer: str) -> None:
        super().__init__()
        self.net = net
        self.process = process
        self.host = host
        self.peer_host = peer
        self.port = 0
        self.peer_port = 0
        self.other: SimTransport
        self.context: contextvars.Context
        self._protocol: asyncio.BaseProtocol
        self._loop = net.loop
        # Sending.
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._window_bytes = WINDOW_BYTES
        self._under_way: deque[tuple[bytes, float]] = deque()
        """What is on the link, and when it arrives."""
        self._arrival: asyncio.TimerHandle | None = None
        self._arrived_s = 0.0
        self._cut_since_s: float | None = None
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._is_writing_paused = False
        self._has_sent_eof = False
        # Receiving.
        self._received: deque[bytes] = deque()
        self._is_reading = True
        self._is_reading_due = False
        # Life.
        self.is_made = False
        """Whether its protocol knows of it."""
        self._is_closing = False
        self.is_gone = False
        """Nothing of it is left here: what comes is answered with a reset, if anybody is there to."""

    def make(self, protocol: asyncio.BaseProtocol, context: contextvars.Context) -> None:
        """Tell the protocol that it is connected."""
        self._protocol = protocol
        self.context = context
        self.is_made = True
        protocol.connection_made(self)

    # ------------------------------------------------------------ asyncio's transport: writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._has_sent_eof, "write after write_eof"
        if self._is_closing or self.is_gone or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._send()
        if self._unsent_bytes > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._has_sent_eof or self._is_closing or self.is_gone:
            return
        self._has_sent_eof = True
        self._unsent.append(_EOF)
        self._send()

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    # ------------------------------------------------------------ asyncio's transport: the rest

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._read_soon()

    def is_reading(self) -> bool:
        return self._is_reading

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Send what was written, then end."""
        if self._is_closing or self.is_gone:
            return
        self.write_eof()
        self._is_closing = True
        if not self._unsent:
            self._call(self._lose, None)

    def abort(self) -> None:
        """End at once: what was not sent is lost."""
        self._end(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # Any: as asyncio has it
        facts = {
            "peername": (self.peer_host, self.peer_port),
            "sockname": (self.host, self.port),
        }
        return facts.get(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    # ------------------------------------------------------------ sending

    @property
    def link(self) -> Link:
        return self.net.link(self.host, self.peer_host)

    def hold_until(self, moment_s: float) -> None:
        """Nothing that is written arrives before."""
        self._arrived_s = max(self._arrived_s, moment_s)

    def _send(self) -> None:
        """Put on the link what the window has room for."""
        link = self.link
        while self._unsent and (self._window_bytes or self._unsent[0] is _EOF):
            data = self._unsent.popleft()
            room = min(len(data), self._window_bytes)
            count = link.cut_off(room) if room else 0
            if count < len(data):
                self._unsent.appendleft(data[count:])
                data = data[:count]
            self._unsent_bytes -= count
            self._window_bytes -= count
            arrives_s = max(self._arrived_s, self._loop.time() + link.transit_s(count))
            self._arrived_s = arrives_s
            self._under_way.append((data, arrives_s))
        if self._under_way and self._arrival is None and self._cut_since_s is None:
            self._await_arrival(self._under_way[0][1])

    def _await_arrival(self, moment_s: float) -> None:
        # The link carries what a dead process has sent, too.
        self._arrival = self._loop.call_at(moment_s, self._arrive, context=self.net.context)

    def _arrive(self) -> None:
        self._arrival = None
        now_s = self._loop.time()
        if self.link.is_cut or not self.net.is_up(self.peer_host):
            self._cut_since_s = now_s
            self.net.stuck[self] = None
            self._loop.call_later(GIVE_UP_S, self._give_up, now_s, context=self.net.context)
            return
        data, _ = self._under_way.popleft()
        if data:
            self.net.moved(self, data)
        self.other.take(data)
        if self._under_way:
            self._await_arrival(max(now_s, self._under_way[0][1]))

    def mended(self) -> None:
        """The link carries again, or the host is up: what waits is sent once more, in time."""
        assert self._cut_since_s is not None
        waited_s = self._loop.time() - self._cut_since_s
        self._cut_since_s = None
        if self._under_way:
            self._await_arrival(self._loop.time() + self.link.patience_s(waited_s))

    def _give_up(self, since_s: float) -> None:
        if self._cut_since_s == since_s:
            self.net.stuck.pop(self, None)
            self._cut_since_s = None
            self._under_way.clear()
            self.reset(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    @property
    def is_waiting(self) -> bool:
        """Whether it holds something back until the other side has read."""
        return bool(self._unsent)

    def widen(self, count: int) -> None:
        """The other side has read so much."""
        self._window_bytes += count

    def give_window(self, count: int) -> None:
        """The same, and what waited for it goes on."""
        self._window_bytes += count
        if self.is_gone and not self._unsent:
            return
        self._send()
        if self._is_writing_paused and self._unsent_bytes <= self._low:
            self._is_writing_paused = False
            self._call(self._resume_writing)
        if self._is_closing and not self._unsent:
            self._call(self._lose, None)

    def _resume_writing(self) -> None:
        if not self.is_gone and not self._is_writing_paused:
            self._protocol.resume_writing()

    # ------------------------------------------------------------ receiving

    def take(self, data: bytes) -> None:
        """Bytes, or the end, from the link."""
        if self.is_gone or (self._is_closing and data):
            # Nobody is here any more: the kernel says so, unless the way back is cut.
            if not self.net.link(self.host, self.peer_host).is_cut:
                self._loop.call_later(
                    self.link.transit_s(0),
                    self.other.reset,
                    _reset_by_peer(),
                    context=self.net.context,
                )
            return
        self._received.append(data)
        self._read_soon()

    def _read_soon(self) -> None:
        if self._received and self._is_reading and self.is_made and not self._is_reading_due:
            self._is_reading_due = True
            self._call(self._read)

    def _read(self) -> None:
        self._is_reading_due = False
        if not self._received or not self._is_reading or self.is_gone:
            return
        data = self._received.popleft()
        if not data:
            self._read_eof()
            return
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1)).cast("B")
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            if count < len(data):
                self._received.appendleft(data[count:])
            self._was_read(count)
            protocol.buffer_updated(count)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            self._was_read(len(data))
            protocol.data_received(data)
        self._read_soon()

    def _was_read(self, count: int) -> None:
        other = self.other
        if other.is_waiting:
            delay_s = other.link.delay_s
            self._loop.call_later(delay_s, other.give_window, count, context=self.net.context)
        else:  # nobody can tell when it hears of it
            other.widen(count)

    def _read_eof(self) -> None:
        protocol = self._protocol
        assert isinstance(protocol, asyncio.BufferedProtocol | asyncio.Protocol)
        if not protocol.eof_received():
            self.close()

    # ------------------------------------------------------------ ending

    def reset(self, error: OSError) -> None:
        """The connection is lost, and this end hears of it."""
        if not self.is_gone:
            self._unsent.clear()
            self._unsent_bytes = 0
            self._end(error)

    def vanish(self) -> None:
        """The host is off: nobody is told, and what was not sent never will be."""
        self.is_gone = True
        if self._cut_since_s is not None:
            self._cut_since_s = None
            self._under_way.clear()
            self.net.stuck.pop(self, None)
        self._unsent.clear()
        self._received.clear()
        self._unsent_bytes = 0

    def hang_up(self) -> None:
        """The process is gone, the kernel is there: it ends what was open, as it would for anybody."""
        if self.is_gone:
            return
        has_unread = bool(self._received)
        self.vanish()
        if has_unread:
            self._tell(_reset_by_peer())
        else:
            self._unsent.append(_EOF)
            self._send()

    def _end(self, error: OSError | None) -> None:
        if self.is_gone:
            return
        has_unread = any(self._received)
        self._unsent.clear()
        self._unsent_bytes = 0
        if error is None and has_unread:
            self._tell(_reset_by_peer())
        elif error is None and not self._has_sent_eof:
            self._has_sent_eof = True
            self._unsent.append(_EOF)
            self._send()
        self._received.clear()
        self._is_closing = True
        self._call(self._lose, error)

    def _tell(self, error: OSError) -> None:
        """A reset is sent once: on a cut link nobody hears of it."""
        if not self.link.is_cut and self.net.is_up(self.peer_host):
            delay_s = self.link.transit_s(0)
            self._loop.call_later(delay_s, self.other.reset, error, context=self.net.context)

    def _lose(self, error: OSError | None) -> None:
        if self.is_gone:
            return
        if error is None and any(self._received):
            self._tell(_reset_by_peer())
        self.is_gone = True
        self._received.clear()
        self.net.forget(self)
        if self.is_made:
            self._protocol.connection_lost(error)

    def _call(self, callback: Any, *args: object) -> None:  # Any: whatever is to be called
        if self.is_made:
            self._loop.call_soon(callback, *args, context=self.context)
        else:
            callback(*args)


def _reset_by_peer() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
