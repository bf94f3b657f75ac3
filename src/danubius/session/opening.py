"""From the request for a producer to its place on the topic: found or created, alone if it asked for that.

A place is taken before the producer's life is journaled and kept until the handle goes, so that limits and access modes
count those on their way too. Whoever waits hears when it is its turn, in a turn of the loop of its own: a place may
become free in the middle of anything.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    ProducerBusy,
    ProducerFenced,
    TopicDeleted,
    TopicExists,
)
from danubius.model.ids import TopicName, parse_name
from danubius.shard.hosting.core.access import Granted, Mode, Refused, Waiting
from danubius.shard.hosting.place import Place
from danubius.shard.hosting.producer_lives import open_producer
from danubius.shard.hosting.topics import create_missing
from danubius.wire.commands import Access

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.publish.core.sequencer import Producer
    from danubius.shard.hosting.core.access import Claim
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.wire.commands import OpenProducer

EPOCH_MAX: Final = 2**32 - 2
"""The epoch is a u32 in the batch's header, and the next life must fit too."""
_MODES: Final = {
    Access.SHARED: Mode.SHARED,
    Access.EXCLUSIVE: Mode.EXCLUSIVE,
    Access.WAIT_FOR_EXCLUSIVE: Mode.WAIT,
}


class Opening:
    """One request to open a producer; it calls `on_done` or `on_failed` once, or neither after `cancel`."""

    def __init__(
        self,
        shard: Shard,
        command: OpenProducer,
        on_done: Callable[[Place, Producer], None],
        on_failed: Callable[[DanubiusError], None],
        address: str = "",
    ) -> None:
        self._address = address
        self._shard = shard
        self._command = command
        self._on_done = on_done
        self._on_failed = on_failed
        self._place: Place | None = None
        self._is_over = False

    def start(self) -> None:
        """Find or create the topic, then ask for a place on it."""
        shard, command = self._shard, self._command
        parse_name("producer", command.name)
        if command.resume_epoch > EPOCH_MAX:
            raise InvalidArgument(
                f"resume_epoch is {command.resume_epoch}, at most {EPOCH_MAX} fits a batch"
            )
        existing = shard.topic_or_none(command.topic)
        if existing is not None:
            self._with_topic(existing)
        else:
            create_missing(shard, command.topic, command.spec, self._created)

    def cancel(self) -> None:
        """The connection is gone: nobody waits for the answer."""
        self._is_over = True
        if self._place is not None:
            self._place.leave()

    # ------------------------------------------------------------ the topic

    def _created(self, topic: Topic | DanubiusError) -> None:
        # Someone else was creating it with other settings: only the dispatch matters to a producer.
        if isinstance(topic, TopicExists):
            topic = self._shard.topics.get(TopicName(self._command.topic), topic)
        if isinstance(topic, DanubiusError):
            self._fail(topic)
        else:
            self._with_topic(topic)

    def _with_topic(self, topic: Topic) -> None:
        wanted = self._command.spec.dispatch
        if topic.spec.dispatch is not wanted:
            self._fail(
                TopicExists(
                    f"topic {topic.name} is {topic.spec.dispatch.value}, the producer asked for "
                    f"{wanted.value}; open it with dispatch={topic.spec.dispatch.value!r}"
                )
            )
            return
        command = self._command
        place = Place(self._shard, topic, command.name, _MODES[command.access], self._address)
        place.on_granted = self._granted
        place.on_refused = self._fail
        self._place = place
        self._ask(place)

    # ------------------------------------------------------------ the place

    def _ask(self, place: Place) -> None:
        if self._is_over:
            return
        topic, access = place.topic, self._shard.admission.access_to(place.topic)
        try:
            topic.check_open()
            if topic.gate is not None and place.mode is not Mode.WAIT:
                topic.gate.check_open(topic, access.others(place.name))
        except DanubiusError as error:
            self._fail(error)
            return
        match access.ask(place):
            case Granted(displaced=displaced):
                _fence(displaced)
                self._granted()
            case Refused(incumbent=incumbent):
                assert isinstance(incumbent, Place)
                self._make_way(place, incumbent)
            case Waiting(displaced=displaced):
                _fence(displaced)

    def _make_way(self, place: Place, incumbent: Place) -> None:
        """A producer that no longer answers must not keep a living one out."""
        holder = incumbent.holder
        if holder is None:
            self._fail(_busy(place, incumbent))
            return

        def probed(is_alive: bool) -> None:
            is_there = place.topic.attached.get(incumbent.name) is holder
            if is_alive and is_there:
                self._fail(_busy(place, incumbent))
                return
            if is_there:
                holder.end(
                    ProducerFenced("this producer did not answer, and another took its place")
                )
            # While the probe was under way someone else may have come first, or the topic may have gone.
            self._ask(place)

        holder.probe(probed)

    def _granted(self) -> None:
        place, command = self._place, self._command
        assert place is not None
        if self._is_over:
            return
        topic = place.topic
        try:
            topic.check_open()
            if self._shard.topics_by_id.get(topic.id) is not topic:
                raise TopicDeleted(f"topic {topic.name} was deleted")
            open_producer(
                self._shard,
                topic,
                command.name,
                command.resume_epoch,
                functools.partial(self._opened, place),
                keep_sequence=command.keep_sequence,
            )
        except DanubiusError as error:
            self._fail(error)

    def _opened(self, place: Place, producer: Producer | DanubiusError) -> None:
        if self._is_over:
            return
        if isinstance(producer, DanubiusError):
            self._fail(producer)
            return
        try:
            place.topic.check_open()  # it may have been deleted while the disk was busy
        except DanubiusError as error:
            self._fail(error)
            return
        self._is_over = True
        self._on_done(place, producer)

    def _fail(self, error: DanubiusError) -> None:
        if not self._is_over:
            self.cancel()
            self._on_failed(error)


def _fence(displaced: Claim | None) -> None:
    """Tell who waited that a newer one of its name took its place."""
    if isinstance(displaced, Place):
        displaced.on_refused(
            ProducerFenced(f"a newer producer named {displaced.name!r} took its place")
        )


def _busy(place: Place, incumbent: Place) -> ProducerBusy:
    name = place.topic.name
    if incumbent.is_shared:
        return ProducerBusy(
            f"{name} has the producer {incumbent.name!r}, and an exclusive one must be alone; "
            'wait for the others to close with access="wait-for-exclusive"'
        )
    return ProducerBusy(
        f"{name} is held exclusively by {incumbent.name!r}; "
        'wait for it with access="wait-for-exclusive"'
    )
