"""Answers to an edge's questions: values, of the moment they were asked in, that hold on to nothing of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danubius.model.topic import Dispatch

if TYPE_CHECKING:
    from danubius.model.ids import TopicName
    from danubius.model.topic import TopicSpec


class FoundTopic(NamedTuple):
    """A topic, a partition, or a partitioned topic as a whole."""

    name: TopicName
    spec: TopicSpec
    partitions: int
    """0: it is not partitioned."""

    @property
    def is_reliable(self) -> bool:
        return self.spec.dispatch is Dispatch.RELIABLE


class TopicPage(NamedTuple):
    """Some topics, in the order of their names; partitions by their own names."""

    topics: list[FoundTopic]
    after: str
    """Where the next page begins; empty: there is none."""


class FoundProducer(NamedTuple):
    """What a topic knows of a producer's name."""

    epoch: int
    """Of its last life; 0: it had none, or none that is remembered."""
    is_attached: bool
    """Whether it is open on some connection."""


class ProducerLife(NamedTuple):
    """An open producer, as its next batch has to name it."""

    producer_id: int
    epoch: int
    next_sequence: int


class ConnectionBounds(NamedTuple):
    """What connections are held to."""

    connections_max: int
    keepalive_s: float
    handshake_s: float
