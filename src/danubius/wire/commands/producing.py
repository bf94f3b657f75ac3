"""From a producer's opening to its end. Produce and Produced are the hot ones."""

# ruff: noqa: TC001  # msgspec reads the annotations when the module is imported

from __future__ import annotations

from danubius.model.topic import TopicSpec
from danubius.wire.commands.fields import Access, Count, Handle, Unsigned
from danubius.wire.commands.opcodes import Command, Opcode


class OpenProducer(Command, frozen=True):
    """Attach a producer; creates the topic if it does not exist. Answered by ProducerOpened.

    `resume_epoch` 0 starts a new life of the name: the epoch rises and older producers of that name are fenced.
    Otherwise the producer continues after a lost connection and must still hold the current epoch.
    """

    opcode = Opcode.OPEN_PRODUCER
    topic: str
    name: str
    spec: TopicSpec
    """Used when the topic is created; an existing topic must have the same dispatch."""
    resume_epoch: Count = 0
    access: Access = Access.SHARED
    keep_sequence: bool = False
    """With a new life of the name, go on in the sequence of the last one, instead of starting again at 0."""
    is_delayed: bool = False
    """This producer sends Schedule, not Produce; the sequence counts batches, not messages."""


class ProducerOpened(Command, frozen=True):
    """`handle` names the producer on this connection; id and epoch go into every batch's header."""

    opcode = Opcode.PRODUCER_OPENED
    handle: Handle
    producer_id: Unsigned
    producer_epoch: Count
    next_sequence: Count
    """The base sequence that the broker expects of the next new batch."""


class Produce(Command, frozen=True):
    """+ batches (exactly one). Answered by Produced once durable as the topic asks."""

    opcode = Opcode.PRODUCE
    handle: Handle


class Produced(Command, frozen=True):
    """The batch is stored at `offset` (its first record). A repeated batch gets the first answer again."""

    opcode = Opcode.PRODUCED
    offset: Count


class CloseProducer(Command, frozen=True):
    """Detach. Answered by Done."""

    opcode = Opcode.CLOSE_PRODUCER
    handle: Handle


class ProducerClosed(Command, frozen=True):
    """Broker, unasked: the producer was ended (topic deleted, fenced). The handle is gone."""

    opcode = Opcode.PRODUCER_CLOSED
    handle: Handle
    code: Count
    message: str


class Schedule(Command, frozen=True):
    """+ batches (exactly one). Deliver it from `due_ms` (milliseconds since 1970, UTC) on, not before.

    Answered by Produced once it is durable; the offset there only counts what was scheduled. The messages get their
    offsets in the topic when they are due.
    """

    opcode = Opcode.SCHEDULE
    handle: Handle
    due_ms: Count
