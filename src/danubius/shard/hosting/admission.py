"""Admission to topics that have limits: producers, consumers, subscriptions, rates, a quota.

A topic without limits has no gate, and publishing to it costs one look at None. Limits of a namespace on what flows and
what is stored (rates, quota) hold for all its topics together, and a topic's own hold beside them.

Rates lose nothing. A batch that finds a small debt is stored, and its answer waits until that debt is paid: the window
of the client is the brake, and nobody else on its connection is held up. One that finds more is refused with
`Throttled` and the time to wait; it was not stored, so a client that gives up then says so truthfully.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.errors import LimitReached, QuotaExceeded, Throttled
from danubius.model.ids import namespace_of
from danubius.model.limits import GIB, KIB, MIB
from danubius.model.policy import NO_LIMIT, Policies, QuotaAction
from danubius.shard.hosting.core.access import AccessGate
from danubius.shard.hosting.core.rate import Rates
from danubius.shard.hosting.dispatch_rates import DispatchRates

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.dispatch.gate import Timer
    from danubius.model.ids import TopicId
    from danubius.model.policy import Effective
    from danubius.shard.hosting.core.access import Claim
    from danubius.shard.hosting.subscription import Subscription
    from danubius.shard.hosting.topic import Topic

DEBT_MAX_NS: Final = 250_000_000
"""A batch that finds this much debt is refused: what is stored is never more than this ahead of the rate."""
WAIT_MAX_MS: Final = 5_000
"""Who is refused asks again after this long at the latest: the rate may have been raised."""
MEASURE_NS: Final = 100_000_000
"""How old the count of stored bytes may be when a batch is refused for it."""
OVERFULL_PERCENT: Final = 105
"""Beyond this much of a quota the oldest is dropped at once, not at the next round."""
HOPELESS_PERCENT: Final = 150
"""Beyond this much dropping does not keep up (the disk fails, say), and publishes are refused all the same."""


class Share:
    """What all topics of one namespace have together."""

    __slots__ = ("quota_action", "quota_bytes", "rates", "stored_bytes")

    def __init__(self) -> None:
        self.rates = Rates(0, 0)
        self.quota_bytes = NO_LIMIT
        self.quota_action = QuotaAction.REFUSE
        self.stored_bytes = 0
        """As of the last round, and what was let in since."""

    @property
    def is_free(self) -> bool:
        return self.rates.is_free and not self.quota_bytes


class Limits:
    """The gate of one topic that has limits."""

    __slots__ = (
        "_measured_ns",
        "_name",
        "_on_overfull",
        "_policies",
        "_rates",
        "_share",
        "_topic",
        "quota_bytes",
        "refused_batches",
        "stored_bytes",
        "throttled_batches",
    )

    def __init__(self, topic: Topic, on_overfull: Callable[[Topic], None]) -> None:
        self._topic = topic
        self._name = topic.name
        self._on_overfull = on_overfull
        self._policies = topic.policies
        self._rates = Rates(0, 0)
        self._share: Share | None = None
        self._measured_ns = 0
        self.quota_bytes = NO_LIMIT
        """Of the topic alone."""
        self.stored_bytes = topic.stored_bytes
        self.throttled_batches = 0
        """Answered late, or sent back to wait."""
        self.refused_batches = 0
        """For their size, or a quota."""

    def change(
        self, rates: tuple[int, int], quota_bytes: int, share: Share | None, now_ns: int
    ) -> None:
        """The topic's policies are others now; what is owed stays owed."""
        self._policies = self._topic.policies
        self._rates.change(*rates, now_ns)
        self.quota_bytes = quota_bytes
        self._share = share

    @property
    def may_drop(self) -> bool:
        """Whether the oldest goes when the quota is used up."""
        return self._policies.quota_action is QuotaAction.DROP_OLDEST

    # ------------------------------------------------------------ who may come

    def check_open(self, topic: Topic, others: int) -> None:
        del topic
        limit = self._policies.producers_max
        if limit and others >= limit:
            raise LimitReached(
                f"{self._name} has its {limit} producers; raise producers_max, or close one"
            )

    def check_subscribe(self, topic: Topic, subscription: Subscription | None) -> None:
        policies = self._policies
        limit = policies.subscriptions_max
        if subscription is None:
            if limit and len(topic.subscriptions) >= limit:
                raise LimitReached(
                    f"{self._name} has its {limit} subscriptions; raise subscriptions_max, or delete one"
                )
            return
        limit = policies.subscription_consumers_max
        if limit and len(subscription.consumers) >= limit:
            raise LimitReached(
                f"subscription {subscription.name!r} of {self._name} has its {limit} consumers; "
                "raise subscription_consumers_max, or close one"
            )
        limit = policies.consumers_max
        if limit and sum(len(s.consumers) for s in topic.subscriptions.values()) >= limit:
            raise LimitReached(
                f"{self._name} has its {limit} consumers; raise consumers_max, or close one"
            )

    # ------------------------------------------------------------ what may come

    def admit(self, count: int, size: int, now_ns: int) -> int:
        """Let a batch in and count it, or raise; how long, in ns, its answer has to wait."""
        share = self._share
        debt_ns = self._rates.debt_ns(now_ns)
        if share is not None:
            debt_ns = max(debt_ns, share.rates.debt_ns(now_ns))
        if debt_ns:
            self.throttled_batches += 1
            if debt_ns >= DEBT_MAX_NS:
                self._refuse_rate(debt_ns)
        if self.quota_bytes:
            self._check_quota(size, now_ns)
        if share is not None:
            self._check_share(share, size)
            share.rates.take(count, size, now_ns)
            share.stored_bytes += size
        self._rates.take(count, size, now_ns)
        self.stored_bytes += size
        return debt_ns

    def give_back(self, count: int, size: int) -> None:
        """A batch that was let in was not stored."""
        self._rates.give_back(count, size)
        self.stored_bytes -= size
        if self._share is not None:
            self._share.rates.give_back(count, size)
            self._share.stored_bytes -= size

    def measure(self) -> None:
        """Count what is stored anew; in between, what comes in is added.

        What waits for its time is stored too. It cannot be dropped, so it makes nothing else be dropped.
        """
        topic = self._topic
        self.stored_bytes = topic.stored_bytes + (0 if self.may_drop else topic.delayed_bytes)

    def _refuse_rate(self, debt_ns: int) -> None:
        wait_ms = (debt_ns - DEBT_MAX_NS // 2) // 1_000_000
        policies = self._policies
        rates = [
            f"{rate:,} {unit}/s"
            for rate, unit in (
                (policies.publish_messages_per_s, "messages"),
                (policies.publish_bytes_per_s, "bytes"),
            )
            if rate
        ]
        raise Throttled(
            f"{self._name} takes {' and '.join(rates)} and got more; try again in {wait_ms} ms, "
            "or raise publish_messages_per_s or publish_bytes_per_s",
            min(wait_ms, WAIT_MAX_MS),
        )

    def _check_quota(self, size: int, now_ns: int) -> None:
        quota = self.quota_bytes
        if self.stored_bytes + size <= quota:
            return
        if now_ns - self._measured_ns > MEASURE_NS:
            self._measured_ns = now_ns
            self.measure()
        if self.stored_bytes + size <= quota:
            return
        if self.may_drop:
            if self.stored_bytes * 100 > quota * OVERFULL_PERCENT:
                self._on_overfull(self._topic)
            if self.stored_bytes * 100 <= quota * HOPELESS_PERCENT:
                return
        self.refused_batches += 1
        raise QuotaExceeded(_overfull(self._name, self.stored_bytes, quota, size))

    def _check_share(self, share: Share, size: int) -> None:
        quota = share.quota_bytes
        if not quota or share.stored_bytes + size <= quota:
            return
        if share.quota_action is QuotaAction.DROP_OLDEST:
            if share.stored_bytes * 100 > quota * OVERFULL_PERCENT:
                self._on_overfull(self._topic)
            if share.stored_bytes * 100 <= quota * HOPELESS_PERCENT:
                return
        self.refused_batches += 1
        namespace = f"namespace {namespace_of(self._name)!r}"
        raise QuotaExceeded(_overfull(namespace, share.stored_bytes, quota, size))


class Admission:
    """The gates of a broker's topics, made from their policies."""

    def __init__(
        self,
        message_bytes_max: int,
        now_ns: Callable[[], int],
        call_at: Callable[[int, Callable[[], None]], Timer],
    ) -> None:
        self._message_bytes_max = message_bytes_max
        self._now_ns = now_ns
        self.dispatch = DispatchRates(now_ns, call_at)
        self.shares: dict[str, Share] = {}
        """By namespace; only of those that have limits of their own."""
        self.quotas: dict[TopicId, Topic] = {}
        """Topics that have a quota."""
        self.on_overfull: Callable[[Topic], None] = _nothing
        self._access: dict[TopicId, AccessGate] = {}
        """Of topics that have producers."""

    def access_to(self, topic: Topic) -> AccessGate:
        """Who holds the topic. Ask it for a place, and `leave` here."""
        access = self._access.get(topic.id)
        if access is None:
            access = self._access[topic.id] = AccessGate()
        return access

    def waiting_for(self, topic: Topic) -> list[Claim]:
        """Who waits for the topic to be free."""
        access = self._access.get(topic.id)
        return [] if access is None else access.waiting

    def leave(self, topic: Topic, claim: Claim) -> list[Claim]:
        """A place becomes free; whose turn it is now."""
        access = self._access.get(topic.id)
        if access is None:
            return []
        granted = access.leave(claim)
        if access.is_empty:
            del self._access[topic.id]
        return granted

    def apply(self, topic: Topic, namespace: Policies | None, own: Policies) -> None:
        """Give the topic the gate that its policies ask for, or none."""
        now_ns = self._now_ns()
        space = namespace_of(topic.name)
        share = self._share(space, namespace, now_ns)
        policies = topic.policies
        layer = namespace if namespace is not None else Policies()
        self.dispatch.apply(
            topic,
            space,
            (layer.dispatch_messages_per_s or 0, layer.dispatch_bytes_per_s or 0),
            (
                _own("dispatch_messages_per_s", policies, namespace, own),
                _own("dispatch_bytes_per_s", policies, namespace, own),
            ),
        )
        rates = (
            _own("publish_messages_per_s", policies, namespace, own),
            _own("publish_bytes_per_s", policies, namespace, own),
        )
        quota_bytes = _own("quota_bytes", policies, namespace, own)
        if quota_bytes and topic.is_reliable and not topic.parent:
            self.quotas[topic.id] = topic
        else:
            self.quotas.pop(topic.id, None)
        is_limited = (
            share is not None
            or any(rates)
            or policies.producers_max
            or policies.consumers_max
            or policies.subscriptions_max
            or policies.subscription_consumers_max
            or quota_bytes
            or policies.message_bytes_max < self._message_bytes_max
        )
        if not is_limited:
            topic.gate = None
            return
        gate = topic.gate
        if not isinstance(gate, Limits):
            topic.gate = gate = Limits(topic, self._overfull)
        gate.change(rates, quota_bytes, share, now_ns)

    def forget(self, topic: Topic) -> None:
        """The topic is gone."""
        self.quotas.pop(topic.id, None)
        self.dispatch.forget(topic)

    def _overfull(self, topic: Topic) -> None:
        self.on_overfull(topic)

    def _share(self, name: str, policies: Policies | None, now_ns: int) -> Share | None:
        share = self.shares.get(name)
        if share is None:
            if policies is None:
                return None
            share = Share()
        layer = policies if policies is not None else Policies()
        share.rates.change(
            layer.publish_messages_per_s or 0, layer.publish_bytes_per_s or 0, now_ns
        )
        share.quota_bytes = layer.quota_bytes or NO_LIMIT
        share.quota_action = layer.quota_action or QuotaAction.REFUSE
        if share.is_free:
            self.shares.pop(name, None)
            return None
        self.shares[name] = share
        return share


def _own(field: str, policies: Effective, namespace: Policies | None, own: Policies) -> int:
    """What holds for the topic alone: what it has from its namespace is kept there, for all together."""
    is_inherited = namespace is not None and getattr(namespace, field) and not getattr(own, field)
    value: int = 0 if is_inherited else getattr(policies, field)
    return value


def _overfull(what: str, stored: int, quota: int, size: int) -> str:
    return (
        f"{what} holds {_amount(stored)} of {_amount(quota)}, so {_amount(size)} more do not fit; raise quota_bytes, "
        "shorten its retention, or let quota_action be 'drop-oldest'"
    )


def _amount(count: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _nothing(_topic: Topic) -> None:
    """Nobody drops anything."""
