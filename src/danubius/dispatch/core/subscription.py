"""The subscription: one deterministic state machine for all four types.

`handle` takes an event and returns effects to be performed in order. `poll`, asked when no event is
left to hand in, says what to read and when to wake: asking late means that one read serves all the
events before it, and that a connection that has just filled up costs no read in vain.

Invariants: at most one read is outstanding; message credit is never exceeded, byte credit by one
delivery at the most; nothing is delivered that is acknowledged or in flight; the cursor only rises.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, assert_never

from danubius.ack.core.failure import NO_RULE
from danubius.ack.core.ranges import merge_ranges
from danubius.dispatch.core.consumers import Consumer
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
    without_keys,
)
from danubius.dispatch.core.key_selector import KeySelector
from danubius.dispatch.core.keyed_window import KeyedWindow
from danubius.dispatch.core.limits import DEFAULT_LIMITS, WindowLimits
from danubius.dispatch.core.selectors import Selector, run_selector
from danubius.dispatch.core.window import Chunk, RunWindow, Window
from danubius.model.policy import Exhausted
from danubius.model.subscription import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from danubius.ack.core import failure
    from danubius.ack.core.cursor import Cursor
    from danubius.ack.core.failure import FailureRule
    from danubius.ack.core.ranges import Range, Segment

LOST: Final = "its consumer was lost before it acknowledged the message"
CHANGED: Final = "it had failed more often than the failure policy allows from now on"
LATE: Final = "it was not acknowledged in time"


class SubscriptionCore:
    """See the module."""

    __slots__ = (
        "_armed_ns",
        "_auto_ack",
        "_consumers",
        "_cursor",
        "_end",
        "_failures",
        "_flying_max",
        "_keyed",
        "_kind",
        "_limits",
        "_message_bytes",
        "_open_bytes",
        "_open_max",
        "_read_max",
        "_reading",
        "_retry_ns",
        "_rule",
        "_runs",
        "_selector",
        "_window",
        "dropped",
        "story",
    )

    def __init__(  # noqa: PLR0913  what it is made of
        self,
        kind: SubscriptionType,
        cursor: Cursor,
        *,
        end: int,
        auto_ack: bool = False,
        limits: WindowLimits = DEFAULT_LIMITS,
        rule: FailureRule = NO_RULE,
        attempts: Iterable[Segment[int]] = (),
    ) -> None:
        """`attempts`: how often messages failed before, in the order of offsets."""
        assert cursor.floor <= end, "the cursor is beyond the log"
        self._kind = kind
        self._cursor = cursor
        self._end = end
        self._auto_ack = auto_ack
        self._limits = limits
        self._consumers: dict[int, Consumer] = {}
        self._selector: Selector
        self._window: Window
        self._keyed: KeyedWindow | None = None  # the window, if the type deals in keys,
        self._runs: RunWindow | None = None  # or in runs
        if kind is SubscriptionType.KEY_SHARED:
            keys = KeySelector()
            self._selector = keys
            self._window = self._keyed = KeyedWindow(cursor, keys, limits, auto_ack=auto_ack)
            self._read_max = min(limits.keyed_read_bytes_max, limits.read_bytes_max)
        else:
            runs = run_selector(kind)
            self._selector = runs
            self._window = self._runs = RunWindow(cursor, runs, auto_ack=auto_ack)
            self._read_max = limits.read_bytes_max
        self._open_max = self._flying_max = limits.open_max(kind)
        self._reading: Read | None = None
        self._failures = 0
        self._retry_ns: int | None = None
        self._armed_ns: int | None = None
        self._message_bytes = 0
        self._open_bytes = 0
        self.dropped = 0
        """Messages that went by undelivered (non-reliable topics)."""
        self.story: deque[tuple[int, Event, list[Effect]]] = deque(maxlen=limits.story_events_max)
        """The last events with their effects, for a post-mortem."""
        self._rule = rule
        if not auto_ack:
            self._window.restore(attempts, end, open_max=self._open_max)
            self._window.set_rule(rule)
            self._flying_max = rule.flying_max(self._open_max)

    # ------------------------------------------------------------ facts

    @property
    def kind(self) -> SubscriptionType:
        return self._kind

    @property
    def cursor(self) -> Cursor:
        """What is acknowledged; to be read and encoded, changed only by events."""
        return self._cursor

    @property
    def end(self) -> int:
        return self._end

    @property
    def backlog(self) -> int:
        """Messages not yet acknowledged, delivered or not."""
        return self._cursor.backlog(self._end)

    @property
    def unacked(self) -> int:
        """Messages delivered and not yet acknowledged."""
        return self._window.in_flight

    @property
    def waiting(self) -> int:
        """Messages that were delivered, or taken for a key, and wait to go out."""
        return self._window.open_messages - self._window.in_flight

    @property
    def unmatched(self) -> int:
        """Messages that wait for a consumer that takes their key; not for hot paths."""
        return self._keyed.unmatched if self._keyed is not None else 0

    def unacked_of(self, consumer_id: int) -> int:
        """Messages that one consumer has; not for hot paths."""
        return self._window.in_flight_of(consumer_id)

    def credit_of(self, consumer_id: int) -> tuple[int, int]:
        """Messages and bytes that a consumer would take now."""
        consumer = self._consumers.get(consumer_id)
        return (consumer.messages, max(0, consumer.bytes)) if consumer is not None else (0, 0)

    @property
    def message_bytes(self) -> int:
        """The mean size of what was read last; 0: nothing was."""
        return self._message_bytes

    @property
    def rule(self) -> FailureRule:
        return self._rule

    @property
    def condemned_count(self) -> int:
        """Messages that failed too often, and about which nothing is decided."""
        return self._window.condemned_count

    @property
    def is_blocked(self) -> bool:
        """Whether something waits for an operator's decision."""
        return self._rule.blocks and self._window.condemned_count > 0

    def condemned(self) -> list[Segment[failure.Condemned]]:
        """What failed too often, in the order of offsets."""
        return self._window.condemned()

    @property
    def consumer_names(self) -> list[str]:
        return [one.name for one in self._consumers.values()]

    @property
    def has_consumers(self) -> bool:
        return bool(self._consumers)

    def can_join(self, name: str) -> bool:
        """Whether a consumer of this name may join now: a second exclusive one may not."""
        return self._selector.can_join(name)

    def is_active(self, consumer_id: int) -> bool:
        """False for a standby of a failover subscription."""
        return any(one.consumer_id == consumer_id for one in self._selector.active())

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take an event, return what it leads to. Ask `poll` once no event is left."""
        effects = self._handle(event, now_ns)
        self.story.append((now_ns, without_keys(event), effects))
        return effects

    def offer(self, first: int, end: int, size: int, now_ns: int) -> Deliver | None:
        """Take a batch that was just appended: its delivery as a whole, if nothing is in the way.

        It comes to the same as LogExtended, the read of this batch, its delivery and BytesSent, and ends where `poll`
        would ask for nothing. None: nothing was changed, and the ordinary way is to be gone.
        """
        runs = self._runs
        is_idle = self._reading is None and self._retry_ns is None
        if runs is None or not is_idle or first != self._end:
            return None
        delivery = runs.offer(first, end, now_ns, room=self._room)
        if delivery is None:
            return None
        self._end = end
        self._message_bytes = -(-size // (end - first))
        self._consumers[delivery.consumer_id].bytes -= size
        if not self._auto_ack:
            self._open_bytes += (end - first) * self._message_bytes
        self.story.append((now_ns, LogExtended(end), [delivery]))
        return delivery

    def poll(self, now_ns: int, budget: int | None = None) -> list[Effect]:
        """What to read next, within the `budget` of messages, and when to wake, if that has changed."""
        effects: list[Effect] = []
        read = self._next_read(now_ns, budget)
        if read is not None:
            self._reading = read
            effects.append(read)
        wake_ns = self._window.next_due_ns
        if self._retry_ns is not None and (wake_ns is None or self._retry_ns < wake_ns):
            wake_ns = self._retry_ns
        if wake_ns is not None and (self._armed_ns is None or wake_ns < self._armed_ns):
            self._armed_ns = wake_ns
            effects.append(WakeAt(wake_ns))
        return effects

    def check(self) -> None:
        """Assert every invariant; for tests and post-mortems."""
        self._cursor.check()
        self._window.check(self._end)
        assert self._cursor.floor <= self._end
        assert all(one.messages >= 0 for one in self._consumers.values()), "credit exceeded"
        assert all(one.consumer_id in self._consumers for one in self._selector.active())
        assert self._open_bytes >= 0 and self._window.open_messages <= self._open_max  # noqa: PT018

    def _handle(self, event: Event, now_ns: int) -> list[Effect]:  # noqa: C901, PLR0911, PLR0912  a table
        match event:
            case ReadCompleted():
                return self._on_read(event, now_ns)
            case BytesSent(consumer_id=consumer_id, bytes=size):
                consumer = self._consumers.get(consumer_id)
                if consumer is not None:
                    consumer.bytes -= size
            case LogExtended(end=end):
                self._end = max(self._end, end)
                return self._drop_unwanted()
            case Acked(ranges=ranges, is_durable=is_durable):
                return self._on_acked(ranges, is_durable=is_durable)
            case CreditGranted(consumer_id=consumer_id, messages=messages, bytes=size):
                consumer = self._consumers.get(consumer_id)
                if consumer is not None:
                    consumer.messages += messages
                    consumer.bytes += size
            case WritableChanged(consumer_id=consumer_id, is_writable=is_writable):
                consumer = self._consumers.get(consumer_id)
                if consumer is not None:
                    consumer.is_writable = is_writable
            case Nacked(consumer_id=consumer_id, ranges=ranges, delay_ns=delay_ns, reason=reason):
                self._window.reason = reason
                self._window.nack(consumer_id, ranges, delay_ns, now_ns)
                return self._judge()
            case Ticked():
                return self._on_ticked(now_ns)
            case ConsumerJoined():
                return self._on_joined(event)
            case ConsumerLeft(consumer_id=consumer_id, is_clean=is_clean):
                return self._on_left(consumer_id, is_clean=is_clean)
            case ReadFailed():
                self._on_read_failed(now_ns)
            case PolicyChanged(rule=rule):
                return self._on_policy(rule)
            case Released():
                self._window.release()
                return self._judge()
            case _:
                assert_never(event)
        return []

    def _on_joined(self, event: ConsumerJoined) -> list[Effect]:
        assert event.consumer_id not in self._consumers, "a consumer joins once"
        consumer = Consumer(event.consumer_id, event.name, event.ack_timeout_ns, event.key_filters)
        consumer.obey(self._rule.ack_timeout_ns)
        replaced = self._selector.join(consumer)
        effects: list[Effect] = []
        if replaced is not None:
            del self._consumers[replaced.consumer_id]
            self._window.reason = LOST
            self._window.give_back(replaced.consumer_id, is_clean=False)
            effects.append(Replaced(replaced.consumer_id))
        self._consumers[event.consumer_id] = consumer
        self._retry_ns = None  # it may have chosen to pass over what failed the others
        self._window.rebalance()
        if not self.is_active(event.consumer_id):
            effects.append(ActiveChanged(event.consumer_id, is_active=False))
        return effects + self._judge()

    def _on_left(self, consumer_id: int, *, is_clean: bool) -> list[Effect]:
        consumer = self._consumers.pop(consumer_id, None)
        if consumer is None:
            return []
        promoted = self._selector.leave(consumer)
        self._window.reason = LOST
        self._window.give_back(consumer_id, is_clean=is_clean)
        self._window.rebalance()
        effects = self._drop_unwanted() + self._judge()
        if promoted is not None:
            effects.append(ActiveChanged(promoted.consumer_id, is_active=True))
        return effects

    def _on_acked(self, ranges: Iterable[Range], *, is_durable: bool) -> list[Effect]:
        """Also takes what was delivered before a restart, but nothing beyond the log."""
        fresh = self._cursor.ack([(first, min(end, self._end)) for first, end in ranges])
        if not fresh:
            return []
        self._forget(fresh)
        return [] if self._auto_ack else [AckAdvanced(fresh, is_durable)]

    def _on_ticked(self, now_ns: int) -> list[Effect]:
        self._armed_ns = None
        if self._retry_ns is not None and self._retry_ns <= now_ns:
            self._retry_ns = None
        self._window.reason = LATE
        overdue = self._window.expire(now_ns)
        return [TimedOut(overdue), *self._judge()] if overdue else []

    # ------------------------------------------------------------ failures

    def _on_policy(self, rule: FailureRule) -> list[Effect]:
        if self._auto_ack:
            return []  # what was delivered is done with
        self._rule = rule
        self._flying_max = rule.flying_max(self._open_max)
        for consumer in self._consumers.values():
            consumer.obey(rule.ack_timeout_ns)
        self._window.reason = CHANGED
        self._window.set_rule(rule)
        return self._judge()

    def _judge(self) -> list[Effect]:
        """What failed is counted; what failed too often goes the policy's way."""
        window = self._window
        effects: list[Effect] = []
        if window.counted:
            effects.append(Counted(window.counted))
            window.counted = []
        if not window.fresh:
            return effects
        fresh, window.fresh = merge_ranges(window.fresh), []
        count = sum(end - first for first, end in fresh)
        reason = window.reason
        if self._rule.then is Exhausted.DEAD_LETTER:
            effects.append(Condemned(count, reason))
        elif self._rule.then is Exhausted.BLOCK:
            effects.append(Blocked(count, reason))
        else:
            self._cursor.ack(fresh)
            self._forget(fresh)
            effects += [AckAdvanced(fresh), Discarded(count, reason)]
        return effects

    # ------------------------------------------------------------ reading

    def _next_read(self, now_ns: int, budget: int | None) -> Read | None:
        if self._reading is not None or not self._consumers or budget == 0:
            return None
        if self._retry_ns is not None and now_ns < self._retry_ns:
            return None
        room = self._flying_max - self._window.in_flight
        wanted = self._window.wanted(self._end, may_open=self._room > 0) if room > 0 else None
        able = [one for one in self._selector.active() if one.has_room] if wanted else []
        if wanted is None or not able:
            return None
        bytes_max = min(self._read_max, sum(one.bytes for one in able))
        if self._message_bytes:
            room = self._room if wanted.is_new else room
            bounds = (wanted.messages, sum(one.messages for one in able), room, budget)
            messages = min(bound for bound in bounds if bound is not None)
            bytes_max = min(bytes_max, messages * self._message_bytes)
        return Read(wanted.first, wanted.end, bytes_max, wanted.is_new and self._keyed is not None)

    @property
    def _room(self) -> int:
        """How many new messages may be delivered, as far as credit goes."""
        window = self._window
        if self._open_bytes >= self._limits.unacked_bytes_max:
            return 0
        return min(self._open_max - window.open_messages, self._flying_max - window.in_flight)

    def _on_read(self, event: ReadCompleted, now_ns: int) -> list[Effect]:
        asked = self._reading
        assert asked is not None, "nobody asked for this read"
        if event.end <= asked.first:  # nothing found where there must be something
            self._on_read_failed(now_ns)
            return []
        self._reading = None
        self._failures = 0
        self._end = max(self._end, event.end)
        effects: list[Effect] = []
        if event.first > asked.first:
            effects += self._pass_over(asked.first, event.first)
        if event.first < event.end:
            effects += self._take(event, now_ns)
        return effects

    def _take(self, event: ReadCompleted, now_ns: int) -> Sequence[Effect]:
        # Rounded up, so that a read of the estimated size is never one message short.
        self._message_bytes = -(-event.size // (event.end - event.first))
        before = self._window.open_messages
        # The byte bound may have been reached during the read; what comes again may still go.
        open_max = self._open_max if self._room > 0 else before
        chunk = Chunk(event.first, event.end, event.keys)
        most = self._flying_max
        deliveries = self._window.take(chunk, now_ns, open_max=open_max, flying_max=most)
        self._open_bytes += (self._window.open_messages - before) * self._message_bytes
        if self._keyed is not None and (count := self._keyed.take_dropped()):
            self.dropped += count
            return [*deliveries, Dropped(count, is_filtered=True)]
        return [*deliveries, *self._judge()] if self._window.fresh else deliveries

    def _on_read_failed(self, now_ns: int) -> None:
        assert self._reading is not None, "nobody asked for this read"
        self._reading = None
        wait_ns = self._limits.retry_ns_min << min(self._failures, 16)
        self._failures += 1
        self._retry_ns = now_ns + min(wait_ns, self._limits.retry_ns_max)

    # ------------------------------------------------------------ moving on

    def _pass_over(self, first: int, end: int) -> list[Effect]:
        """[first, end) cannot be read any more: go on behind it, and say so."""
        fresh = self._cursor.ack([(first, end)])
        self._forget(fresh)
        if not fresh or not self._auto_ack:
            return [AckAdvanced(fresh)] if fresh else []
        count = sum(one_end - one_first for one_first, one_end in fresh)
        self.dropped += count
        return [Dropped(count)]

    def _drop_unwanted(self) -> list[Effect]:
        """On a non-reliable topic, what comes while nobody is there goes by."""
        if not self._auto_ack or self._consumers or self._cursor.floor >= self._end:
            return []
        return self._pass_over(self._cursor.floor, self._end)

    def _forget(self, acked: list[Range]) -> None:
        before = self._window.open_messages
        self._window.forget(acked)
        if self._window.open_messages < before:
            self._open_bytes = self._open_bytes * self._window.open_messages // before
