# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# (pyarrow comes without types)
"""Values that users hold: receipts of what they sent, messages and batches of what they received.

A received batch is a view over record batches as they came from the socket. Columns are decoded when they are
asked for, and single messages are made only by whoever iterates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, overload

import msgspec

from danubius.client.core.acks import Range, merge
from danubius.client.core.whole import WholeBatch
from danubius.errors import DanubiusError, InvalidBatch
from danubius.record.header import CHUNK
from danubius.record.scan import iter_batches

if TYPE_CHECKING:
    import pyarrow as pa

    from danubius.record.batch import RecordBatch

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

SCHEDULED: Final = -1
"""The offset of a message that has none yet."""

ItemT = TypeVar("ItemT")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored. It is durable as its topic asks."""

    topic: str
    offset: int
    """The message's position in its topic; -1 if it will get one when it is due."""

    @property
    def is_scheduled(self) -> bool:
        """Whether the message was sent with deliver_after or deliver_at."""
        return self.offset == SCHEDULED


class Receipts(Sequence[Receipt]):
    """The receipts of one `send_many`, in the order of the messages; made when looked at.

    Those of a partitioned topic name the partition each message went to, and have offsets only by partition.
    """

    __slots__ = ("_ends", "_spans", "topic")

    def __init__(self, topic: str, spans: Sequence[tuple[int, int]]) -> None:
        """Spans are (first offset, count) of each batch, in the order of the messages."""
        self.topic = topic
        self._spans = spans
        self._ends: list[int] = []
        total = 0
        for _, count in spans:
            total += count
            self._ends.append(total)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"receipt {index} of {len(self)}")
        return self._at(place)

    def __iter__(self) -> Iterator[Receipt]:
        for first, count in self._spans:
            yield from map(Receipt, repeat(self.topic), range(first, first + count))

    def __repr__(self) -> str:
        if not self._spans:
            return f"Receipts({self.topic!r}, empty)"
        return f"Receipts({self.topic!r}, {len(self)} at {self.first_offset}..{self.last_offset})"

    @property
    def parts(self) -> dict[str, Receipts]:
        """The receipts by partition; of a plain topic, these."""
        return {self.topic: self}

    @property
    def first_offset(self) -> int:
        """The offset of the first message. IndexError when nothing was sent; InvalidArgument if partitioned."""
        return self._spans[0][0]

    @property
    def last_offset(self) -> int:
        """The offset of the last message. IndexError when nothing was sent; InvalidArgument if partitioned."""
        first, count = self._spans[-1]
        return first + count - 1

    def _at(self, place: int) -> Receipt:
        span = bisect_left(self._ends, place + 1)
        first, count = self._spans[span]
        return Receipt(self.topic, first + place - (self._ends[span] - count))


class Message(msgspec.Struct, frozen=True, gc=False):
    """One received message."""

    topic: str
    offset: int
    """Its position in the topic: 0, 1, 2, … without gaps."""
    payload: bytes
    key: bytes | None
    attributes: Mapping[str, str]
    publish_time_us: int
    """When the producer sent it: microseconds since 1970-01-01 UTC."""
    redelivery_count: int
    """How often it was delivered before."""

    @property
    def publish_time(self) -> datetime:
        """When the producer sent it, as an aware datetime in UTC."""
        return to_datetime(self.publish_time_us)

    @property
    def ranges(self) -> Sequence[Range]:
        """The offsets that an acknowledgement of it names."""
        return ((self.offset, self.offset + 1),)


class ChunkedMessage(Message, frozen=True, gc=False):
    """A message that was sent in pieces; its offset is that of the last one."""

    pieces: tuple[Range, ...] = ()
    """The offsets of all pieces, as ranges [first, end)."""

    @property
    def ranges(self) -> Sequence[Range]:
        return self.pieces


class Segment(NamedTuple):
    """The records [start, stop) of one record batch: those that are the receiver's."""

    batch: RecordBatch
    start: int
    stop: int


class ReceivedBatch:
    """The messages of one delivery, as columns.

    Example:
        batch = await consumer.receive_batch()
        total = sum(map(len, batch.payloads))
        await consumer.ack(batch)
    """

    __slots__ = ("_count", "_segments", "has_pieces", "redelivery_count", "topic")

    def __init__(self, topic: str, segments: Sequence[Segment], redelivery_count: int) -> None:
        self.topic = topic
        self.redelivery_count = redelivery_count
        """How often these messages were delivered before."""
        self._segments = segments
        self._count = sum(segment.stop - segment.start for segment in segments)
        self.has_pieces = False
        """Whether there are pieces of larger messages in it, to be put together."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        for segment in self._segments:
            batch, start, stop = segment
            try:
                columns = (batch.offsets(), batch.payloads(), batch.keys(), batch.attributes())
                times = batch.publish_times_us()
            except InvalidBatch as error:
                raise self._undecodable(segment, error) from error
            if start != 0 or stop != len(batch):
                columns = tuple(column[start:stop] for column in columns)
                times = times[start:stop]
            if isinstance(batch, WholeBatch):
                yield self._whole(batch)
                continue
            yield from map(
                Message, repeat(self.topic), *columns, times, repeat(self.redelivery_count)
            )

    def _whole(self, batch: WholeBatch) -> ChunkedMessage:
        return ChunkedMessage(
            self.topic,
            batch.base_offset,
            batch.payload(0),
            batch.keys()[0],
            batch.attributes()[0],
            batch.publish_times_us()[0],
            self.redelivery_count,
            tuple(batch.ranges),
        )

    def __repr__(self) -> str:
        if not self._count:
            return f"ReceivedBatch({self.topic!r}, empty)"
        return f"ReceivedBatch({self.topic!r}, {self._count} at {self.first_offset}..{self.last_offset})"

    def messages(self) -> list[Message]:
        """All messages, one object each."""
        return list(self)

    @property
    def payloads(self) -> list[bytes]:
        return self._column(lambda batch: batch.payloads())

    @property
    def keys(self) -> list[bytes | None]:
        return self._column(lambda batch: batch.keys())

    @property
    def attributes(self) -> list[dict[str, str]]:
        return self._column(lambda batch: batch.attributes())

    @property
    def offsets(self) -> list[int]:
        return self._column(lambda batch: batch.offsets())

    @property
    def publish_times_us(self) -> list[int]:
        """Microseconds since 1970-01-01 UTC."""
        return self._column(lambda batch: batch.publish_times_us())

    @property
    def publish_times(self) -> list[datetime]:
        """Aware datetimes in UTC."""
        return list(map(to_datetime, self.publish_times_us))

    @property
    def first_offset(self) -> int:
        """The offset of the first message. IndexError when the batch is empty."""
        segment = self._segments[0]
        return segment.batch.offsets()[segment.start]

    @property
    def last_offset(self) -> int:
        """The offset of the last message. IndexError when the batch is empty."""
        segment = self._segments[-1]
        return segment.batch.offsets()[segment.stop - 1]

    @property
    def ranges(self) -> list[Range]:
        """The offsets as sorted ranges [first, end): what an acknowledgement of the batch names."""
        ranges: list[Range] = []
        for batch, start, stop in self._segments:
            if isinstance(batch, WholeBatch):
                ranges.extend(batch.ranges)
                continue
            offsets = batch.offsets()
            first, end = offsets[start], offsets[stop - 1] + 1
            if end - first == stop - start:
                ranges.append((first, end))
            else:
                ranges.extend((offset, offset + 1) for offset in offsets[start:stop])
        return merge(ranges) if len(ranges) > 1 else ranges

    def part(self, start: int, stop: int) -> ReceivedBatch:
        """The messages [start, stop) of this batch, without decoding anything."""
        segments: list[Segment] = []
        position = 0
        for batch, first, end in self._segments:
            low = max(first, first + start - position)
            high = min(end, first + stop - position)
            if low < high:
                segments.append(Segment(batch, low, high))
            position += end - first
        return ReceivedBatch(self.topic, segments, self.redelivery_count)

    def to_arrow(self) -> pa.Table:
        """The messages as an Arrow table, without copying payloads; needs `pip install 'danubius[arrow]'`.

        Columns: topic, partition, offset, publish_time, key, payload, attributes, producer, schema_id, schema_version.
        """
        from danubius.record.arrow import SCHEMA  # isort: skip  # first: it says how to install pyarrow
        import pyarrow as pa

        parts: list[pa.RecordBatch] = []
        for batch, start, stop in self._segments:
            columns = batch.to_arrow(self.topic)
            is_whole = start == 0 and stop == len(batch)
            parts.append(columns if is_whole else columns.slice(start, stop - start))
        return pa.Table.from_batches(parts, SCHEMA)

    def _column(self, of: Callable[[RecordBatch], Sequence[ItemT]]) -> list[ItemT]:
        items: list[ItemT] = []
        for segment in self._segments:
            batch, start, stop = segment
            try:
                column = of(batch)
            except InvalidBatch as error:
                raise self._undecodable(segment, error) from error
            items.extend(column if start == 0 and stop == len(batch) else column[start:stop])
        return items

    def _undecodable(self, segment: Segment, error: InvalidBatch) -> InvalidBatch:
        first, count = segment.batch.base_offset, len(segment.batch)
        return InvalidBatch(
            f"the batch of {count} messages at offset {first} of {self.topic} cannot be decoded: {error.message}"
        )

    @property
    def segments(self) -> Sequence[Segment]:
        """What it is made of."""
        return self._segments

    @property
    def first_run(self) -> int:
        """How many messages the first of the record batches holds; they are decoded together."""
        return self._segments[0].stop - self._segments[0].start if self._segments else 0


class Handout:
    """A batch that is handed out message by message, and whose rest can be taken back as a batch.

    A record batch that cannot be decoded is an error once; then it goes on with what is behind it. Any other error (a
    package that is not installed) leaves everything where it was.
    """

    __slots__ = ("_batch", "_messages", "_taken")

    def __init__(self) -> None:
        self._batch: ReceivedBatch | None = None
        self._messages: Iterator[Message] = iter(())
        self._taken = 0

    def hold(self, batch: ReceivedBatch) -> None:
        self._batch = batch
        self._messages = iter(batch)
        self._taken = 0

    def clear(self) -> None:
        self._batch = None
        self._messages = iter(())

    def next_or_none(self) -> Message | None:
        try:
            message = next(self._messages, None)
        except DanubiusError as error:
            rest = self.rest
            if rest is not None:
                is_lost = isinstance(error, InvalidBatch)
                self.hold(rest.part(rest.first_run, len(rest)) if is_lost else rest)
            raise
        if message is None:
            self.clear()
        else:
            self._taken += 1
        return message

    @property
    def is_empty(self) -> bool:
        return self._batch is None or self._taken >= len(self._batch)

    @property
    def rest(self) -> ReceivedBatch | None:
        """What is left, None if nothing is."""
        batch, taken = self._batch, self._taken
        if batch is None or taken >= len(batch):
            return None
        return batch.part(taken, len(batch)) if taken else batch

    def take_rest(self) -> ReceivedBatch | None:
        """What is left; nothing is held afterwards."""
        rest = self.rest
        self.clear()
        return rest


def open_delivery(
    topic: str, data: memoryview, first: int, end: int, redelivery_count: int
) -> ReceivedBatch:
    """View the records of `data` (record batches back to back) with an offset in [first, end)."""
    segments: list[Segment] = []
    flags = 0
    for batch in iter_batches(data):
        start, stop = 0, len(batch)
        flags |= batch.header.flags
        if batch.base_offset < first or batch.end_offset > end:
            offsets = batch.offsets()
            start = bisect_left(offsets, first)
            stop = bisect_left(offsets, end)
        if start < stop:
            segments.append(Segment(batch, start, stop))
    received = ReceivedBatch(topic, segments, redelivery_count)
    if flags & CHUNK:
        received.has_pieces = True
    return received


def to_datetime(time_us: int) -> datetime:
    """Microseconds since 1970 as an aware datetime in UTC, exact to the microsecond."""
    return _EPOCH + timedelta(microseconds=time_us)


def to_time_us(time: datetime) -> int:
    """An aware datetime as microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND
