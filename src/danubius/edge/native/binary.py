"""The native face: one asyncio connection around one sans-IO connection and one session."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from danubius.edge.core.reading_turns import ReadingTurns, TurnBounds
from danubius.errors import DanubiusError, TooManyConnections
from danubius.runtime.busy_poll import BusyPoll
from danubius.runtime.net import StreamProtocol, listen
from danubius.wire.commands import Error, Goodbye, Opcode, Ping, Pong
from danubius.wire.connection import Connection
from danubius.wire.states import LEGAL, ConnectionState, Role

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from danubius.edge.core.reading_turns import Turn
    from danubius.model.buffers import Buffer
    from danubius.runtime.net import Listener
    from danubius.session.door import Door
    from danubius.session.found import ConnectionBounds
    from danubius.wire.commands import AnyCommand
    from danubius.wire.frame import Frame

PROBE_S: Final = 1.0
"""How long a probed peer has to answer before it counts as gone."""
KEEPALIVE_CHECKS: Final = 2
"""Sweeps over all connections per keepalive interval."""
SILENCES_MAX: Final = 3
"""Keepalive intervals of silence after which a connection is cut off."""

READ_BYTES_A_TURN: Final = 512 * 1024
"""What one connection is read for before the others are: about a millisecond of work."""

LARGE_WRITE_BYTES: Final = 64 * 1024
"""What takes the kernel long enough to take for others to be served before."""

LARGE_FRAMES: Final = TurnBounds(
    at_once_max=256 * 1024 * 1024,
    per_connection_max=1,
    waiting_max=sys.maxsize,  # a connection has one at the most, and is not read from while it waits
    patience_s=2.0,
    whole_s=60.0,
)
"""Frames that have memory of their own while they come in, by what they take when they are complete. More wait, unread;
while they do, whoever does not come to an end is cut off after a moment."""
LARGE_FRAMES_WATCH_S: Final = 0.5

_ROOM: Final = "room"
_OPEN: Final = ConnectionState.OPEN  # looked up for every frame

log = logging.getLogger(__name__)


class BinaryConnection:
    """One client's connection; the peer of its session."""

    def __init__(self, edge: BinaryEdge) -> None:
        self._edge = edge
        self._wire = Connection(Role.BROKER)
        self._session = edge.door.open_session(self, edge.advertised_url, edge.broker_name)
        self._probes: dict[int, Callable[[bool], None]] = {}
        self._next_probe = 1
        self._opened_s = edge.loop.time()
        self._large_frame = 0
        self._turn: Turn | None = None
        """Of the large frame that has begun to come."""
        self.protocol: StreamProtocol[Frame] = StreamProtocol(
            self._wire,
            self._received,
            on_closed=self._closed,
            on_protocol_error=self._refused,
            on_batch_end=self._read_ended,
            on_pause_writing=self._writing_paused,
            on_resume_writing=self._writing_resumed,
            on_connected=self._connected,
            turn_bytes_max=READ_BYTES_A_TURN,
        )

    @property
    def address(self) -> str:
        return self.protocol.peer

    # ------------------------------------------------------------ the session's side

    def send(
        self, command: AnyCommand, correlation_id: int = 0, payload: Sequence[Buffer] = ()
    ) -> None:
        protocol = self.protocol
        if protocol.is_closing:
            return
        try:
            protocol.write(self._wire.send(command, correlation_id, payload))
            if self._edge.commits.is_committing:
                self._edge.written.append(protocol)
        except DanubiusError as error:
            # Only an oversized answer can come here; a request must not wait for ever.
            log.warning("answer not sent", extra={"peer": self.address, "error": str(error)})
            if correlation_id and self._wire.state is ConnectionState.OPEN:
                self.protocol.write(self._wire.send(Error.of(error), correlation_id))

    def flush(self) -> None:
        self.protocol.flush()

    def pause_reading(self, reason: str) -> None:
        self.protocol.pause_reading(reason)
        # An answer may be among what is not read now: whom we do not listen to is not silent.
        for number in self._probes:
            self._edge.loop.call_soon(self._probe_answered, number, True)

    def resume_reading(self, reason: str) -> None:
        self.protocol.resume_reading(reason)

    def probe(self, on_result: Callable[[bool], None]) -> None:
        number = self._next_probe
        self._next_probe += 1
        self._probes[number] = on_result
        if self.protocol.is_reading_paused and not self.protocol.is_closing:
            self._edge.loop.call_soon(self._probe_answered, number, True)
            return
        self.send(Ping(), number)
        self._edge.loop.call_later(PROBE_S, self._probe_answered, number, False)

    def _probe_answered(self, number: int, is_alive: bool) -> None:
        on_result = self._probes.pop(number, None)
        if on_result is not None:
            on_result(is_alive)

    # ------------------------------------------------------------ the socket's side

    def _connected(self) -> None:
        edge = self._edge
        edge.connections[self] = None
        edge.strangers[self] = None
        limit = edge.door.bounds.connections_max
        if len(edge.connections) > limit and not edge.send_a_stranger_away(self):
            self._refused(TooManyConnections(f"the broker serves {limit} connections at the most"))
            self.protocol.close()

    def _received(self, frame: Frame) -> None:
        if self._probes and type(frame.command) is Pong:
            self._probe_answered(frame.correlation_id, True)
            return
        self._edge.gathering.hold()
        self._session.handle(frame.command, frame.correlation_id, frame.payload)
        if self._wire.state is not _OPEN:
            # Goodbye was said, or Hello was refused and the answer says why.
            self.protocol.close()

    def _read_ended(self, count: int) -> None:
        if self._wire.large_frame != self._large_frame:
            self._take_turn()
        self._edge.read_ended(count)

    def _take_turn(self) -> None:
        """A large frame has begun, or ended, or one after the other."""
        edge = self._edge
        now_s = edge.loop.time()
        if self._turn is not None:
            edge.large_frames.end(self._turn, now_s)
            self._turn = None
        self._large_frame = self._wire.large_frame
        if not self._large_frame or self.protocol.is_closing:
            return
        turn = edge.large_frames.ask(
            self.address, now_s, self._cut_off, self._wire.large_frame_bytes
        )
        assert turn is not None, "as many may wait as there are connections"
        self._turn = turn
        turn.is_excused = lambda: self.protocol.is_reading_paused
        if not turn.is_reading:
            turn.on_begin = lambda: self.resume_reading(_ROOM)
            self.pause_reading(_ROOM)
        edge.watch_large_frames()

    def _cut_off(self) -> None:
        log.info("connection cut off in the middle of a frame", extra={"peer": self.address})
        self.protocol.abort()

    @property
    def is_stranger(self) -> bool:
        """Whether it has not introduced itself."""
        return self._wire.state in (ConnectionState.HELLO, ConnectionState.GREETED)

    def _can_send(self, opcode: Opcode) -> bool:
        return opcode in LEGAL[self._wire.state][Role.BROKER]

    def _refused(self, error: DanubiusError) -> None:
        log.info("connection refused", extra={"peer": self.address, "error": str(error)})
        self._edge.refusals += 1
        if self._can_send(Opcode.ERROR):
            self.protocol.write(self._wire.send(Error.of(error)))

    def _closed(self, _reason: Exception | None) -> None:
        self._edge.forget(self)
        if self._turn is not None:
            self._edge.large_frames.end(self._turn, self._edge.loop.time())
            self._turn = None
        self._session.close()
        for number in list(self._probes):
            self._probe_answered(number, False)

    def _writing_paused(self) -> None:
        # A peer that does not read must not be allowed to pile up answers either.
        self.pause_reading("writing")
        self._session.set_writable(is_writable=False)

    def _writing_resumed(self) -> None:
        self.protocol.resume_reading("writing")
        self._session.set_writable(is_writable=True)

    # ------------------------------------------------------------ the edge's side

    def check_alive(self, now_s: float, bounds: ConnectionBounds, *, has_listened: bool) -> None:
        """Ping a silent peer, cut off one that has been silent for too long while the broker listened."""
        keepalive_s = bounds.keepalive_s
        if self.is_stranger:
            if has_listened and now_s - self._opened_s > bounds.handshake_s:
                self.protocol.abort()
            return
        silent_s = now_s - self.protocol.last_received_ns / 1e9
        if self.protocol.is_reading_paused and not self.protocol.is_writing_paused:
            return
        if has_listened and silent_s > SILENCES_MAX * keepalive_s:
            log.info("connection cut off after silence", extra={"peer": self.address})
            self.protocol.abort()
        elif silent_s > keepalive_s and self._wire.state is ConnectionState.OPEN:
            self.send(Ping())

    def say_goodbye(self, reason: str) -> None:
        if self._can_send(Opcode.GOODBYE):
            self.protocol.write(self._wire.send(Goodbye(reason)))
        self.protocol.close()


class BinaryEdge:
    """The listening side of the native protocol."""

    def __init__(self, door: Door, loop: asyncio.AbstractEventLoop, broker_name: str) -> None:
        self.door = door
        # Looked at for every frame.
        self.commits, self.gathering = door.commits, door.gathering
        self.loop = loop
        self.broker_name = broker_name
        self.advertised_url = ""
        self.connections: dict[BinaryConnection, None] = {}
        self.strangers: dict[BinaryConnection, None] = {}
        """Those that had not introduced themselves when it was last looked, the oldest first."""
        self.large_frames = ReadingTurns(LARGE_FRAMES)
        self._large_frames_watch: asyncio.TimerHandle | None = None
        self.refusals = 0
        self.written: list[StreamProtocol[Frame]] = []
        """Connections that were written to during the commit under way."""
        self.commits.on_answered = self.flush
        self._busy_poll = BusyPoll(loop)
        self._listener: Listener | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._checked_s = loop.time()
        self._emptied: asyncio.Future[None] | None = None

    async def open(self, host: str, port: int, advertised_host: str) -> int:
        """Listen; returns the real port."""
        self._listener = await listen(host, port, lambda: BinaryConnection(self).protocol)
        self.advertised_url = f"danube://{advertised_host}:{self._listener.port}"
        self._check_all()
        return self._listener.port

    def _check_all(self) -> None:
        now_s = self.loop.time()
        bounds = self.door.bounds
        interval_s = bounds.keepalive_s / KEEPALIVE_CHECKS
        # Whoever comes much too late to this did not run (a busy machine, or one that was asleep) and did not listen.
        has_listened = now_s - self._checked_s < 2 * interval_s
        self._checked_s = now_s
        for connection in list(self.connections):
            connection.check_alive(now_s, bounds, has_listened=has_listened)
        self._sweep = self.loop.call_later(interval_s, self._check_all)

    def close(self) -> None:
        """Accept nobody any more and send everyone away."""
        self.door.begin_stop()
        if self._listener is not None:
            self._listener.close()
        for timer in (self._sweep, self._large_frames_watch):
            if timer is not None:
                timer.cancel()
        for connection in list(self.connections):
            connection.say_goodbye("the broker is stopping")

    def send_a_stranger_away(self, besides: BinaryConnection) -> bool:
        """Whoever has waited for longest without introducing itself goes; whether there was one."""
        while self.strangers:
            oldest = next(iter(self.strangers))
            if oldest is besides:
                return False
            del self.strangers[oldest]
            if oldest.is_stranger:
                oldest.protocol.abort()
                return True
        return False

    def watch_large_frames(self) -> None:
        """While there are some, see who does not come to an end."""
        if self._large_frames_watch is None:
            self._large_frames_watch = self.loop.call_later(LARGE_FRAMES_WATCH_S, self._watch)

    def _watch(self) -> None:
        self._large_frames_watch = None
        self.large_frames.tick(self.loop.time())
        if self.large_frames.reading:
            self.watch_large_frames()

    async def wait_closed(self) -> None:
        """Until the last connection has ended."""
        if self.connections:
            self._emptied = self.loop.create_future()
            await self._emptied

    def read_ended(self, count: int) -> None:
        """All frames of a read of `count` bytes are handled.

        What they published can go to the journal now; if it is written at once, its answers leave together with the
        others.
        """
        self.gathering.release()
        self._busy_poll.on_turn(count)

    def flush(self) -> None:
        """Send now what would otherwise wait for the loop's next turn."""
        if not self.written:
            return
        written, self.written = self.written, []
        large: list[StreamProtocol[Frame]] = []
        # Deliveries were written behind answers, and have a longer way before them. What is large goes last.
        for protocol in reversed(written):
            if protocol.gathered_bytes < LARGE_WRITE_BYTES:
                protocol.flush()
            else:
                large.append(protocol)
        for protocol in large:
            protocol.flush()

    def forget(self, connection: BinaryConnection) -> None:
        self.connections.pop(connection, None)
        self.strangers.pop(connection, None)
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)
