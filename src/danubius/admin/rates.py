"""Rates: averages of counters, which fade within about ten seconds.

Hot paths only count. Those who are at work are looked at every second, a few in each turn of the loop; where they are
many, 500 topics a second, so that figures never cost more than a hundredth of a core. Who is idle and slow enough to be
called still is forgotten.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from danubius.shard.hosting.consumer import ConsumerHandle
from danubius.shard.hosting.producer import ProducerHandle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard

INTERVAL_MS: Final = 1000
FADE_S: Final = 4.0
"""After this long a rate that stopped is a third of what it was."""
SLICE: Final = 50
"""Topics looked at in one turn of the loop."""
TOPICS_A_SECOND: Final = 500
STILL: Final = 0.01
"""Per second: less is none."""
DECIMALS: Final = 3
"""Of a rate as it is told: the others say nothing."""


class RateMeter:
    """The rates of some counters that belong together."""

    __slots__ = ("_last_ns", "_totals", "rates")

    def __init__(self, totals: tuple[int, ...], now_ns: int) -> None:
        self._totals = totals
        self._last_ns = now_ns
        self.rates = [0.0] * len(totals)

    @property
    def is_still(self) -> bool:
        return all(rate < STILL for rate in self.rates)

    def look(self, totals: tuple[int, ...], now_ns: int) -> None:
        elapsed_s = (now_ns - self._last_ns) / 1e9
        if elapsed_s <= 0:
            return
        weight = 1 - math.exp(-elapsed_s / FADE_S)
        for at, (before, after) in enumerate(zip(self._totals, totals, strict=True)):
            # A counter falls when what it was summed over is gone.
            rate = max(0, after - before) / elapsed_s
            faded = self.rates[at] + (rate - self.rates[at]) * weight
            self.rates[at] = faded if rate or faded >= STILL else 0.0
        self._totals, self._last_ns = totals, now_ns


class Rates:
    """The rates of everything that is at work."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._meters: dict[object, RateMeter] = {}
        self._round: Iterator[Topic] | None = None
        self._allowed = 0
        self._next: dict[object, RateMeter] = {}

    def start(self) -> None:
        self._shard.ticks.add(INTERVAL_MS, self.begin_round)

    def of(self, subject: object, count: int) -> tuple[float, ...]:
        """The rates of a topic, subscription, consumer or producer, as many as it has; zeros if it is still."""
        meter = self._meters.get(subject)
        if meter is None:
            return (0.0,) * count
        return tuple(round(rate, DECIMALS) for rate in meter.rates)

    def begin_round(self) -> None:
        """Look at everything, in turns; a round that is still under way goes on."""
        is_waiting = self._round is not None and self._allowed == 0
        self._allowed = TOPICS_A_SECOND
        if is_waiting:
            self._go_on()
        shard = self._shard
        is_begun = self._round is None
        if is_begun:
            self._round = iter(list(shard.topics_by_id.values()))
            self._next = {}
        totals = (shard.messages_in, shard.bytes_in, shard.messages_out, shard.bytes_out)
        self._look(shard, totals, is_busy=True)
        if is_begun:
            self._go_on()

    def _go_on(self) -> None:
        assert self._round is not None
        for _ in range(min(SLICE, self._allowed)):
            self._allowed -= 1
            topic = next(self._round, None)
            if topic is None:
                self._round = None
                self._meters, self._next = self._next, {}
                return
            if topic.attached or topic.subscriptions or topic in self._meters:
                self._look_at_topic(topic)
        if self._allowed:
            self._shard.loop.call_soon(self._go_on)

    def _look_at_topic(self, topic: Topic) -> None:
        delivered = delivered_bytes = 0
        for subscription in topic.subscriptions.values():
            delivered += subscription.delivered
            delivered_bytes += subscription.delivered_bytes
            consumers = subscription.consumers
            if consumers:
                subscription.seen_ns = self._shard.clock.monotonic_ns()
            if not consumers and subscription not in self._meters:
                continue
            totals = (subscription.delivered, subscription.redelivered, subscription.acked)
            self._look(subscription, totals, is_busy=bool(consumers))
            for consumer in consumers.values():
                if isinstance(consumer, ConsumerHandle):
                    self._look(consumer, (consumer.delivered, consumer.redelivered), is_busy=True)
        pipeline = topic.pipeline
        totals = (pipeline.messages_in, pipeline.bytes_in, delivered, delivered_bytes)
        self._look(topic, totals, is_busy=bool(topic.attached))
        for producer in topic.attached.values():
            if isinstance(producer, ProducerHandle):
                totals = (producer.published_messages, producer.published_bytes)
                self._look(producer, totals, is_busy=True)

    def _look(self, subject: object, totals: tuple[int, ...], *, is_busy: bool) -> None:
        now_ns = self._shard.clock.monotonic_ns()
        meter = self._meters.get(subject)
        if meter is None:
            meter = RateMeter(totals, now_ns)
        else:
            meter.look(totals, now_ns)
        if is_busy or not meter.is_still:
            self._next[subject] = meter
