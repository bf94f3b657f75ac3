"""Dispatch rates of subscriptions.

A topic's dispatch rates are of each of its subscriptions: none slows the others down. Those of a namespace are of all
subscriptions of all its topics together; who waits for them takes turns. A subscription without rates has no gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.dispatch.gate import DispatchGate, Pace
from danubius.shard.hosting.core.rate import Rates

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.dispatch.gate import Timer
    from danubius.model.ids import TopicId
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic


class _Shared(Pace):
    """The pace of a namespace."""

    __slots__ = ("limits", "per_s")

    def __init__(
        self,
        now_ns: Callable[[], int],
        call_at: Callable[[int, Callable[[], None]], Timer],
    ) -> None:
        self.limits = Rates(0, 0)
        self.per_s: tuple[int, int] = (0, 0)
        super().__init__(self.limits, now_ns, call_at)


class DispatchRates:
    """The gates of a broker's subscriptions."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        call_at: Callable[[int, Callable[[], None]], Timer],
    ) -> None:
        self._now_ns = now_ns
        self._call_at = call_at
        self._shared: dict[str, _Shared] = {}
        """By namespace; only of those that have rates."""
        self._own: dict[TopicId, tuple[int, int]] = {}
        """Messages and bytes a second of topics that have rates of their own."""
        self._sharers: dict[TopicId, _Shared] = {}

    def apply(
        self, topic: Topic, namespace: str, shared: tuple[int, int], own: tuple[int, int]
    ) -> None:
        """These rates hold from now on: (messages, bytes) a second of the namespace, and of the topic alone."""
        pace = self._pace_of(namespace, shared)
        if pace is self._sharers.get(topic.id) and own == self._own.get(topic.id, (0, 0)):
            return
        if pace is None:
            self._sharers.pop(topic.id, None)
        else:
            self._sharers[topic.id] = pace
        if any(own):
            self._own[topic.id] = own
        else:
            self._own.pop(topic.id, None)
        for subscription in topic.subscriptions.values():
            self.attach(topic, subscription)

    def attach(self, topic: Topic, subscription: Subscription) -> None:
        """Give the subscription's pump the gate that it has to pass, or none."""
        pump = subscription.pump
        if pump is None:
            return
        paces: list[Pace] = []
        own, shared = self._own.get(topic.id), self._sharers.get(topic.id)
        if own is not None:
            paces.append(self._own_pace(pump.gate, own))
        if shared is not None:
            paces.append(shared)
        if paces or pump.gate is not None:
            pump.set_gate(DispatchGate(*paces) if paces else None)

    def forget(self, topic: Topic) -> None:
        """The topic is gone; its pumps are closed, and wait for nothing."""
        self._own.pop(topic.id, None)
        self._sharers.pop(topic.id, None)

    def _own_pace(self, before: DispatchGate | None, rates: tuple[int, int]) -> Pace:
        """The subscription's own pace, at other rates: what it owes stays owed."""
        for pace in before.paces if before is not None else ():
            if not isinstance(pace, _Shared) and isinstance(pace.rates, Rates):
                pace.rates.change(*rates, self._now_ns())
                return pace
        return Pace(Rates(*rates), self._now_ns, self._call_at)

    def _pace_of(self, namespace: str, rates: tuple[int, int]) -> _Shared | None:
        pace = self._shared.get(namespace)
        if not any(rates):
            self._shared.pop(namespace, None)
            return None
        if pace is None:
            pace = self._shared[namespace] = _Shared(self._now_ns, self._call_at)
        if rates != pace.per_s:
            pace.per_s = rates
            pace.limits.change(*rates, self._now_ns())
            pace.changed()
        return pace
