"""The door that every batch of a client comes through, whether it is published at once, later, or with others.

Invariants:
- What is refused here was counted nowhere, and is refused in the same words whichever way it came.
- What was stored before is only answered again: it is not refused, and costs nothing.
- Whoever was let in and is not stored after all gives back what it took (`Admitted.give_back`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DanubiusError, MessageTooLarge
from danubius.record.batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from danubius.publish.core.sequencer import Producer
    from danubius.record.batch import Header
    from danubius.shard.hosting.topic import Topic, TopicGate
    from danubius.shard.shard import Shard

ONE_RECORD_BYTES_MAX: Final = 128
"""What the columns of a single record add to its payload, key and attributes, rounded up."""


class Admitted(NamedTuple):
    """A batch that a topic with limits let in."""

    gate: TopicGate
    messages: int
    size: int
    wait_ns: int
    """How long its answer has to wait."""

    def give_back(self) -> None:
        """It was not stored after all."""
        self.gate.give_back(self.messages, self.size)


def admit(
    shard: Shard,
    topic: Topic,
    batch: memoryview,
    header: Header | None = None,
    producer: Producer | None = None,
) -> Admitted | None:
    """Let a batch into a topic, or raise; None: the topic has no limits, or it was stored before.

    `header` is the batch's, if it is known. `producer` is whose sequence tells a repeated batch; without one it is new.
    """
    if topic.is_deleting:
        topic.check_open()
    # Two plain looks for every batch: only then may there be a refusal.
    may_refuse = shard.pressure.refusal is not None or shard.ledgers.failure is not None
    if may_refuse and topic.is_reliable:
        try:
            shard.pressure.check()
        except DanubiusError:
            if producer is None or not _is_repeated(header or read_header(batch), producer):
                raise
            return None
    if topic.gate is None and len(batch) <= shard.config.message_bytes_max:
        return None
    header = header or read_header(batch)
    if producer is not None and _is_repeated(header, producer):
        return None
    _check_size(shard, topic, header.count, len(batch))
    gate = topic.gate
    if gate is None:
        return None
    wait_ns = gate.admit(header.count, len(batch), shard.clock.monotonic_ns())
    return Admitted(gate, header.count, len(batch), wait_ns)


def _is_repeated(header: Header, producer: Producer) -> bool:
    return header.base_sequence < producer.admitted_next


def _check_size(shard: Shard, topic: Topic, count: int, size: int) -> None:
    """Refuse a message that is too large; one in a batch of many is for its consumers to judge."""
    size -= HEADER_BYTES + ONE_RECORD_BYTES_MAX
    limit = min(shard.config.message_bytes_max, topic.policies.message_bytes_max)
    if count == 1 and size > limit:
        if topic.gate is not None:
            topic.gate.refused_batches += 1
        raise MessageTooLarge(
            f"the message has {size:,} bytes, {topic.name} accepts at most {limit:,}"
        )
