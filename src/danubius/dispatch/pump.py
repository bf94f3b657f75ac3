"""The pump: hands events to a subscription core and does what the core wants done.

Everything here is synchronous and runs on the loop's thread; there is no task. Callbacks may call
the pump again at any time: events queue up and are handled by the outermost call, so a log that
answers at once costs a turn of a loop, not a stack frame. A consumer with much credit and a long
backlog in memory gets it in turns of a few milliseconds, so that the others get theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, assert_never

from danubius.dispatch.chunk import ChunkCutter
from danubius.dispatch.core.effects import (
    AckAdvanced,
    ActiveChanged,
    Blocked,
    Condemned,
    Counted,
    Deliver,
    Discarded,
    Dropped,
    Effect,
    Read,
    Replaced,
    TimedOut,
    WakeAt,
)
from danubius.dispatch.core.events import (
    Acked,
    BytesSent,
    ConsumerJoined,
    ConsumerLeft,
    CreditGranted,
    Event,
    LogExtended,
    Nacked,
    PolicyChanged,
    ReadCompleted,
    ReadFailed,
    Released,
    Ticked,
    WritableChanged,
)
from danubius.errors import ConsumerReplaced, DanubiusError, LedgerDamaged, OffsetOutOfRange
from danubius.model.limits import FETCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.ack.core.failure import FailureRule
    from danubius.ack.core.ranges import Segment
    from danubius.dispatch.chunk import Chunk
    from danubius.dispatch.core.subscription import SubscriptionCore
    from danubius.dispatch.gate import DispatchGate
    from danubius.model.buffers import Buffer


TURN_NS: Final = 2_000_000
"""After this long a pump lets others run before it reads on."""


class Log(Protocol):
    """What a subscription reads: a managed ledger, or the ring of a non-reliable topic."""

    @property
    def start_offset(self) -> int: ...

    def read(
        self, first: int, bytes_max: int, on_done: Callable[[Chunk | DanubiusError], None]
    ) -> None:
        """Find whole batches from `first` on; may answer before it returns."""
        ...


class FailureSink(Protocol):
    """Who is told what becomes of messages that were not acknowledged. Must not call the pump before it returns."""

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """These were acknowledged by what is in the journal already."""
        ...

    def timed_out(self, count: int) -> None: ...

    def counted(self, segments: Sequence[Segment[int]]) -> None:
        """So often have messages failed: make it durable."""
        ...

    def condemned(self, count: int, reason: str) -> None:
        """Move what the core calls condemned to the dead-letter topic."""
        ...

    def blocked(self, count: int, reason: str) -> None: ...

    def discarded(self, count: int, reason: str) -> None: ...


class Expiry(Protocol):
    """Which messages are too old to be delivered."""

    def expired(self, chunk: Chunk) -> Sequence[tuple[int, int]]:
        """The offsets of those in a chunk, as rising ranges."""
        ...

    def count(self, messages: int) -> None:
        """So many were passed over."""
        ...


class Outlet(Protocol):
    """Where a consumer's deliveries go."""

    def deliver(
        self,
        first: int,
        end: int,
        messages: int,
        redelivery_count: int,
        buffers: Sequence[Buffer],
    ) -> None: ...

    def active_changed(self, is_active: bool) -> None: ...

    def closed(self, error: DanubiusError) -> None:
        """The consumer has been ended; it is already out of the subscription."""
        ...


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None: ...


class Pump:
    """One per subscription that has, or had, a consumer."""

    __slots__ = (
        "_asked",
        "_call_at",
        "_chunk",
        "_core",
        "_events",
        "_failures",
        "_gate",
        "_is_closed",
        "_is_running",
        "_log",
        "_now_ns",
        "_on_acked",
        "_on_dropped",
        "_on_filtered",
        "_outlets",
        "_skippers",
        "_timer",
        "_turn",
        "expiry",
    )

    def __init__(  # noqa: PLR0913  all that it acts on
        self,
        core: SubscriptionCore,
        log: Log,
        *,
        now_ns: Callable[[], int],
        call_at: Callable[[int, Callable[[], None]], Timer],
        on_acked: Callable[[list[tuple[int, int]]], None],
        on_dropped: Callable[[int], None],
        on_filtered: Callable[[int], None] | None = None,
        failures: FailureSink | None = None,
    ) -> None:
        self._core = core
        self._log = log
        self._now_ns = now_ns
        self._call_at = call_at
        self._on_acked = on_acked
        self._on_dropped = on_dropped
        self._on_filtered = on_filtered or on_dropped
        self._failures = failures
        self._gate: DispatchGate | None = None
        """None: it delivers as fast as it can."""
        self.expiry: Expiry | None = None
        """None: nothing expires."""
        self._outlets: dict[int, Outlet] = {}
        self._skippers: set[int] = set()
        """Consumers that chose to go on behind a damaged range, instead of being ended with an error."""
        self._events: list[Event] = []
        self._asked: Read | None = None
        self._chunk: ChunkCutter | None = None
        self._timer: Timer | None = None
        self._turn: Timer | None = None
        """Set while the pump lets others run before it reads on."""
        self._is_running = False
        self._is_closed = False

    # ------------------------------------------------------------ facts

    @property
    def core(self) -> SubscriptionCore:
        return self._core

    @property
    def unacked(self) -> int:
        return self._core.unacked

    @property
    def dropped(self) -> int:
        return self._core.dropped

    def can_join(self, name: str) -> bool:
        return self._core.can_join(name)

    def is_active(self, consumer_id: int) -> bool:
        return self._core.is_active(consumer_id)

    # ------------------------------------------------------------ events

    def join(
        self,
        consumer_id: int,
        name: str,
        outlet: Outlet,
        ack_timeout_ns: int = 0,
        *,
        skip_damaged: bool = False,
        key_filters: tuple[str, ...] = (),
    ) -> bool:
        """Add a consumer and return whether it is active. Ask `can_join` before.

        A standby is told so by `active_changed` before this returns.
        """
        self._outlets[consumer_id] = outlet
        if skip_damaged:
            self._skippers.add(consumer_id)
        # Not queued, so that the answer is true even when a callback of ours led here.
        event = ConsumerJoined(consumer_id, name, ack_timeout_ns, key_filters)
        for effect in self._core.handle(event, self._now_ns()):
            self._perform(effect)
        self._run()
        return self._core.is_active(consumer_id)

    def leave(self, consumer_id: int, *, is_clean: bool = False) -> None:
        """A consumer has gone; with `is_clean`, what it had in flight does not count as failed."""
        if self._forget(consumer_id) is not None:
            self._submit(ConsumerLeft(consumer_id, is_clean))

    def grant(self, consumer_id: int, messages: int, size: int) -> None:
        self._submit(CreditGranted(consumer_id, messages, size))

    def set_writable(self, consumer_id: int, is_writable: bool) -> None:
        self._submit(WritableChanged(consumer_id, is_writable))

    def extended(self, end: int) -> None:
        self._submit(LogExtended(end))

    def appended(self, first: int, end: int, batch: memoryview) -> None:
        """The log was extended by this one batch: who has had everything before it gets it without a read."""
        is_idle = not self._is_running and not self._events and self._turn is None
        size = len(batch)
        is_plain = self._gate is None and self.expiry is None
        if self._is_closed or not is_idle or size > FETCH_BYTES_MAX or not is_plain:
            self._submit(LogExtended(end))
            return
        delivery = self._core.offer(first, end, size, self._now_ns())
        if delivery is None:
            self._submit(LogExtended(end))
            return
        self._is_running = True
        try:
            self._outlets[delivery.consumer_id].deliver(first, end, end - first, 0, (batch,))
        finally:
            self._is_running = False
        if self._events:
            self._run()

    def acked(self, ranges: Sequence[tuple[int, int]], *, is_durable: bool = False) -> None:
        self._submit(Acked(ranges, is_durable))

    def nacked(
        self,
        consumer_id: int,
        ranges: Sequence[tuple[int, int]],
        delay_ns: int = 0,
        reason: str = "",
    ) -> None:
        self._submit(Nacked(consumer_id, ranges, delay_ns, reason))

    def set_rule(self, rule: FailureRule) -> None:
        """Another failure policy holds."""
        if rule is not self._core.rule:
            self._submit(PolicyChanged(rule))

    @property
    def gate(self) -> DispatchGate | None:
        return self._gate

    def set_gate(self, gate: DispatchGate | None) -> None:
        """Other rates hold, or none."""
        if self._gate is not None:
            self._gate.forget(self)
        self._gate = gate
        self.go_on()

    def go_on(self) -> None:
        """What was delivered is paid for."""
        if not self._is_closed:
            self._run()

    def release(self) -> None:
        """Deliver again what failed too often."""
        self._submit(Released())

    def close(self, error: DanubiusError | None = None) -> None:
        """Stop for good. With an error, every consumer that is left is ended with it."""
        self._is_closed = True
        self._events.clear()
        self._chunk = None
        for timer in (self._timer, self._turn):
            if timer is not None:
                timer.cancel()
        self._timer = self._turn = None
        if self._gate is not None:
            self._gate.forget(self)
        outlets, self._outlets = self._outlets, {}
        if error is not None:
            for outlet in outlets.values():
                outlet.closed(error)

    # ------------------------------------------------------------ the turn

    def _submit(self, event: Event) -> None:
        if self._is_closed:
            return
        self._events.append(event)
        self._run()

    def _run(self) -> None:
        if self._is_running:
            return
        self._is_running = True
        turn_end_ns = self._now_ns() + TURN_NS
        try:
            while not self._is_closed:
                events, self._events = self._events, []
                for event in events:
                    self._handle(event)
                if self._events:
                    continue
                self._chunk = None
                now_ns = self._now_ns()
                if self._turn is not None:
                    return
                if now_ns > turn_end_ns:
                    self._turn = self._call_at(now_ns, self._on_turn)
                    return
                gate = self._gate
                budget = gate and gate.budget(self, self._core.message_bytes, now_ns)
                for effect in self._core.poll(now_ns, budget):
                    self._perform(effect)
                if not self._events:
                    return
        finally:
            self._is_running = False

    def _handle(self, event: Event) -> None:
        for effect in self._core.handle(event, self._now_ns()):
            if self._is_closed:
                return
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:  # noqa: C901, PLR0912  a table
        match effect:
            case Deliver():
                self._deliver(effect)
            case Read():
                self._asked = effect
                self._log.read(effect.first, effect.bytes_max, self._on_read)
            case AckAdvanced(ranges=ranges):
                if effect.is_durable and self._failures is not None:
                    self._failures.settled(ranges)
                else:
                    self._on_acked(list(ranges))
            case WakeAt(now_ns=now_ns):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._call_at(now_ns, self._on_timer)
            case ActiveChanged(consumer_id=consumer_id, is_active=is_active):
                if consumer_id in self._outlets:
                    self._outlets[consumer_id].active_changed(is_active)
            case Dropped(count=count, is_filtered=is_filtered):
                tell = self._on_filtered if is_filtered else self._on_dropped
                tell(count)
            case Replaced(consumer_id=consumer_id):
                self._end(consumer_id, ConsumerReplaced("a consumer of the same name joined"))
            case TimedOut() | Counted() | Condemned() | Blocked() | Discarded():
                if self._failures is not None:
                    _tell(self._failures, effect)
            case _:
                assert_never(effect)

    def _deliver(self, effect: Deliver) -> None:
        assert self._chunk is not None, "a delivery is always of the chunk just read"
        for frame in self._chunk.cut(effect.first, effect.end, effect.offsets):
            outlet = self._outlets.get(effect.consumer_id)
            if outlet is None:
                return  # it left during this turn: its ConsumerLeft is queued and gives this back
            self._events.append(BytesSent(effect.consumer_id, frame.size))
            if self._gate is not None:
                self._gate.spent(frame.messages, frame.size, self._now_ns())
            outlet.deliver(
                frame.first, frame.end, frame.messages, effect.redelivery_count, frame.buffers
            )

    # ------------------------------------------------------------ answers

    def _on_turn(self) -> None:
        self._turn = None
        self._run()

    def _on_timer(self) -> None:
        self._timer = None
        self._submit(Ticked())

    def _on_read(self, answer: Chunk | DanubiusError) -> None:
        asked, self._asked = self._asked, None
        if self._is_closed or asked is None:
            return
        if isinstance(answer, DanubiusError):
            self._on_read_error(answer)
            return
        chunk = ChunkCutter(answer)
        keys = chunk.keys() if asked.wants_keys else None
        self._chunk = chunk
        end, size = answer.end, answer.size
        if self._gate is not None and end > asked.first:
            end, size = self._clip(self._gate, max(asked.first, answer.first), answer)
        if self.expiry is not None:
            self._pass_over(self.expiry, answer)
        self._submit(ReadCompleted(answer.first, end, size, keys))

    def _pass_over(self, expiry: Expiry, chunk: Chunk) -> None:
        """What has expired counts as acknowledged before anything of the chunk is delivered."""
        ranges = expiry.expired(chunk)
        if ranges:
            unacked = self._core.cursor.unacked
            expiry.count(sum(last - at for r in ranges for at, last in unacked(*r)))
            self._events.append(Acked(ranges))

    def _clip(self, gate: DispatchGate, first: int, chunk: Chunk) -> tuple[int, int]:
        """The end and size of what may be delivered of a chunk now; the rest is read again."""
        messages = chunk.end - chunk.first
        # What it was asked for may be spent by others who share the pace: then one goes on credit.
        most = max(1, gate.portion(chunk.size // messages, self._now_ns()))
        end = min(chunk.end, first + most)
        return end, chunk.size * (end - chunk.first) // messages

    def _on_read_error(self, error: DanubiusError) -> None:
        match error:
            case LedgerDamaged(end=end):
                self._on_damage(error, end)
            case OffsetOutOfRange():  # what lies below the start is gone, whoever needed it
                start = self._log.start_offset
                self._submit(ReadCompleted(start, start, 0))
            case _:
                self._submit(ReadFailed())

    def _on_damage(self, error: DanubiusError, end: int) -> None:
        """End those who did not choose to pass over it; if anyone is left, go on behind it."""
        ended = [one for one in self._outlets if one not in self._skippers]
        outlets = [self._outlets.pop(one) for one in ended]
        for consumer_id in ended:
            self._submit(ConsumerLeft(consumer_id, is_clean=True))
        self._submit(ReadCompleted(end, end, 0) if self._outlets else ReadFailed())
        for outlet in outlets:
            outlet.closed(error)

    def _end(self, consumer_id: int, error: DanubiusError) -> None:
        outlet = self._forget(consumer_id)
        if outlet is not None:
            self._submit(ConsumerLeft(consumer_id))
            outlet.closed(error)

    def _forget(self, consumer_id: int) -> Outlet | None:
        self._skippers.discard(consumer_id)
        return self._outlets.pop(consumer_id, None)


def _tell(sink: FailureSink, effect: TimedOut | Counted | Condemned | Blocked | Discarded) -> None:
    match effect:
        case TimedOut(count=count):
            sink.timed_out(count)
        case Counted(segments=segments):
            sink.counted(segments)
        case Condemned(count=count, reason=reason):
            sink.condemned(count, reason)
        case Blocked(count=count, reason=reason):
            sink.blocked(count, reason)
        case Discarded(count=count, reason=reason):
            sink.discarded(count, reason)
