"""Gets a producer's batches to the broker: in order, each stored once, whatever happens to connections.

The outbox decides what may be sent; this is the shell around it: it sends, hears the answers, waits out trouble,
attaches again after a loss, and gives up what is too old. Everything is a callback on the loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from danubius.client.connection.attachment import Attachment
from danubius.client.connection.gate import finish
from danubius.client.connection.session import expect
from danubius.client.core.outbox import Outbox, Parcel
from danubius.client.core.repeat import fresh
from danubius.client.core.retry import Backoff, Verdict, judge_refusal
from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    DeadlineExceeded,
    Retry,
    Throttled,
)
from danubius.model.topic import Dispatch
from danubius.runtime import ambient
from danubius.wire.commands import (
    Access,
    AnyCommand,
    CloseProducer,
    OpenProducer,
    Produce,
    Produced,
    ProducerOpened,
)

if TYPE_CHECKING:
    from danubius.client.connection.route import Route
    from danubius.client.connection.session import Session
    from danubius.client.options import ProducerOptions
    from danubius.client.producing.settlement import Settlement

_EXPIRY_STEP_MIN_NS: Final = 1_000_000
_ANSWER_GRACE_NS: Final = 250_000_000


class ShipperOwner(Protocol):
    """The producer."""

    def on_progress(self) -> None:
        """A batch is out of the way, or a connection is there: more may be shipped."""
        ...

    def on_ended(self, error: DanubiusError) -> None:
        """Nothing will be stored any more."""
        ...


class Shipper:
    """The way of one producer's batches to the broker."""

    def __init__(self, route: Route, owner: ShipperOwner, options: ProducerOptions) -> None:
        self.outbox: Outbox[Settlement] = Outbox()
        self.unheard: DanubiusError | None = None
        """The first failure of messages that nobody waits for."""
        self._owner = owner
        self._options = options
        self._send_timeout_ns = int(options.send_timeout_s * 1e9)
        self._route = route
        self._loop = asyncio.get_running_loop()
        self.attachment = Attachment(route, self, ProducerOpened)
        self._backoff = Backoff(ambient.chance)
        self._session: Session | None = None
        self._produce: Produce | None = None
        self._is_renewing = False
        self._is_ended = False
        self._is_troubled = False
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._trouble: DanubiusError | None = None
        self._refusal: DanubiusError | None = None
        """What the broker keeps saying on this connection, while it stores nothing."""
        self._refused_from = 0
        """Number of the batch it said it of: those before may be stored, and only their answers late."""
        self._asked_again_ns = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and a batch would leave at once."""
        outbox, session = self.outbox, self._session
        return (
            not outbox.bytes
            and outbox.barrier is None
            and session is not None
            and session.is_writable
            and self._stall_timer is None
        )

    async def open(self) -> None:
        is_patient = self._options.access is Access.WAIT_FOR_EXCLUSIVE
        await self.attachment.open(None if is_patient else self._route.options.request_timeout_s)

    async def close(self, error: DanubiusError, timeout_s: float) -> None:
        """Let go of the topic; what is still under way fails with `error`."""
        session, produce = self._session, self._produce
        self.end(error)
        if session is None or produce is None:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        session.call(CloseProducer(produce.handle), partial(finish, done))
        await asyncio.wait((done,), timeout=timeout_s)

    def end(self, error: DanubiusError) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self.attachment.end()
        self._let_go()
        for timer in (self._expiry_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        for parcel in self.outbox.drain():
            self.report(parcel.token, error)
        self._owner.on_ended(error)

    # ------------------------------------------------------------ shipping

    def add(
        self, buffer: bytes | bytearray, count: int, settlement: Settlement, since_ns: int
    ) -> None:
        """Queue an encoded batch; `since_ns` is when its first message was accepted."""
        deadline_ns = since_ns + self._send_timeout_ns
        self.outbox.add(buffer, count, deadline_ns, settlement)
        if self._expiry_timer is None:
            self._arm_expiry(deadline_ns - ambient.monotonic_ns())

    def ship(
        self, buffer: bytes | bytearray, count: int, settlement: Settlement, since_ns: int
    ) -> None:
        """`add` and `pump`, without the queue if nothing is before it."""
        if self.is_idle:
            self._pass_through(buffer, count, settlement, since_ns, at_once=False)
        else:
            self.add(buffer, count, settlement, since_ns)
            self.pump()

    def ship_at_once(
        self, buffer: bytes | bytearray, count: int, settlement: Settlement, since_ns: int
    ) -> None:
        """`ship` and `flush_socket` in one step, while `is_idle`."""
        self._pass_through(buffer, count, settlement, since_ns, at_once=True)

    def _pass_through(
        self,
        buffer: bytes | bytearray,
        count: int,
        settlement: Settlement,
        since_ns: int,
        *,
        at_once: bool,
    ) -> None:
        session, produce = self._session, self._produce
        assert session is not None
        assert produce is not None
        outbox = self.outbox
        deadline_ns = since_ns + self._send_timeout_ns
        parcel = outbox.pass_through(buffer, count, deadline_ns, settlement)
        if self._expiry_timer is None:
            self._arm_expiry(deadline_ns - ambient.monotonic_ns())
        on_reply = partial(self._on_reply, parcel, outbox.generation)
        session.call(produce, on_reply, (buffer,), at_once=at_once)

    def pump(self) -> None:
        """Send what may be sent now."""
        session, produce = self._session, self._produce
        if session is None or produce is None or not session.is_writable:
            return
        if self._stall_timer is not None:
            return
        outbox = self.outbox
        for parcel in outbox.take():
            on_reply = partial(self._on_reply, parcel, outbox.generation)
            session.call(produce, on_reply, (parcel.buffer,))

    def flush_socket(self) -> None:
        """Let what was pumped leave now."""
        if self._session is not None:
            self._session.flush()

    def report(self, settlement: Settlement, error: DanubiusError) -> None:
        """Tell whoever waits for a batch that it failed."""
        if not settlement.failed(error) and self.unheard is None:
            self.unheard = fresh(error)

    # ------------------------------------------------------------ answers

    def _on_reply(
        self,
        parcel: Parcel[Settlement],
        generation: int,
        reply: AnyCommand | DanubiusError,
        _payload: memoryview,
    ) -> None:
        if type(reply) is Produced:
            if self.outbox.settle(parcel):
                parcel.token.stored(reply.offset)
                if self._is_troubled and not self._is_held_up(parcel):
                    self._calm_down()
                self._owner.on_progress()
            return
        if generation != self.outbox.generation or parcel.is_settled:
            return
        error = reply if isinstance(reply, DanubiusError) else expect(reply, "PRODUCE")
        self._trouble = error
        self._is_troubled = True
        match judge_refusal(error):
            case Verdict.RESEND:
                self._refusal = error if not isinstance(error, BrokerUnavailable) else None
                self._refused_from = parcel.ordinal
                self.outbox.rewind()
                self._stall(error)
                self._expire_if_due()
            case Verdict.LOOK_AGAIN:
                self.outbox.not_taken(parcel)
                self.attachment.look_again(error)
            case Verdict.REOPEN:
                self._reopen()
            case Verdict.FAIL_BATCH:
                # The batches behind it are out of sequence from here on: the first of them reopens.
                self.outbox.settle(parcel)
                self.report(parcel.token, error)
                self._calm_down()
                self._owner.on_progress()
            case Verdict.FAIL_PRODUCER:
                self.end(error)

    def _calm_down(self) -> None:
        """A batch got its answer in spite of the trouble before."""
        self._refusal = None
        self._is_troubled = self.outbox.has_gap
        self._backoff.reset()
        self.attachment.calm()
        self._renew_if_needed()

    # ------------------------------------------------------------ waiting and giving up

    def _is_held_up(self, parcel: Parcel[Settlement]) -> bool:
        """Whether this answer to `parcel` was only late, and says nothing about a refusal behind it."""
        return self._stall_timer is not None and parcel.ordinal < self._refused_from

    def _stall(self, error: DanubiusError) -> None:
        """Send nothing for a while: as long as the broker asked for, if it did."""
        if self._stall_timer is not None:
            return
        wait_ms = error.wait_ms if isinstance(error, Throttled) else 0
        wait_s = wait_ms / 1000 if wait_ms else self._backoff.next_delay_s()
        self._stall_timer = self._loop.call_later(wait_s, self._unstall)

    def _unstall(self) -> None:
        self._stall_timer = None
        self._asked_again_ns = ambient.monotonic_ns()
        self.pump()

    def _arm_expiry(self, delay_ns: int) -> None:
        delay_s = max(delay_ns, _EXPIRY_STEP_MIN_NS) / 1e9
        self._expiry_timer = self._loop.call_later(delay_s, self._expire)

    def _expire_if_due(self) -> None:
        """The answer that a batch past its time was waiting for is there."""
        oldest = self.outbox.oldest
        if oldest is not None and oldest.deadline_ns <= ambient.monotonic_ns():
            if self._expiry_timer is not None:
                self._expiry_timer.cancel()
            self._expire()

    def _expire(self) -> None:
        """Give up what is too old, and look again when the next one could be: one timer for all."""
        self._expiry_timer = None
        now_ns = ambient.monotonic_ns()
        answer_due_ns = self._asked_again_ns + _ANSWER_GRACE_NS
        if self._refusal is not None and self._stall_timer is None and now_ns < answer_due_ns:
            # Refused, and just sent again: with the answer it is known what became of it, so give it a moment.
            self._arm_expiry(answer_due_ns - now_ns)
            return
        expired = self.outbox.expired(now_ns)
        for parcel in expired:
            self.outbox.settle(parcel)
            self.report(parcel.token, self._too_late(parcel))
        oldest = self.outbox.oldest
        if oldest is not None:
            self._arm_expiry(oldest.deadline_ns - now_ns)
        if expired:
            self._renew_if_needed()
            self._owner.on_progress()

    def _too_late(self, parcel: Parcel[Settlement]) -> DanubiusError:
        topic, timeout_s = self._options.topic, self._options.send_timeout_s
        is_refused = self._refusal is not None and parcel.ordinal >= self._refused_from
        if self._refusal is not None and is_refused and self._stall_timer is not None:
            # Nothing is under way: the broker's last word is that it did not store this.
            return type(self._refusal)(
                f"{topic} took no messages: gave up after {timeout_s:g} s, the broker says:"
                f" {self._refusal.message}"
            )
        trouble = self.attachment.refusal or self._trouble
        why = f"; the last trouble was: {trouble.message}" if trouble else ""
        return DeadlineExceeded(f"no acknowledgement from {topic} within {timeout_s:g} s{why}")

    # ------------------------------------------------------------ attaching

    def attach_command(self) -> AnyCommand:
        options = self._options
        resume_epoch = 0 if self._is_renewing else self.outbox.producer_epoch
        return OpenProducer(
            options.topic,
            options.name,
            options.spec,
            resume_epoch,
            options.access,
            options.resume,
        )

    def detach_command(self, handle: int) -> AnyCommand:
        return CloseProducer(handle)

    def on_attached(self, session: Session, reply: ProducerOpened) -> None:
        outbox = self.outbox
        is_resumed = (
            not self._is_renewing
            and outbox.producer_epoch == reply.producer_epoch
            and outbox.producer_id == reply.producer_id
        )
        self._session = session
        self._produce = Produce(reply.handle)
        self._is_renewing = False
        session.producers[reply.handle] = self
        if is_resumed:
            outbox.resumed(reply.next_sequence)
            if self._options.spec.dispatch is Dispatch.NON_RELIABLE:
                self._give_up_doubtful()
            self._renew_if_needed()
        else:
            if self._options.spec.dispatch is Dispatch.NON_RELIABLE:
                self._give_up_doubtful()
            outbox.opened(reply.producer_id, reply.producer_epoch, reply.next_sequence)
        self._owner.on_progress()

    def _give_up_doubtful(self) -> None:
        """At most once: a broker that forgot us may have passed these on, so they are not sent again."""
        for parcel in self.outbox.doubtful():
            self.outbox.settle(parcel)
            self.report(
                parcel.token,
                BrokerUnavailable(
                    "the connection was lost before the answer came, and with it the message"
                ),
            )

    def on_detached(self) -> None:
        self._is_troubled = True
        self._refusal = None  # from here on nobody knows what the broker has
        # A renewal under way stays one: its answer may be lost, and resuming the old epoch would then fence us out.
        self._let_go()
        self.outbox.rewind()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def on_ended(self, error: DanubiusError) -> None:
        self.end(error)

    def on_closed_by_broker(self, error: DanubiusError) -> None:
        self._trouble = error
        self._is_troubled = True
        if error.retry is Retry.AFTER_LOOKUP:
            self.attachment.look_again(error)
        elif error.is_retryable:
            self._reopen()
        else:
            self.end(error)

    def flush_nowait(self) -> None:
        self.pump()

    def _reopen(self) -> None:
        """Ask the broker, on this connection, how far it got."""
        self.outbox.rewind()
        self._let_go()
        self.attachment.attach_later()

    def _renew_if_needed(self) -> None:
        """Past a gap, start a new epoch: the only way on that cannot store anything twice."""
        if self.outbox.needs_epoch and not self._is_renewing:
            self._is_renewing = True
            self._let_go()
            self.attachment.attach()

    def _let_go(self) -> None:
        """Forget the handle: nothing is sent until there is a new one."""
        if self._session is not None and self._produce is not None:
            self._session.producers.pop(self._produce.handle, None)
        self._session = None
        self._produce = None
