"""What operators may ask of a broker: one struct a request, the same for the wire, HTTP and the command line.

Import the module, not the names (`from danubius.model import admin`): commands of the wire have some of the same.
Requests travel as maps with their kind under `request`; what a broker does not know in one, it refuses, since an
operator's wish must not be obeyed in part. `ADMIN_REPLIES` says which reply answers which request.
`model/admin_codec.py` reads and writes them; a request that came through it has passed its `check`.

Where a topic is named, it may be a partitioned one: the request is then about all its partitions.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from danubius.errors import InvalidArgument
from danubius.model.admin_replies import (
    AdminReply,
    BrokerDescribed,
    ConsumersListed,
    DeadLettersListed,
    Done,
    EventsListed,
    MessagesCounted,
    MessagesPeeked,
    NamespaceDescribed,
    NamespaceMeasured,
    NamespacesListed,
    PositionsSet,
    ProducersListed,
    SettingsDescribed,
    SettingValue,
    SubscriptionDescribed,
    SubscriptionsListed,
    TopicDescribed,
    TopicMeasured,
    TopicsListed,
    TransactionsListed,
    kebab,
)
from danubius.model.ids import parse_name, parse_topic_name
from danubius.model.limits import NAME_LENGTH_MAX
from danubius.model.policy import COUNT_MAX, PARTITIONS_MAX, FailurePolicy, Policies
from danubius.model.subscription import LATEST, AtOffset, AtTime, Position, SubscriptionType
from danubius.model.topic import TopicSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LIMIT_MAX: Final = 1000
"""Lines of one page."""
LIMIT: Final = 100
OFFSET_MAX: Final = 2**63 - 1
TRANSACTION_MAX: Final = 2**64 - 1
SETTINGS_MAX: Final = 100
"""Changed by one request."""


def _bounds(least: int, most: int) -> msgspec.Meta:
    """For the schema. `check` refuses what lies outside, with the same words on every way in."""
    return msgspec.Meta(extra_json_schema={"minimum": least, "maximum": most})


Limit = Annotated[int, _bounds(1, LIMIT_MAX)]
Partitions = Annotated[int, _bounds(0, PARTITIONS_MAX)]


class Request(
    msgspec.Struct,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    tag_field="request",
    tag=kebab,
):
    """Base of all requests."""

    def check(self) -> None:
        """Refuse what cannot be meant, naming the field: fields of one name have one rule, in every request."""
        for name in self.__struct_fields__:
            rule = _RULES.get(name)
            value = getattr(self, name)
            if rule is not None and value is not None:
                rule(value)


class PageRequest(Request, frozen=True, gc=False, kw_only=True):
    """A request for a part of a list."""

    after: str = ""
    """Go on behind this: the `next` of the page before."""
    limit: Limit = LIMIT
    """Lines at the most."""


class OfSubscription(Request, frozen=True, gc=False):
    """A request about one subscription."""

    topic: str
    subscription: str


# ---------------------------------------------------------------- namespaces


class ListNamespaces(PageRequest, frozen=True, gc=False):
    """Which namespaces are there?"""


class DescribeNamespace(Request, frozen=True, gc=False):
    """What holds in a namespace?"""

    namespace: str


class CreateNamespace(Request, frozen=True, gc=False):
    """Create a namespace."""

    namespace: str
    policies: Policies = Policies()
    exist_ok: bool = False
    """Do not complain if it is there already, with the same policies."""


class UpdateNamespace(Request, frozen=True, gc=False):
    """Change the policies of a namespace, and with it those of its topics."""

    namespace: str
    policies: Policies
    """Absent ones stay as they are, null: back to the broker's."""


class DeleteNamespace(Request, frozen=True, gc=False):
    """Delete a namespace."""

    namespace: str
    force: bool = False
    """With all its topics; otherwise it must be empty."""


class MeasureNamespace(Request, frozen=True, gc=False):
    """What do the topics of a namespace hold and do?"""

    namespace: str


# ---------------------------------------------------------------- topics


class ListTopics(PageRequest, frozen=True, gc=False):
    """Which topics are there?"""

    namespace: str | None = None
    """Only of this one."""


class DescribeTopic(Request, frozen=True, gc=False):
    """What is a topic, and who uses it?"""

    topic: str


class CreateTopic(Request, frozen=True, gc=False):
    """Create a topic."""

    topic: str
    spec: TopicSpec = TopicSpec()
    """What it is, with its own policies."""
    partitions: Partitions = 0
    """0: it is not partitioned."""
    exist_ok: bool = False
    """Do not complain if it is there already, with the same settings."""


class UpdateTopic(Request, frozen=True, gc=False):
    """Change a topic's policies, or add partitions."""

    topic: str
    policies: Policies = Policies()
    """Absent ones stay as they are, null: back to the namespace's."""
    partitions: Partitions | None = None
    """As many from now on, at least as many as before; null: as it is."""

    def check(self) -> None:
        super().check()
        if self.partitions is not None:
            _check_range("partitions", self.partitions, 1, PARTITIONS_MAX)


class DeleteTopic(Request, frozen=True, gc=False):
    """Delete a topic with its messages and subscriptions; ends its producers and consumers."""

    topic: str


class MeasureTopic(Request, frozen=True, gc=False):
    """What does a topic hold and do?"""

    topic: str


# ---------------------------------------------------------------- subscriptions


class ListSubscriptions(PageRequest, frozen=True, gc=False):
    """Which subscriptions does a topic have?"""

    topic: str


class DescribeSubscription(OfSubscription, frozen=True, gc=False):
    """How does a subscription stand?"""


class CreateSubscription(OfSubscription, frozen=True, gc=False):
    """Create a subscription without a consumer."""

    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: Position = LATEST
    failure: FailurePolicy | None = None
    """Null: as the topic's policies say."""
    exist_ok: bool = False
    """Do not complain if it is there already."""


class UpdateSubscription(OfSubscription, frozen=True, gc=False):
    """Change a subscription's failure policy, live."""

    failure: FailurePolicy | None
    """The whole policy; null: as the topic's policies say."""


class DeleteSubscription(OfSubscription, frozen=True, gc=False):
    """Delete a subscription; what it had not acknowledged no longer holds messages back."""

    force: bool = False
    """Also while consumers are attached, which ends them."""


class SeekSubscription(OfSubscription, frozen=True, gc=False):
    """Go on from another position, back or forward; attached consumers attach again by themselves."""

    to: Position
    """An offset is refused for a partitioned topic."""


class SkipMessages(OfSubscription, frozen=True, gc=False):
    """Acknowledge the first messages that are not acknowledged."""

    count: Annotated[int, _bounds(1, COUNT_MAX)]


class PeekMessages(OfSubscription, frozen=True, gc=False):
    """Where do the first messages lie that are not acknowledged? Nothing changes."""

    limit: Limit = 1
    """Messages at the most."""


class ClearBacklog(OfSubscription, frozen=True, gc=False):
    """Acknowledge everything up to now."""


class UnblockSubscription(OfSubscription, frozen=True, gc=False):
    """Deliver again what failed too often, counting from the start."""


class ListEvents(OfSubscription, frozen=True, gc=False):
    """What happened to a subscription?"""

    after: Annotated[int, _bounds(0, OFFSET_MAX)] = 0
    """Only what came behind this number."""
    limit: Limit = LIMIT
    """Events at the most."""


class ListDeadLetters(PageRequest, frozen=True, gc=False):
    """Which messages of a subscription failed too often, and why?"""

    topic: str
    """The original one."""
    subscription: str


class RedriveDeadLetters(OfSubscription, frozen=True, gc=False):
    """Publish a subscription's dead letters to their original topic again, the oldest first."""

    count: Annotated[int, _bounds(1, COUNT_MAX)] | None = None
    """At the most; null: all."""


class PurgeDeadLetters(OfSubscription, frozen=True, gc=False):
    """Give up a subscription's dead letters, the oldest first."""

    count: Annotated[int, _bounds(1, COUNT_MAX)] | None = None
    """At the most; null: all."""


# ---------------------------------------------------------------- producers, consumers, transactions, broker


class ListProducers(PageRequest, frozen=True, gc=False):
    """Who publishes to a topic?"""

    topic: str


class DisconnectProducer(Request, frozen=True, gc=False):
    """End a producer."""

    topic: str
    producer: str


class ListConsumers(PageRequest, frozen=True, gc=False):
    """Who consumes from a topic?"""

    topic: str
    subscription: str | None = None
    """Only of this one."""


class DisconnectConsumer(OfSubscription, frozen=True, gc=False):
    """End a consumer; what it had not acknowledged goes to others."""

    consumer: str


class ListTransactions(PageRequest, frozen=True, gc=False):
    """Which transactions are open?"""


class AbortTransaction(Request, frozen=True, gc=False):
    """End a transaction without a trace."""

    transaction: Annotated[int, _bounds(0, TRANSACTION_MAX)]


class DescribeBroker(Request, frozen=True, gc=False):
    """What is this broker, and how does it do?"""


class DescribeSettings(Request, frozen=True, gc=False):
    """What are the broker's settings, and where do they come from?"""


class UpdateSettings(Request, frozen=True, gc=False):
    """Change settings of the broker that need no restart, until it ends."""

    settings: dict[str, SettingValue]
    """Values by path, as `policies.ttl_ms`, with units where they help. Null: back to file, environment and flags."""


AdminRequest = (
    ListNamespaces
    | DescribeNamespace
    | CreateNamespace
    | UpdateNamespace
    | DeleteNamespace
    | MeasureNamespace
    | ListTopics
    | DescribeTopic
    | CreateTopic
    | UpdateTopic
    | DeleteTopic
    | MeasureTopic
    | ListSubscriptions
    | DescribeSubscription
    | CreateSubscription
    | UpdateSubscription
    | DeleteSubscription
    | SeekSubscription
    | SkipMessages
    | PeekMessages
    | ClearBacklog
    | UnblockSubscription
    | ListEvents
    | ListDeadLetters
    | RedriveDeadLetters
    | PurgeDeadLetters
    | ListProducers
    | DisconnectProducer
    | ListConsumers
    | DisconnectConsumer
    | ListTransactions
    | AbortTransaction
    | DescribeBroker
    | DescribeSettings
    | UpdateSettings
)

ADMIN_REPLIES: Final[dict[type[AdminRequest], type[AdminReply]]] = {
    ListNamespaces: NamespacesListed,
    DescribeNamespace: NamespaceDescribed,
    CreateNamespace: NamespaceDescribed,
    UpdateNamespace: NamespaceDescribed,
    DeleteNamespace: Done,
    MeasureNamespace: NamespaceMeasured,
    ListTopics: TopicsListed,
    DescribeTopic: TopicDescribed,
    CreateTopic: TopicDescribed,
    UpdateTopic: TopicDescribed,
    DeleteTopic: Done,
    MeasureTopic: TopicMeasured,
    ListSubscriptions: SubscriptionsListed,
    DescribeSubscription: SubscriptionDescribed,
    CreateSubscription: SubscriptionDescribed,
    UpdateSubscription: SubscriptionDescribed,
    DeleteSubscription: Done,
    SeekSubscription: PositionsSet,
    SkipMessages: MessagesCounted,
    PeekMessages: MessagesPeeked,
    ClearBacklog: MessagesCounted,
    UnblockSubscription: MessagesCounted,
    ListEvents: EventsListed,
    ListDeadLetters: DeadLettersListed,
    RedriveDeadLetters: MessagesCounted,
    PurgeDeadLetters: MessagesCounted,
    ListProducers: ProducersListed,
    DisconnectProducer: Done,
    ListConsumers: ConsumersListed,
    DisconnectConsumer: Done,
    ListTransactions: TransactionsListed,
    AbortTransaction: Done,
    DescribeBroker: BrokerDescribed,
    DescribeSettings: SettingsDescribed,
    UpdateSettings: SettingsDescribed,
}
"""Which reply answers which request, if no error does."""
assert set(ADMIN_REPLIES) == set(typing.get_args(AdminRequest))

# ---------------------------------------------------------------- rules


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{name} is {value}; it must be {least} to {most}")


def _check_after(after: str | int) -> None:
    if isinstance(after, int):
        _check_range("after", after, 0, OFFSET_MAX)


def _check_failure(failure: FailurePolicy) -> None:
    failure.check()
    if failure.dead_letter_topic:
        parse_topic_name(failure.dead_letter_topic)


def _check_policies(policies: Policies) -> None:
    policies.check()
    if isinstance(policies.failure, FailurePolicy):
        _check_failure(policies.failure)


def _check_spec(spec: TopicSpec) -> None:
    spec.check()
    _check_policies(spec.policies)


def _check_position(position: Position) -> None:
    if isinstance(position, AtOffset):
        _check_range("offset", position.offset, 0, OFFSET_MAX)
    elif isinstance(position, AtTime):
        _check_range("time_us", position.time_us, 0, OFFSET_MAX)


def _check_settings(settings: dict[str, SettingValue]) -> None:
    _check_range("the number of settings", len(settings), 1, SETTINGS_MAX)
    for path in settings:
        _check_range("the length of a setting's path", len(path), 1, NAME_LENGTH_MAX)


_RULES: Final[Mapping[str, Callable[[Any], object]]] = {
    "namespace": lambda name: parse_name("namespace", name),
    "topic": parse_topic_name,
    "subscription": lambda name: parse_name("subscription", name),
    "producer": lambda name: parse_name("producer", name),
    "consumer": lambda name: parse_name("consumer", name),
    "policies": _check_policies,
    "spec": _check_spec,
    "failure": _check_failure,
    "start": _check_position,
    "to": _check_position,
    "partitions": lambda count: _check_range("partitions", count, 0, PARTITIONS_MAX),
    "after": _check_after,
    "limit": lambda count: _check_range("limit", count, 1, LIMIT_MAX),
    "count": lambda count: _check_range("count", count, 1, COUNT_MAX),
    "settings": _check_settings,
    "transaction": lambda number: _check_range("transaction", number, 0, TRANSACTION_MAX),
}
