# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (pyarrow comes without types)
"""Records that cannot be read, published to a dead-letter topic by the tasks that met them, once each.

Spark reads a range as often as it likes: an action is repeated, a task retried, another one started beside it. So
before a letter is published, the topic is asked whether it is there: `publish` takes the topic for itself (an exclusive
producer, waiting for its turn), reads the letters that may be of its records, publishes those that are missing, and
lets go. A task that was taken for dead and comes back finds its producer refused by the broker, and looks again.

Invariant: of a record, known by topic, partition, offset and publish time, the dead-letter topic holds one letter; a
row is left out of a DataFrame only after its letter is stored. What that rests on is in docs/decisions/0028.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.compute as pc

from danubius.client.connecting import connect
from danubius.client.consuming.partitioned_reader import PartitionedReader
from danubius.client.core.retry import Backoff
from danubius.errors import (
    DanubiusError,
    DeadlineExceeded,
    InvalidArgument,
    ProducerBusy,
    ProducerFenced,
    TopicNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.client.client import Client
    from danubius.spark.payloads.typed import BadRecords

ORIGINAL_TOPIC: Final = "x-original-topic"
ORIGINAL_PARTITION: Final = "x-original-partition"
ORIGINAL_OFFSET: Final = "x-original-topic-offset"
ORIGINAL_TIME: Final = "x-original-publish-time-us"
REASON: Final = "x-failure-reason"
"""The names that the broker's own dead letters have, as far as it has them."""

CLOCKS_APART_MAX: Final = timedelta(days=1)
"""A letter is looked for from this long before its record was published: clocks of producers and workers differ."""
TURN_SECONDS_MAX: Final = 120.0
"""For waiting for others that write letters to the topic, and for writing these."""
ATTEMPTS_MAX: Final = 5
_AGAIN: Final = (ProducerBusy, ProducerFenced)
"""Somebody else has the topic now, because we were silent for too long: look again what is there."""

_log: Final = logging.getLogger(__name__)


class Origin(NamedTuple):
    """The record that a letter is about."""

    topic: str
    partition: str
    offset: str
    time_us: str


class DeadLetters:
    """Where the letters of one query go. Holds values only, so that it travels to the workers."""

    def __init__(self, url: str, topic: str) -> None:
        self._url = url
        self._topic = topic

    def publish(self, bad: BadRecords) -> None:
        """Return when all of them are stored, by this call or an earlier one."""
        count = asyncio.run(self._persist(bad))
        _log.warning(
            "%d records could not be read: %d new letters in %s",
            len(bad.reasons),
            count,
            self._topic,
        )

    async def _persist(self, bad: BadRecords) -> int:
        waits = Backoff(random.random)
        async with connect(self._url) as client:
            await self._check(client)
            while True:
                try:
                    async with asyncio.timeout(TURN_SECONDS_MAX):
                        return await self._publish_missing(client, bad)
                except TimeoutError:
                    raise DeadlineExceeded(
                        f"the dead-letter topic {self._topic} was not free within {TURN_SECONDS_MAX:.0f} s:"
                        " queries write to it one at a time, and other producers have to leave it alone"
                    ) from None
                except DanubiusError as error:
                    if not isinstance(error, _AGAIN) or waits.attempts >= ATTEMPTS_MAX:
                        raise
                await asyncio.sleep(waits.next_delay_s())

    async def _publish_missing(self, client: Client, bad: BadRecords) -> int:
        columns = bad.batch
        origins = _origins(columns)
        if self._topic in columns.column("topic").unique().to_pylist():
            raise InvalidArgument(
                f"deadLetterTopic {self._topic} is one of the topics that are read"
            )
        async with client.producer(self._topic, access="wait-for-exclusive") as producer:
            known = await self._find(client, columns)
            new = [row for row, origin in enumerate(origins) if origin not in known]
            if new:
                payloads, keys, attributes = (
                    columns.column(name).to_pylist() for name in ("payload", "key", "attributes")
                )
                await producer.send_many(
                    [payloads[row] for row in new],
                    keys=[keys[row] for row in new],
                    attributes=[
                        dict(attributes[row] or ()) | _about(origins[row], bad.reasons[row])
                        for row in new
                    ],
                )
        return len(new)

    async def _check(self, client: Client) -> None:
        """Of several partitions each has its own turn, and two who hold one each would wait for ever."""
        with contextlib.suppress(TopicNotFound):
            async with client.reader(self._topic, start="latest") as reader:
                if isinstance(reader, PartitionedReader):
                    raise InvalidArgument(
                        f"deadLetterTopic {self._topic} is partitioned: choose one that is not"
                    )

    async def _find(self, client: Client, columns: Any) -> set[Origin]:
        """The origins of letters that are there, of those that could be ours."""
        since = pc.min(columns.column("publish_time")).as_py() - CLOCKS_APART_MAX
        first, last = pc.min_max(columns.column("offset")).as_py().values()
        found: set[Origin] = set()
        async with client.reader(self._topic, start=since, stop_at_end=True) as reader:
            while (batch := await reader.read_batch()) is not None:
                attributes = batch.to_arrow().column("attributes").combine_chunks()
                names = (ORIGINAL_TOPIC, ORIGINAL_PARTITION, ORIGINAL_OFFSET, ORIGINAL_TIME)
                texts = [pc.map_lookup(attributes, name, "first").to_pylist() for name in names]
                found.update(
                    Origin(*place)
                    for place in zip(*texts, strict=True)
                    if None not in place and place[2].isdecimal() and first <= int(place[2]) <= last
                )
        return found


def deliver_to(url: str, topic: str) -> Callable[[BadRecords], None]:
    """What takes the bad records of a task that reads with mode=deadletter."""
    return DeadLetters(url, topic).publish


def _origins(columns: Any) -> list[Origin]:
    times = columns.column("publish_time").cast("int64")
    texts = [
        columns.column("topic").to_pylist(),
        columns.column("partition").cast("string").to_pylist(),
        columns.column("offset").cast("string").to_pylist(),
        times.cast("string").to_pylist(),
    ]
    return [Origin(*place) for place in zip(*texts, strict=True)]


def _about(origin: Origin, reason: str) -> dict[str, str]:
    return {
        ORIGINAL_TOPIC: origin.topic,
        ORIGINAL_PARTITION: origin.partition,
        ORIGINAL_OFFSET: origin.offset,
        ORIGINAL_TIME: origin.time_us,
        REASON: reason,
    }
