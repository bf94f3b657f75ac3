"""A producer on a connection: batches in, offsets out.

Its place on the topic (`place.Place`) is its from the request on; it is given up with the handle, so vanished clients
free theirs with their connection. On a topic with limits an answer may wait, so that the producer keeps to the rate.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from danubius.errors import DanubiusError, ProducerFenced, Throttled
from danubius.shard.hosting.core.access import Mode
from danubius.shard.hosting.publish_door import admit
from danubius.wire.commands import Error, Produced, ProducerClosed, ProducerOpened

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from danubius.model.ids import Offset
    from danubius.publish.core.sequencer import Producer
    from danubius.publish.pipeline import Answer
    from danubius.shard.hosting.peer import Peer
    from danubius.shard.hosting.place import Place
    from danubius.shard.hosting.publish_door import Admitted
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard


class Late(NamedTuple):
    """An answer that waits, and how large the batch was that it is about."""

    due_ns: int
    correlation_id: int
    offset: Offset
    size: int


class ProducerHandle:
    """One open producer of one connection."""

    __slots__ = (
        "_handle",
        "_late",
        "_late_timer",
        "_on_ended",
        "_peer",
        "_place",
        "_shard",
        "producer",
        "published_bytes",
        "published_messages",
        "since_ms",
        "throttled_batches",
        "topic",
    )

    def __init__(  # noqa: PLR0913  # what it ties together
        self,
        shard: Shard,
        peer: Peer,
        topic: Topic,
        producer: Producer,
        handle: int,
        on_ended: Callable[[int], None],
        place: Place | None = None,
    ) -> None:
        """`place` is what it gives up at its end; None: it took none."""
        self._shard = shard
        self._peer = peer
        self._handle = handle
        self._on_ended = on_ended
        self._place = place
        self._late: deque[Late] | None = None
        """Answers that wait."""
        self._late_timer: asyncio.TimerHandle | None = None
        self.topic = topic
        self.producer = producer
        self.since_ms = shard.clock.wall_us() // 1000
        self.published_messages: int = 0
        self.published_bytes: int = 0
        self.throttled_batches = 0
        """Answered late, or sent back to wait."""

    @property
    def address(self) -> str:
        return self._peer.address

    @property
    def access(self) -> Mode:
        return self._place.mode if self._place is not None else Mode.SHARED

    @property
    def unanswered_bytes(self) -> int:
        """What waits for the journal, by the average of its messages, and what waits because of a rate."""
        pending = max(0, self.producer.admitted_next - max(0, self.producer.committed_next))
        late = sum(one.size for one in self._late) if self._late else 0
        return late + pending * self.published_bytes // max(1, self.published_messages)

    def attach(self) -> ProducerOpened:
        """Become the one producer of this name; an older one is ended."""
        attached = self.topic.attached
        older = attached.get(self.producer.name)
        # It is there before the older one goes, so that the place on the topic stays taken.
        attached[self.producer.name] = self
        if older is not None:
            older.end(ProducerFenced(f"a newer producer named {self.producer.name!r} took over"))
        self.producer.is_attached = True
        if self._place is not None:
            self._place.holder = self
        return ProducerOpened(
            self._handle, self.producer.id, self.producer.epoch, max(0, self.producer.admitted_next)
        )

    def detach(self) -> None:
        attached = self.topic.attached
        if attached.get(self.producer.name) is self:
            del attached[self.producer.name]
            self.producer.is_attached = False
        if self._late:
            self._answer_all(self._late)
        if self._place is not None:
            self._place.leave()

    def end(self, error: DanubiusError) -> None:
        self.detach()
        self._on_ended(self._handle)
        self._peer.send(ProducerClosed(self._handle, error.code, error.message))

    def produce(self, batch: memoryview, correlation_id: int) -> None:
        """Publish one batch; the answer goes out when it is as durable as the topic asks."""
        topic, shard, producer = self.topic, self._shard, self.producer
        try:
            admitted = admit(shard, topic, batch, None, producer)
        except Throttled:
            self.throttled_batches += 1
            raise
        if admitted is None:
            answer = functools.partial(self._answer, correlation_id)
            header = topic.pipeline.publish(batch, producer, answer)
        else:
            answer = self._answer_to(admitted, correlation_id)
            try:
                header = topic.pipeline.publish(batch, producer, answer)
            except DanubiusError:
                admitted.give_back()
                raise
        self.published_messages += header.count
        self.published_bytes += header.length
        shard.messages_in += header.count
        shard.bytes_in += header.length

    def _answer_to(self, admitted: Admitted, correlation_id: int) -> Answer:
        """Where the answer to a batch goes that a topic's limits let in."""
        due_ns = 0
        if admitted.wait_ns:
            self.throttled_batches += 1
            due_ns = self._shard.clock.monotonic_ns() + admitted.wait_ns
        return functools.partial(self._answer_admitted, correlation_id, admitted, due_ns)

    def _answer(self, correlation_id: int, result: Offset | DanubiusError) -> None:
        if isinstance(result, int):
            self._peer.send(Produced(result), correlation_id)
            if self._shard.is_lone_commit and not self.topic.subscriptions:
                self._peer.flush()  # nobody else's messages would leave with it
        else:
            self._peer.send(Error.of(result), correlation_id)

    # ------------------------------------------------------------ answers that wait

    def _answer_admitted(
        self, correlation_id: int, admitted: Admitted, due_ns: int, result: Offset | DanubiusError
    ) -> None:
        """Hold an answer back until what was published before it is paid for."""
        if isinstance(result, DanubiusError):
            admitted.give_back()
            self._answer(correlation_id, result)
            return
        if not due_ns or self.topic.attached.get(self.producer.name) is not self:
            self._answer(correlation_id, result)
            return
        if self._late is None:
            self._late = deque()
        self._late.append(Late(due_ns, correlation_id, result, admitted.size))
        if self._late_timer is None:
            self._wait_for(due_ns)

    def _wait_for(self, due_ns: int) -> None:
        wait_s = max(0, due_ns - self._shard.clock.monotonic_ns()) / 1e9
        self._late_timer = self._shard.loop.call_later(wait_s, self._answer_due)

    def _answer_due(self) -> None:
        self._late_timer = None
        late = self._late
        assert late is not None
        now_ns = self._shard.clock.monotonic_ns()
        while late and late[0].due_ns <= now_ns:
            one = late.popleft()
            self._peer.send(Produced(one.offset), one.correlation_id)
        if late:
            self._wait_for(late[0].due_ns)

    def _answer_all(self, late: deque[Late]) -> None:
        """It ends: there is nobody left to slow down, and what is stored is stored."""
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        while late:
            one = late.popleft()
            self._peer.send(Produced(one.offset), one.correlation_id)

    # ------------------------------------------------------------ those who want its place

    def probe(self, on_result: Callable[[bool], None]) -> None:
        """Find out whether the client still answers."""
        self._peer.probe(on_result)
