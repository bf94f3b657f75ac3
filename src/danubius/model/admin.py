"""Requests of operators: one struct a request, the same for the wire, HTTP and the command line.

Import the module, not the names (`from danubius.model import admin`): commands of the wire have some of the same.
Requests travel as maps with their kind under `request`; what a broker does not know in one, it refuses, since an
operator's wish must not be obeyed in part. `ADMIN_REPLIES` says which reply answers which request.
`model/admin_codec.py` reads and writes them; a request that came through it has passed its `check`.

Where a topic is named, it may be a partitioned one: the request is then about all its partitions.
"""

from __future__ import annotations

import typing
from typing import Annotated, Final

import msgspec

from danubius.model.admin_replies import (
    AdminReply,
    BrokerDescribed,
    ConsumersListed,
    DeadLettersListed,
    Done,
    EventsListed,
    LedgerChecked,
    LedgersListed,
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
    TopicOffloading,
    TopicsListed,
    TransactionsListed,
    kebab,
)
from danubius.model.admin_rules import (
    LEDGER_MAX,
    LIMIT,
    LIMIT_MAX,
    OFFSET_MAX,
    RULES,
    TRANSACTION_MAX,
    check_range,
)
from danubius.model.policy import COUNT_MAX, PARTITIONS_MAX, FailurePolicy, Policies
from danubius.model.subscription import LATEST, Position, SubscriptionType
from danubius.model.topic import TopicSpec


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
            rule = RULES.get(name)
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
            check_range("partitions", self.partitions, 1, PARTITIONS_MAX)


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


class ListLedgers(PageRequest, frozen=True, gc=False):
    """Of which ledgers does a topic consist, and where do they lie?"""

    topic: str


class OffloadTopic(Request, frozen=True, gc=False):
    """Move what a topic holds to cold storage now; asked again, how far that has come."""

    topic: str
    until: dict[str, int] = {}
    """Up to which offset, by topic, as the first answer said; absent: up to the end, as it is now."""


class CheckLedger(Request, frozen=True, gc=False):
    """Read one ledger of a topic wherever it lies, and prove every checksum."""

    topic: str
    ledger_id: Annotated[int, _bounds(0, LEDGER_MAX)]


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
    | ListLedgers
    | OffloadTopic
    | CheckLedger
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
    ListLedgers: LedgersListed,
    OffloadTopic: TopicOffloading,
    CheckLedger: LedgerChecked,
    ListTransactions: TransactionsListed,
    AbortTransaction: Done,
    DescribeBroker: BrokerDescribed,
    DescribeSettings: SettingsDescribed,
    UpdateSettings: SettingsDescribed,
}
"""Which reply answers which request, if no error does."""
assert set(ADMIN_REPLIES) == set(typing.get_args(AdminRequest))
