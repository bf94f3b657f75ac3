"""The commands of the native protocol: one frozen Struct per opcode, the same for both peers.

A command travels as a MessagePack array of its fields in the order written here. Fields are only ever appended,
with a default, so that an older peer ignores what it does not know and a newer one fills in what is missing.
An integer outside its range is refused like a wrong type. Commands marked "+ batches" are followed, in the same
frame, by raw record batches (see docs/internals/record-batch.md).
"""

from __future__ import annotations

from danubius.wire.commands.administration import Administer, Administered
from danubius.wire.commands.connection import Done, Error, Goodbye, Hello, Ping, Pong, Welcome
from danubius.wire.commands.consuming import (
    Ack,
    CloseConsumer,
    ConsumerActive,
    ConsumerClosed,
    Deliver,
    Fetch,
    Fetched,
    Flow,
    Nack,
    Subscribe,
    Subscribed,
)
from danubius.wire.commands.fields import RANGES_MAX, Access, Count, Handle, Ranges, Unsigned
from danubius.wire.commands.opcodes import Command, Opcode
from danubius.wire.commands.producing import (
    CloseProducer,
    OpenProducer,
    Produce,
    Produced,
    ProducerClosed,
    ProducerOpened,
    Schedule,
)
from danubius.wire.commands.staging import (
    AbortStages,
    CommitStages,
    OpenStage,
    StageOpened,
    Upload,
)
from danubius.wire.commands.topics import (
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    Located,
    Lookup,
    OffsetResolved,
    ResolveOffset,
    SubscriptionSummary,
    TopicChanged,
    TopicDescribed,
    TopicsListed,
    TopicSummary,
)
from danubius.wire.commands.transactions import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    Stage,
    StageAck,
    TransactionBegun,
)

AnyCommand = (
    Hello | Welcome | Ping | Pong | Error | Done | Goodbye
    | Lookup | Located | CreateTopic | DeleteTopic | ListTopics | TopicsListed | DescribeTopic | TopicDescribed
    | ResolveOffset | OffsetResolved | TopicChanged
    | Administer | Administered
    | OpenProducer | ProducerOpened | Produce | Produced | CloseProducer | ProducerClosed | Schedule
    | Subscribe | Subscribed | Flow | Deliver | Ack | Nack | CloseConsumer | ConsumerClosed | ConsumerActive
    | Fetch | Fetched
    | BeginTransaction | TransactionBegun | Stage | StageAck | CommitTransaction | AbortTransaction
    | OpenStage | StageOpened | Upload | CommitStages | AbortStages
)  # fmt: skip
"""One of the commands, for annotations and for the table of `wire/codec.py`."""

__all__ = [
    "RANGES_MAX",
    "AbortStages",
    "AbortTransaction",
    "Access",
    "Ack",
    "Administer",
    "Administered",
    "AnyCommand",
    "BeginTransaction",
    "CloseConsumer",
    "CloseProducer",
    "Command",
    "CommitStages",
    "CommitTransaction",
    "ConsumerActive",
    "ConsumerClosed",
    "Count",
    "CreateTopic",
    "DeleteTopic",
    "Deliver",
    "DescribeTopic",
    "Done",
    "Error",
    "Fetch",
    "Fetched",
    "Flow",
    "Goodbye",
    "Handle",
    "Hello",
    "ListTopics",
    "Located",
    "Lookup",
    "Nack",
    "OffsetResolved",
    "Opcode",
    "OpenProducer",
    "OpenStage",
    "Ping",
    "Pong",
    "Produce",
    "Produced",
    "ProducerClosed",
    "ProducerOpened",
    "Ranges",
    "ResolveOffset",
    "Schedule",
    "Stage",
    "StageAck",
    "StageOpened",
    "Subscribe",
    "Subscribed",
    "SubscriptionSummary",
    "TopicChanged",
    "TopicDescribed",
    "TopicSummary",
    "TopicsListed",
    "TransactionBegun",
    "Unsigned",
    "Upload",
    "Welcome",
]  # fmt: skip
