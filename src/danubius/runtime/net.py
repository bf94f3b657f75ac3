"""Sockets for the native protocol: the glue between an asyncio transport and a sans-IO connection.

One `StreamProtocol` serves the broker's edge and the client. Everything happens in callbacks on the loop; there
is no task per connection.

Invariants: all frames of one read are handed over before anything is written, and what was written meanwhile
leaves in one call; no frame is handed over after the connection began to close, and `on_closed` is called exactly
once, last; reading stops while any reason to pause stands; closing takes `CLOSE_TIMEOUT_S` at the most.

Back-pressure: `on_pause_writing` says that the peer does not read what we write. The broker then stops reading from
that peer (it must not take requests whose answers nobody reads). A client must go on reading, for if both ends
waited for the other to read, neither would.

Fairness: with `turn_bytes_max` a connection that always has more to read is read from for so many bytes in one turn of
the loop, then it is the others' turn. Loops read on from one socket for as long as reads fill the buffer.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast

from danubius.errors import BrokerUnavailable, DanubiusError, InvalidArgument
from danubius.runtime.listening import open_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer

WRITE_HIGH_BYTES: Final = 2 * 1024 * 1024
"""Unsent bytes at which `on_pause_writing` is called: two large deliveries."""
WRITE_LOW_BYTES: Final = 512 * 1024
"""Unsent bytes at which `on_resume_writing` is called; not zero, so that the socket never runs dry."""
CLOSE_TIMEOUT_S: Final = 2.0
"""How long a closing connection may take to send what is left and to see the peer's end."""
DIRECT_BYTES_MAX: Final = 16 * 1024
"""What is written past the transport: small enough for any socket's buffer to take it whole, as a rule."""
BACKLOG: Final = 1024
_TURN: Final = "turn"

_DIRECT_BUFFERS_MAX: Final = 64

_DISCARD_BYTES: Final = 64 * 1024

_LARGE_READ_BYTES: Final = 32 * 1024
"""Smaller reads are not counted: after one that does not fill its buffer a loop goes on to others by itself."""

Event = TypeVar("Event")
EventOut = TypeVar("EventOut", covariant=True)
P = TypeVar("P", bound=asyncio.BaseProtocol)


class FrameSource(Protocol[EventOut]):
    """The receiving side of a sans-IO connection."""

    def get_buffer(self, size_hint: int) -> memoryview: ...
    def buffer_updated(self, count: int) -> None: ...
    def next_event(self) -> EventOut | None: ...
    def receive_eof(self) -> None: ...
    def discard(self) -> None: ...


def _nothing() -> None:
    """Stand in for a callback that nobody asked for."""


def _not_counted(_count: int) -> None:
    """Stand in for `on_batch_end`."""


class StreamProtocol(asyncio.BufferedProtocol, Generic[Event]):
    """One connection: reads into the source, hands its events over, gathers writes.

    `on_event` runs for each frame, `on_batch_end` once after all frames of one read, with its size.
    `on_protocol_error` is told why the peer's bytes were refused, and may still write an answer; the connection is
    closed when it returns. `on_closed` gets None after an orderly end, otherwise what went wrong.
    """

    __slots__ = (
        "_descriptor",
        "_discard",
        "_flush_handle",
        "_is_batching",
        "_is_lost",
        "_last_received_s",
        "_loop",
        "_on_batch_end",
        "_on_closed",
        "_on_connected",
        "_on_event",
        "_on_pause_writing",
        "_on_protocol_error",
        "_on_resume_writing",
        "_outgoing",
        "_outgoing_bytes",
        "_pauses",
        "_problem",
        "_reaper",
        "_source",
        "_transport",
        "_turn_bytes",
        "_turn_bytes_max",
        "_turn_handle",
        "is_closing",
        "is_writing_paused",
        "peer",
    )

    def __init__(  # noqa: PLR0913  # one callback per thing that can happen to a connection
        self,
        source: FrameSource[Event],
        on_event: Callable[[Event], None],
        *,
        on_closed: Callable[[Exception | None], None],
        on_protocol_error: Callable[[DanubiusError], None],
        on_batch_end: Callable[[int], None] | None = None,
        on_pause_writing: Callable[[], None] = _nothing,
        on_resume_writing: Callable[[], None] = _nothing,
        on_connected: Callable[[], None] = _nothing,
        turn_bytes_max: int = 0,
    ) -> None:
        """`turn_bytes_max`: what is read in one turn of the loop while others may wait; 0: whatever is there."""
        self._source = source
        self._on_event = on_event
        self._on_closed = on_closed
        self._on_protocol_error = on_protocol_error
        self._on_batch_end = on_batch_end or _not_counted
        self._on_pause_writing = on_pause_writing
        self._on_resume_writing = on_resume_writing
        self._on_connected = on_connected
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        """The socket's, while it is plain and open."""
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._flush_handle: asyncio.Handle | None = None
        self._reaper: asyncio.TimerHandle | None = None
        self._turn_bytes_max = turn_bytes_max
        self._turn_bytes = 0
        """Of large reads, since the turn began."""
        self._turn_handle: asyncio.Handle | None = None
        self._pauses: set[str] = set()
        self._discard: memoryview | None = None
        self._problem: DanubiusError | None = None
        self._is_batching = False
        self.is_closing = False
        """True from the first sign of the end on; what is written then goes nowhere."""
        self._is_lost = False
        self._last_received_s = self._loop.time()
        self.is_writing_paused = False
        self.peer = "unknown"
        """The peer's address, for logs."""

    # ------------------------------------------------------------ facts

    @property
    def is_connected(self) -> bool:
        return self._transport is not None and not self._is_lost

    @property
    def is_reading_paused(self) -> bool:
        """While true, silence of the peer says nothing about its health."""
        return bool(self._pauses)

    @property
    def last_received_ns(self) -> int:
        """When bytes last came, on the loop's clock."""
        return int(self._last_received_s * 1e9)

    @property
    def gathered_bytes(self) -> int:
        """Bytes written and not yet handed to the transport."""
        return self._outgoing_bytes

    @property
    def write_buffer_size(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        transport = self._transport
        if transport is None or self._is_lost:
            return 0
        return self._outgoing_bytes + transport.get_write_buffer_size()

    # ------------------------------------------------------------ writing

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers in order, together with all else written in this read batch or loop turn.

        They are not copied: their bytes must not change until they are sent.
        """
        if self.is_closing:
            return
        self._outgoing.extend(buffers)
        self._outgoing_bytes += sum(map(len, buffers))
        if self._outgoing_bytes >= WRITE_HIGH_BYTES and self._transport is not None:
            self.flush()  # so that pause_writing is heard before much more is written
        elif not self._is_batching and self._flush_handle is None:
            self._flush_handle = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand what was gathered to the transport now."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        transport = self._transport
        if not self._outgoing or transport is None:
            return
        outgoing, self._outgoing = self._outgoing, []
        size, self._outgoing_bytes = self._outgoing_bytes, 0
        if size <= DIRECT_BYTES_MAX and len(outgoing) <= _DIRECT_BUFFERS_MAX:
            sent = self._send_directly(transport, outgoing)
            if sent == size:
                return
            if sent:
                outgoing = [b"".join(outgoing)[sent:]]
        if len(outgoing) == 1:
            transport.write(outgoing[0])
        else:
            transport.writelines(outgoing)

    def _send_directly(self, transport: asyncio.Transport, buffers: list[Buffer]) -> int:
        """Hand small buffers to the kernel now, and say how many bytes it took.

        The transport would do so at the end of the loop's turn, and an answer should not wait for it. Only while the
        transport holds nothing back, or bytes would overtake each other; whatever is wrong, it is the one to tell.
        """
        if self._descriptor < 0 or transport.get_write_buffer_size() or transport.is_closing():
            return 0
        try:
            return os.writev(self._descriptor, buffers)
        except OSError:
            return 0

    # ------------------------------------------------------------ pausing and closing

    def pause_reading(self, reason: str = "") -> None:
        """Stop reading until `resume_reading(reason)`; frames already read are still handed over."""
        if not self._pauses and self._transport is not None and not self.is_closing:
            self._transport.pause_reading()
        self._pauses.add(reason)

    def resume_reading(self, reason: str = "") -> None:
        """Withdraw one reason to pause; reading goes on when none is left."""
        if reason not in self._pauses:
            return
        self._pauses.remove(reason)
        if not self._pauses and self._transport is not None and not self.is_closing:
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what was written, then end. Bounded in time; `on_closed` follows.

        What the peer still sends is read and dropped: a socket closed over unread bytes is reset, and the reset can
        overtake our last words.
        """
        if self.is_closing:
            return
        self.flush()
        self._begin_closing()
        transport = self._transport
        if transport is None or self._is_lost:
            return
        if self._pauses:
            transport.resume_reading()
        try:
            transport.write_eof()
        except OSError:  # the peer is gone already, and the loop has not heard of it yet
            transport.abort()

    def abort(self) -> None:
        """End at once; what was not sent is lost."""
        self._outgoing.clear()
        self._begin_closing()
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    def disown(self) -> None:
        """In a child process, after a fork: let go of the parent's connection without a word.

        This process's copy of the socket is replaced by nothing: while it was open, the peer would not be told of the
        parent's end. The copy is not taken out of the loop's selector, which is the parent's, too.
        """
        self.is_closing = self._is_lost = True
        self._outgoing.clear()
        transport, self._transport = self._transport, None
        self._descriptor = -1
        sock: socket.socket | None = transport and transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, sock.fileno(), inheritable=False)
            os.close(nothing)

    def _begin_closing(self) -> None:
        self.is_closing = True
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._reaper is None and self._transport is not None and not self._is_lost:
            self._reaper = self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    # ------------------------------------------------------------ asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's stream transports derive from asyncio.Transport: uvloop's do not.
        self._transport = transport = cast("asyncio.Transport", transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            _tune(sock)
            if transport.get_extra_info("sslcontext") is None:
                self._descriptor = sock.fileno()
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        address = transport.get_extra_info("peername")
        if address:
            self.peer = f"{address[0]}:{address[1]}"
        self._last_received_s = self._loop.time()
        if self.is_closing:
            transport.abort()
            return
        self._on_connected()
        self.flush()
        if self._pauses:
            # Loops start to read after this call, and not all remember what was said in it.
            self._loop.call_soon(self._pause_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.is_closing:
            if self._discard is None:
                self._discard = memoryview(bytearray(_DISCARD_BYTES))
            return self._discard
        return self._source.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closing:
            return
        self._last_received_s = self._loop.time()
        self._source.buffer_updated(nbytes)
        if nbytes >= _LARGE_READ_BYTES and self._turn_bytes_max:
            self._count_large(nbytes)
        self._is_batching = True
        try:
            refusal = self._drain()
            self._on_batch_end(nbytes)
        finally:
            self._is_batching = False
        if refusal is not None:
            self._refuse(refusal)
        elif self._outgoing:
            self.flush()

    def eof_received(self) -> bool:
        if not self.is_closing:
            self._end_source()
            self.flush()
            self._begin_closing()
        return False  # the transport closes itself once it has sent what it holds

    def connection_lost(self, exc: Exception | None) -> None:
        self._descriptor = -1  # its number may be another connection's from here on
        self._end_source()
        self._source.discard()  # half a frame may be large, and those who know us let go later
        self._is_lost = True
        self.is_closing = True
        self._outgoing.clear()
        for handle in (self._flush_handle, self._reaper, self._turn_handle):
            if handle is not None:
                handle.cancel()
        self._flush_handle = self._reaper = self._turn_handle = None
        self._discard = None
        self._on_closed(self._problem or _translate_loss(exc, self.peer))

    def pause_writing(self) -> None:
        self.is_writing_paused = True
        self._on_pause_writing()

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        self._on_resume_writing()

    # ------------------------------------------------------------ inside

    def _pause_late(self) -> None:
        if self._pauses and not self.is_closing and self._transport is not None:
            # Older asyncio takes itself for paused while it reads: only this order reaches the selector.
            self._transport.resume_reading()
            self._transport.pause_reading()

    def _count_large(self, nbytes: int) -> None:
        self._turn_bytes += nbytes
        if self._turn_handle is None:
            self._turn_handle = self._loop.call_soon(self._begin_turn)
        if self._turn_bytes >= self._turn_bytes_max:
            self.pause_reading(_TURN)

    def _begin_turn(self) -> None:
        """The others had theirs."""
        self._turn_handle = None
        self._turn_bytes = 0
        self.resume_reading(_TURN)

    def _drain(self) -> DanubiusError | None:
        next_event, on_event = self._source.next_event, self._on_event
        while not self.is_closing:
            try:
                event = next_event()
            except DanubiusError as refusal:
                return refusal
            if event is None:
                return None
            on_event(event)
        return None

    def _refuse(self, refusal: DanubiusError) -> None:
        self._problem = refusal
        self._on_protocol_error(refusal)
        self.close()

    def _end_source(self) -> None:
        """Tell the source that no more will come; half a frame is a loss, not a violation."""
        self._source.receive_eof()
        if self.is_closing:
            return  # half a frame is no news then
        try:
            self._source.next_event()
        except DanubiusError as loss:
            self._problem = loss


def _tune(sock: socket.socket) -> None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _translate_loss(exc: Exception | None, peer: str) -> Exception | None:
    if not isinstance(exc, OSError):
        return exc
    loss = BrokerUnavailable(f"the connection to {peer} was lost: {_reason(exc)}")
    loss.__cause__ = exc
    return loss


def _reason(exc: OSError) -> str:
    if isinstance(exc, socket.gaierror):
        return exc.strerror or "the name has no address"
    return os.strerror(exc.errno) if exc.errno else str(exc)


class Listener:
    """A listening socket. `close` stops accepting; connections live on."""

    __slots__ = ("_server", "port")

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]
        """The real port, also when 0 was asked for."""

    def close(self) -> None:
        self._server.close()


async def listen(
    host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], *, backlog: int = BACKLOG
) -> Listener:
    """Accept connections; `factory` makes the protocol of each. Port 0 picks a free one."""
    loop = asyncio.get_running_loop()
    try:
        if (opened := open_socket(host, port, backlog)) is not None:
            server = await loop.create_server(factory, sock=opened, backlog=backlog)
        else:
            server = await loop.create_server(factory, host, port, backlog=backlog)
    except OSError as problem:
        raise InvalidArgument(f"cannot listen on {host}:{port}: {_reason(problem)}") from problem
    return Listener(server)


async def dial(host: str, port: int, factory: Callable[[], P], *, timeout_s: float) -> P:
    """Connect, and return the connected protocol."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, protocol = await loop.create_connection(factory, host, port)
    except TimeoutError as problem:
        raise BrokerUnavailable(
            f"no broker answered at {host}:{port} within {timeout_s:g} s"
        ) from problem
    except OSError as problem:
        raise BrokerUnavailable(f"no broker at {host}:{port}: {_reason(problem)}") from problem
    return protocol
