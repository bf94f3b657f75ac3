"""The door of the broker, for its edges: it opens sessions, passes operators' requests on, and answers questions.

An edge holds nothing of what a broker hosts: it is told values (`found`), which another broker could have told as well,
and asks for deeds by name. So there is one place that says what clients may see and do besides their sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from danubius.admin.table import administer
from danubius.admin.targets import find_target
from danubius.errors import InvalidArgument, SubscriptionNotFound
from danubius.model.ids import TopicName
from danubius.runtime.answers import answer_of
from danubius.session.found import ConnectionBounds, FoundProducer, FoundTopic, TopicPage
from danubius.session.session import Session
from danubius.shard.hosting.namespaces import namespace_policies
from danubius.shard.hosting.topics import list_topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.broker.node import Node
    from danubius.model.admin import AdminRequest
    from danubius.model.policy import Effective
    from danubius.shard.hosting.peer import Peer
    from danubius.shard.hosting.topic import Topic


class Commits(Protocol):
    """What a face with sockets sees of commits: it lets what they wrote leave together."""

    is_committing: bool
    """Answers and deliveries of one commit are being written."""
    on_answered: Callable[[], None]
    """Called when some of them can leave, and at the end."""


class Gathering(Protocol):
    """What is published between `hold` and `release` is committed together."""

    def hold(self) -> None: ...

    def release(self) -> None: ...


class Door:
    """The way into one broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._shard = node.shard
        self.about = node.about
        """What the broker says of itself."""
        self.loop = node.shard.loop
        self.commits: Commits = node.shard
        self.gathering: Gathering = node.shard.journal

    # ------------------------------------------------------------ clients and operators

    def open_session(self, peer: Peer, url: str, name: str) -> Session:
        """Begin a client's life; `url` and `name` are the broker's, as it is told."""
        return Session(self._node, peer, url, name)

    async def administer(self, request: AdminRequest) -> Any:
        """What the broker answers to an operator; its error is raised."""
        return await answer_of(lambda answered: administer(self._node, request, answered))

    @property
    def bounds(self) -> ConnectionBounds:
        """As they are now: they can be changed while the broker runs."""
        config = self._shard.config
        return ConnectionBounds(
            config.connections_max, config.keepalive_ms / 1000, config.handshake_timeout_ms / 1000
        )

    def begin_stop(self) -> None:
        """Everybody is about to be sent away: what they had does not count as failed."""
        self._shard.is_stopping = True

    @property
    def epoch(self) -> int:
        """How often the broker's state was taken up."""
        return self._shard.epoch

    @property
    def topic_count(self) -> int:
        return len(self._shard.topics)

    # ------------------------------------------------------------ clocks

    def wall_us(self) -> int:
        return self._shard.clock.wall_us()

    def release_ms(self) -> int:
        """The time that messages are scheduled by."""
        return self._shard.ages.release_ms()

    # ------------------------------------------------------------ namespaces

    def check_namespace(self, name: str) -> None:
        """NamespaceNotFound unless it is there."""
        self._shard.catalog.namespace(name)

    def policies_in(self, namespace: str) -> Effective:
        """What holds for topics that set nothing, whether or not the namespace is there yet."""
        return namespace_policies(self._shard, namespace)

    # ------------------------------------------------------------ topics

    def lookup(self, name: str) -> FoundTopic | None:
        """A topic or a partitioned one; TopicDeleted if it is just going."""
        known = self._shard.catalog.partitioned.get(TopicName(name))
        if known is not None:
            return FoundTopic(TopicName(known.name), known.spec, known.partitions)
        topic = self._shard.topic_or_none(name)
        return None if topic is None else _found(topic)

    def topic(self, name: str) -> FoundTopic:
        """A topic or a partition; an error if there is none, or it is partitioned."""
        return _found(self._shard.topic(name))

    def policies_of(self, name: str) -> Effective:
        """What holds for a topic or a partition; an error if there is none, or it is partitioned."""
        return self._shard.topic(name).policies

    def parts_of(self, name: str) -> list[TopicName]:
        """What a topic consists of: its partitions, or itself."""
        return [topic.name for topic in find_target(self._shard, name).topics]

    def message_bytes_max(self, name: TopicName) -> int | None:
        """How large a message of a topic may be; None if there is no such topic."""
        topic = self._shard.topics.get(name)
        return None if topic is None else topic.policies.message_bytes_max

    def list_topics(self, namespace: str, after: str, limit: int) -> TopicPage:
        """Those behind a name; an empty namespace stands for all of them."""
        page, is_more = list_topics(self._shard, namespace, after, limit)
        topics = [_found(topic) for topic in page if not topic.is_deleting]
        return TopicPage(topics, page[-1].name if is_more else "")

    # ------------------------------------------------------------ producers

    def find_producer(self, topic: str, name: str) -> FoundProducer:
        """What a topic knows of a producer; nothing if there is no topic. TopicDeleted if that is just going."""
        found = self._shard.topic_or_none(topic)
        if found is None:
            return FoundProducer(0, is_attached=False)
        life = found.pipeline.sequencer.producer_or_none(name)
        return FoundProducer(0 if life is None else life.epoch, is_attached=name in found.attached)

    def producer_names(self, topic: TopicName) -> dict[int, str]:
        """The names of all producers that a topic remembers, by their numbers."""
        found = self._shard.topics.get(topic)
        if found is None:
            return {}
        return {one.id: one.name for one in found.pipeline.sequencer.producers}

    # ------------------------------------------------------------ subscriptions

    def has_consumer(self, topic: TopicName, subscription: str, name: str) -> bool:
        """Whether a consumer of this name is on a subscription."""
        found = self._shard.topics.get(topic)
        known = None if found is None else found.subscriptions.get(subscription)
        return known is not None and any(one.name == name for one in known.consumers.values())

    def ack(self, name: str, subscription: str, offset: int) -> None:
        """Acknowledge a message that is out with nobody, as its client's connection has ended."""
        topic = self._shard.topic(name)
        if not topic.is_reliable:
            return
        if offset >= topic.log.end_offset:
            raise InvalidArgument(
                f"{name} has no message {offset}: its next one is {topic.log.end_offset}"
            )
        found = topic.subscriptions.get(subscription)
        if found is None:
            raise SubscriptionNotFound(f"topic {name} has no subscription {subscription!r}")
        self._shard.start_pump(topic, found)
        assert found.pump is not None
        found.pump.acked([(offset, offset + 1)])


def _found(topic: Topic) -> FoundTopic:
    return FoundTopic(topic.name, topic.spec, 0)
