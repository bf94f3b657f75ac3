"""One connection to a broker, from the handshake to its loss.

Everything after the handshake is synchronous callbacks on the loop: no task waits for an answer. Invariants:
- Every `call` gets exactly one reply: the broker's answer, or BrokerUnavailable when the connection is lost.
- `on_lost` runs exactly once, and only for a session whose `open` succeeded; the calls under way are answered after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from danubius.client.version import CLIENT_NAME
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    DeadlineExceeded,
    ProtocolViolation,
    error_from_code,
)
from danubius.runtime.busy_poll import BusyPoll
from danubius.runtime.net import CLOSE_TIMEOUT_S, StreamProtocol, dial
from danubius.wire.commands import (
    AnyCommand,
    ConsumerActive,
    ConsumerClosed,
    Deliver,
    Error,
    Goodbye,
    Hello,
    Opcode,
    Ping,
    Pong,
    ProducerClosed,
    TopicChanged,
    Welcome,
)
from danubius.wire.connection import Connection
from danubius.wire.states import Role
from danubius.wire.version import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, check_version

if TYPE_CHECKING:
    from danubius.client.core.address import BrokerAddress
    from danubius.model.buffers import Buffer
    from danubius.wire.frame import Frame

log = logging.getLogger(__name__)

_CORRELATION_MAX: Final = 0xFFFF_FFFF
_GIVE_UP_KEEPALIVES: Final = 3
_GOODBYE_GRACE_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 2 * CLOSE_TIMEOUT_S
_ANSWER_WAIT_NS_MAX: Final = 500_000
"""For how long the loop stays awake for the answer to a lone request: a synced write takes hundreds of microseconds."""
_NO_PAYLOAD: Final = memoryview(b"")
_OPCODE_NAMES: Final = {int(opcode): opcode.name for opcode in Opcode}

OnReply = Callable[[AnyCommand | DanubiusError, memoryview], None]
"""Takes the broker's answer (or the error it is) and the record batches that came with it."""


class ProducerEvents(Protocol):
    """What the broker tells a producer unasked."""

    def on_closed_by_broker(self, error: DanubiusError) -> None: ...


class ConsumerEvents(Protocol):
    """What the broker tells a consumer unasked."""

    def on_delivery(self, delivery: Deliver, data: memoryview) -> None: ...

    def on_active(self, is_active: bool) -> None: ...

    def on_closed_by_broker(self, error: DanubiusError) -> None: ...


class SessionOwner(Protocol):
    """Who keeps the session."""

    def on_lost(self, error: DanubiusError) -> None: ...

    def on_writable(self) -> None: ...

    def on_topic_changed(self, topic: str) -> None: ...


class Session:
    """An open connection. Made by `Session.open`."""

    def __init__(
        self, address: BrokerAddress, owner: SessionOwner, *, busy_poll: bool = False
    ) -> None:
        self.producers: dict[int, ProducerEvents] = {}
        self.consumers: dict[int, ConsumerEvents] = {}
        self.is_writable = True
        self._address = address
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(Role.CLIENT)
        self._protocol: StreamProtocol[Frame] | None = None
        self._pending: dict[int, OnReply] = {}
        self._busy_poll = (
            BusyPoll(self._loop, _ANSWER_WAIT_NS_MAX, lambda: len(self._pending) == 1)
            if busy_poll
            else None
        )
        self._correlation = 0
        self._welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._cause: DanubiusError | None = None
        self._is_open = False
        self._is_lost = False
        self._keepalive_s = 0.0
        self._keepalive_timer: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        """Whether nothing that is sent now arrives anywhere."""
        return self._is_lost

    # ------------------------------------------------------------ life

    async def open(self, timeout_s: float) -> Welcome:
        """Dial and shake hands.

        Raises:
            BrokerUnavailable: nobody answers there.
            DeadlineExceeded: somebody does, and says nothing.
            UnsupportedVersion, ProtocolViolation: whoever it is speaks another protocol.
        """
        try:
            async with asyncio.timeout(timeout_s):
                self._protocol = await dial(
                    self._address.host, self._address.port, self._make_protocol, timeout_s=timeout_s
                )
                if not self._welcome.done():  # else the broker has refused us already
                    hello = Hello(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, CLIENT_NAME)
                    self._protocol.write(self._connection.send(hello))
                welcome = await self._welcome
                check_version(welcome)
                self._check_alive()
        except TimeoutError:
            await self._abandon()
            raise DeadlineExceeded(
                f"no broker answered at {self._address.url} within {timeout_s:g} s: check the address and the port"
            ) from None
        except BaseException:
            await self._abandon()
            raise
        self._is_open = True
        self._keepalive_s = welcome.keepalive_ms / 1000
        self._arm_keepalive()
        return welcome

    def _check_alive(self) -> None:
        """The broker may have hung up before we came to read its welcome."""
        if self._is_lost and self._cause is not None:
            raise self._cause

    async def close(self) -> None:
        """Say goodbye, and close after what was written before has left."""
        self._forget(BrokerUnavailable("the connection was closed"))
        if self._protocol is not None and not self._protocol.is_closing:
            if self._is_open:
                self._protocol.write(self._connection.send(Goodbye("done")))
            self._protocol.close()
        await self._wait_closed()

    async def _abandon(self) -> None:
        self.abort()
        await self._wait_closed()

    async def _wait_closed(self) -> None:
        """Until the socket is really gone: whoever ends the loop next must find nothing open."""
        if self._protocol is not None:
            await asyncio.wait((self._closed,), timeout=_CLOSE_TIMEOUT_S)

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._protocol is not None:
            self._protocol.abort()

    def disown(self, error: DanubiusError) -> None:
        """In a child process, after a fork: the connection is the parent's."""
        self._is_lost = True
        self._cause = error
        self._pending.clear()
        if self._protocol is not None:
            self._protocol.disown()

    # ------------------------------------------------------------ sending

    def call(
        self,
        command: AnyCommand,
        on_reply: OnReply,
        payload: Sequence[Buffer] = (),
        *,
        at_once: bool = False,
    ) -> None:
        """Send a request; its reply goes to `on_reply`, never during this call.

        It leaves at the end of the loop's turn, together with what else is sent till then, or `at_once`:
        for someone who has nothing else to do than to wait for the answer.
        """
        protocol = self._protocol
        # On a connection that is closing the request goes nowhere, and is answered when it has closed.
        if self._is_lost or protocol is None:
            error = self._cause or BrokerUnavailable("the connection is closed")
            self._loop.call_soon(on_reply, error, _NO_PAYLOAD)
            return
        self._correlation = correlation = self._correlation % _CORRELATION_MAX + 1
        try:
            buffers = self._connection.send(command, correlation, payload)
        except DanubiusError as error:
            self._loop.call_soon(on_reply, error, _NO_PAYLOAD)
            return
        self._pending[correlation] = on_reply
        protocol.write(buffers)
        if at_once:
            protocol.flush()
            if self._busy_poll is not None:
                self._busy_poll.on_turn(0)

    def tell(self, command: AnyCommand) -> None:
        """Send what is not answered. Does nothing on a lost connection: its owner hears of the loss anyway."""
        if self._is_lost or self._protocol is None or self._protocol.is_closing:
            return
        try:
            buffers = self._connection.send(command)
        except BrokerUnavailable:
            return
        self._protocol.write(buffers)

    def flush(self) -> None:
        """Hand to the socket now what otherwise leaves at the end of this turn of the loop."""
        if self._protocol is not None:
            self._protocol.flush()

    # ------------------------------------------------------------ receiving

    def _make_protocol(self) -> StreamProtocol[Frame]:
        return StreamProtocol(
            self._connection,
            self._on_frame,
            on_batch_end=None,
            on_closed=self._on_closed,
            on_protocol_error=self._on_protocol_error,
            on_pause_writing=partial(self._set_writable, False),
            on_resume_writing=partial(self._set_writable, True),
        )

    def _on_frame(self, frame: Frame) -> None:
        command, correlation, payload = frame
        if correlation and type(command) is not Ping:  # a ping's number is the broker's own
            on_reply = self._pending.pop(correlation, None)
            if on_reply is not None:
                if type(command) is Error:
                    on_reply(command.as_exception(), payload)
                else:
                    on_reply(command, payload)
                return
        if type(command) is Deliver:
            consumer = self.consumers.get(command.handle)
            if consumer is not None:
                consumer.on_delivery(command, payload)
            return
        self._on_rare(command, correlation)

    def _on_rare(self, command: AnyCommand, correlation: int) -> None:
        match command:
            case Ping():
                self._pong(correlation)
            case Welcome():
                if not self._welcome.done():
                    self._welcome.set_result(command)
            case Error(about=0):
                self._end(command.as_exception())
            case Error():
                self._on_refused(command)
            case Goodbye():
                self._end(BrokerUnavailable(f"the broker ended the connection: {command.reason}"))
            case ConsumerActive() | ConsumerClosed() | ProducerClosed():
                self._on_handle_event(command)
            case TopicChanged():
                if self._is_open and not self._is_lost:
                    self._owner.on_topic_changed(command.topic)
            case _:
                # An answer to a call that nobody waits for any more.
                log.debug("unexpected frame", extra={"opcode": command.opcode.name})

    def _on_handle_event(self, event: ConsumerActive | ConsumerClosed | ProducerClosed) -> None:
        if isinstance(event, ConsumerActive):
            if consumer := self.consumers.get(event.handle):
                consumer.on_active(event.is_active)
            return
        handles = self.consumers if isinstance(event, ConsumerClosed) else self.producers
        if owner := handles.pop(event.handle, None):
            owner.on_closed_by_broker(error_from_code(event.code, event.message))

    def _on_refused(self, refusal: Error) -> None:
        """A command that nobody waits for (an acknowledgement, credit) failed: the log is where that can be seen."""
        log.warning(
            "the broker refused a command",
            extra={
                "command": _OPCODE_NAMES.get(refusal.about, str(refusal.about)),
                "handle": refusal.handle,
                "error": str(refusal.as_exception()),
            },
        )

    def _pong(self, correlation: int) -> None:
        if self._protocol is not None and not self._protocol.is_closing:
            self._protocol.write(self._connection.send(Pong(), correlation))

    # ------------------------------------------------------------ losing

    def _end(self, cause: DanubiusError) -> None:
        """The broker said why the connection ends: remember it, the close is about to follow."""
        if self._cause is None:
            self._cause = cause
        if not self._welcome.done():
            self._welcome.set_exception(cause)
        else:
            # The broker may still answer what is under way, and closes. If it does not, we do.
            self._loop.call_later(_GOODBYE_GRACE_S, self.abort)

    def _on_protocol_error(self, error: DanubiusError) -> None:
        if self._cause is None:
            self._cause = error
        self.abort()

    def _on_closed(self, error: Exception | None) -> None:
        if self._cause is None:
            detail = f": {error}" if error is not None else ""
            url = self._address.url
            self._cause = BrokerUnavailable(f"the connection to {url} was lost{detail}")
        if not self._welcome.done():
            self._welcome.set_exception(self._cause)
        self._forget(self._cause)
        if not self._closed.done():
            self._closed.set_result(None)

    def _forget(self, error: DanubiusError) -> None:
        """Answer everything under way with the error, once."""
        if self._is_lost:
            return
        self._is_lost = True
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        if self._is_open:
            self._owner.on_lost(error)
        pending = self._pending
        self._pending = {}
        self.producers.clear()
        self.consumers.clear()
        for on_reply in pending.values():
            on_reply(error, _NO_PAYLOAD)

    # ------------------------------------------------------------ flow and liveness

    def _set_writable(self, is_writable: bool) -> None:
        self.is_writable = is_writable
        if is_writable and self._is_open and not self._is_lost:
            self._owner.on_writable()

    def _arm_keepalive(self) -> None:
        if self._keepalive_s > 0:
            self._keepalive_timer = self._loop.call_later(self._keepalive_s / 2, self._keep_alive)

    def _keep_alive(self) -> None:
        protocol = self._protocol
        if self._is_lost or protocol is None or protocol.is_closing:
            return
        now_s = self._loop.time()
        silent_s = now_s - protocol.last_received_ns / 1e9
        timer = self._keepalive_timer
        # Whoever comes much too late to this did not run, and so did not listen.
        has_listened = timer is not None and now_s - timer.when() < self._keepalive_s / 2
        if has_listened and silent_s >= self._keepalive_s * _GIVE_UP_KEEPALIVES:
            self._on_protocol_error(
                BrokerUnavailable(
                    f"the broker at {self._address.url} was silent for {silent_s:.1f} s"
                )
            )
            return
        if silent_s >= self._keepalive_s:
            self.call(Ping(), ignore)
        self._arm_keepalive()


def ignore(_reply: AnyCommand | DanubiusError, _payload: memoryview) -> None:
    """For answers that have nothing to say: a Pong, or the end of what nobody holds any more."""


def expect(reply: AnyCommand | DanubiusError, name: str) -> ProtocolViolation:
    """The error for an answer of the wrong kind."""
    kind = reply.opcode.name if not isinstance(reply, DanubiusError) else type(reply).__name__
    return ProtocolViolation(f"the broker answered {name} with {kind}")
