"""From record batches to the messages that Danube's clients receive.

Nothing is unpacked before the stream's reader wants it, and then one batch at a time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

from danubius.edge.grpc.bounds import (
    CLIENT_MESSAGE_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    ON_THREAD_BYTES,
)
from danubius.edge.grpc.messages import danube
from danubius.edge.grpc.names import number_of, outer_name
from danubius.record.scan import iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from danubius.model.buffers import Buffer
    from danubius.record.batch import RecordBatch
    from danubius.session.found import FoundTopic


class Cut(NamedTuple):
    """The records [start, stop) of a batch."""

    batch: RecordBatch
    start: int
    stop: int


class Outgoing(NamedTuple):
    """One message as it goes out; without a message if these clients cannot take it."""

    offset: int
    message: Any | None


def cuts(payload: Sequence[Buffer], first: int, end: int) -> Iterator[Cut]:
    """The records with an offset in [first, end), batch by batch."""
    data = payload[0] if len(payload) == 1 else b"".join(payload)
    for batch in iter_batches(data, verify=False):
        offsets = batch.offsets()
        start, stop = bisect_left(offsets, first), bisect_left(offsets, end)
        if start < stop:
            yield Cut(batch, start, stop)


class Packer:
    """Makes the messages of one topic."""

    def __init__(
        self, topic: FoundTopic, broker_url: str, names: Callable[[], Mapping[int, str]]
    ) -> None:
        """`names` tells those of its producers, by their numbers here."""
        self._topic = topic
        self._find_names = names
        self._broker_url = broker_url
        self._names: dict[int, str] = {}

    async def pack(self, cut: Cut) -> list[Outgoing]:
        """The messages of a cut; a large batch is unpacked on a thread, for the loop serves others."""
        if cut.batch.header.body_bytes > ON_THREAD_BYTES:
            await asyncio.to_thread(cut.batch.payloads)
        return self._pack(cut)

    def _pack(self, cut: Cut) -> list[Outgoing]:
        batch, header = cut.batch, cut.batch.header
        offsets, times = batch.offsets(), batch.publish_times_us()
        payloads, keys = batch.payloads(), batch.keys()
        attributes = batch.attributes() if batch.has_attributes else None
        name = self._producer_name(header.producer_id)
        number = number_of(self._topic.name, name) if name else 0
        # Danube numbers no messages that nothing acknowledges.
        is_numbered = self._topic.is_reliable
        packed: list[Outgoing] = []
        for index in range(cut.start, cut.stop):
            payload, offset = payloads[index], offsets[index]
            if batch.is_chunk or len(payload) > CLIENT_MESSAGE_BYTES_MAX - ENVELOPE_BYTES_MAX:
                packed.append(Outgoing(offset, None))
                continue
            message = danube.StreamMessage(
                msg_id=danube.MsgID(
                    producer_id=number,
                    topic_name=self._topic.name,
                    broker_addr=self._broker_url,
                    topic_offset=offset if is_numbered else 0,
                ),
                payload=payload,
                publish_time=max(0, times[index]) // 1000,
                producer_name=outer_name(name),
            )
            if attributes is not None and attributes[index]:
                message.attributes.update(attributes[index])
            key = keys[index]
            if key is not None:
                # A key of another client may be any bytes, and this field is text.
                message.routing_key = key.decode(errors="backslashreplace")
            if header.schema_id:
                message.schema_id = header.schema_id
                message.schema_version = header.schema_version
            is_small = message.ByteSize() <= CLIENT_MESSAGE_BYTES_MAX - 64
            packed.append(Outgoing(offset, message if is_small else None))
        return packed

    def _producer_name(self, producer_id: int) -> str:
        """The name of a producer, empty if the topic has forgotten it."""
        name = self._names.get(producer_id)
        if name is None:
            self._names = dict(self._find_names())
            name = self._names.setdefault(producer_id, "")
        return name
