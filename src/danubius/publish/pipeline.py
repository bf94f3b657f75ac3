"""A producer's batch becomes a durable offset: check, sequence, stamp, journal, make visible, answer.

One pipeline a topic, on the loop thread. Readers see a batch only after the journal committed it, and publishers are
answered only then too. All work is per batch.

The broker's own batches have no producer here, whatever their headers say: `publish_unsequenced` stores one like any
other, while an atomic record takes their places (`reserve`) and tells how it went (`settle` each, or `cancel` all).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from danubius.errors import DanubiusError, InvalidBatch
from danubius.ledger.entry import Entry
from danubius.publish.core.sequencer import Producer, Repeated, Sequencer
from danubius.record.batch import Header, check_batch, read_header, stamp
from danubius.record.header import EXPIRES

if TYPE_CHECKING:
    from danubius.model.ids import Epoch, Offset
    from danubius.publish.journaling import TopicJournal

Answer = Callable[["Offset | DanubiusError"], None]


class VisibleLog(Protocol):
    """Where committed batches become readable."""

    def append(self, entry: Entry) -> None: ...


class Append:
    """One batch on its way through the journal."""

    __slots__ = ("answer", "entry", "pipeline")

    def __init__(self, pipeline: PublishPipeline, entry: Entry, answer: Answer) -> None:
        self.pipeline = pipeline
        self.entry = entry
        self.answer = answer

    def committed(self) -> None:
        self.pipeline.on_committed(self)

    def answer_publisher(self) -> None:
        """The first half of `committed`, for a broker that answers all publishers of a commit before it goes on."""
        self.pipeline.on_durable(self)

    def show(self) -> None:
        """The second half, in the same turn of the loop."""
        self.pipeline.on_answered(self.entry)

    def failed(self, error: DanubiusError) -> None:
        self.pipeline.on_failed(self, error)


class PublishPipeline:
    """The only writer of one topic."""

    __slots__ = (
        "_epoch",
        "_journal",
        "_log",
        "_on_extended",
        "_repeat_answers",
        "batches_in",
        "bytes_in",
        "messages_in",
        "on_expiring",
        "sequencer",
    )

    def __init__(
        self,
        epoch: Epoch,
        sequencer: Sequencer,
        log: VisibleLog,
        journal: TopicJournal | None,
        on_extended: Callable[[Entry], None],
    ) -> None:
        """`journal` None: a non-reliable topic, visible at once and never stored."""
        self._epoch = epoch
        self._log = log
        self._journal = journal
        self._on_extended = on_extended
        self._repeat_answers: dict[int, list[Answer]] | None = None
        """Of those who sent again what is on its way, by its offset; nearly always there are none."""
        self.sequencer = sequencer
        self.batches_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.on_expiring: Callable[[], None] | None = None
        """Told of every new batch that says when it expires."""

    def publish(self, batch: memoryview, producer: Producer, answer: Answer) -> Header:
        """Take one batch over; `answer` is called exactly once unless this raises."""
        header = check_batch(batch)
        if header.producer_id != producer.id or header.producer_epoch != producer.epoch:
            raise _foreign(header, producer)
        offset = self.sequencer.admit(producer, header.base_sequence, header.count)
        if isinstance(offset, Repeated):
            self._answer_repeated(offset, answer)
            return header
        stamp(batch, offset, self._epoch)
        if header.flags & EXPIRES and self.on_expiring is not None:
            self.on_expiring()
        self.batches_in += 1
        self.messages_in += header.count
        self.bytes_in += header.length
        append = Append(
            self, Entry(offset, offset + header.count, batch, header.last_time_us), answer
        )
        if self._journal is None:
            self.on_committed(append)
        else:
            self._journal.append(batch, append)
        return header

    def publish_wrapped(
        self, inner: Header, wrap: Callable[[], bytearray], producer: Producer, answer: Answer
    ) -> Offset | None:
        """Take over a checked batch as the one record of another, which `wrap` makes if it is new.

        Its producer's sequence counts batches. Returns where it will be, None if it was here before; `answer` is
        called exactly once unless this raises.
        """
        check_sender(inner, producer)
        offset = self.sequencer.admit(producer, inner.base_sequence, 1)
        if isinstance(offset, Repeated):
            self._answer_repeated(offset, answer)
            return None
        batch = memoryview(wrap())
        stamp(batch, offset, self._epoch)
        self.batches_in += 1
        self.bytes_in += len(batch)
        last_time_us = read_header(batch).last_time_us
        append = Append(self, Entry(offset, offset + 1, batch, last_time_us), answer)
        assert self._journal is not None
        self._journal.append(batch, append)
        return offset

    def publish_unsequenced(self, batch: memoryview, answer: Answer) -> Header:
        """Take over one batch that nobody will repeat; `answer` is called exactly once unless this raises.

        Its producer is 0, because recovery would count it among the sequence of any other.
        """
        header = check_batch(batch)
        if header.producer_id:
            raise InvalidBatch(
                f"the batch says producer {header.producer_id}, but it was sent without one; write 0"
            )
        self.publish_own(batch, header, answer)
        return header

    def publish_own(self, batch: memoryview, header: Header, answer: Answer) -> None:
        """Store one batch that the broker made, or checked; its producer is 0. `answer` is called exactly once."""
        append = Append(self, self.reserve(batch, header), answer)
        if self._journal is None:
            self.on_committed(append)
        else:
            self._journal.append(batch, append)

    def reserve(self, batch: memoryview, header: Header) -> Entry:
        """Give a checked batch of the broker's own the next offsets; the caller appends it to the journal at once."""
        offset = self.sequencer.assign(header.count)
        stamp(batch, offset, self._epoch)
        if header.flags & EXPIRES and self.on_expiring is not None:
            self.on_expiring()
        self.batches_in += 1
        self.messages_in += header.count
        self.bytes_in += header.length
        return Entry(offset, offset + header.count, batch, header.last_time_us)

    def settle(self, entry: Entry) -> None:
        """The oldest reserved batch is durable: readers may see it, and hear of it with all of this commit."""
        self.sequencer.commit()
        self._log.append(entry)
        self._on_extended(entry)

    def cancel(self) -> None:
        """The journal failed: nothing that is on its way to it, reserved or published, was stored.

        Publishers hear of it by their own tokens, in the same call of the journal's.
        """
        self.sequencer.roll_back()

    def _answer_repeated(self, repeated: Repeated, answer: Answer) -> None:
        if repeated.pending_at is None:
            answer(repeated.offset)
        else:
            if self._repeat_answers is None:
                self._repeat_answers = {}
            self._repeat_answers.setdefault(repeated.pending_at, []).append(answer)

    def on_committed(self, append: Append) -> None:
        self.on_durable(append)
        self.on_answered(append.entry)

    def on_durable(self, append: Append) -> None:
        """The publisher need not wait for what is left to do."""
        first = append.entry.first
        self.sequencer.commit()
        append.answer(first)  # type: ignore[arg-type]
        if self._repeat_answers:
            for answer in self._repeat_answers.pop(first, ()):
                answer(first)  # type: ignore[arg-type]

    def on_answered(self, entry: Entry) -> None:
        self._log.append(entry)
        self._on_extended(entry)

    def on_failed(self, append: Append, error: DanubiusError) -> None:
        self.sequencer.roll_back()
        append.answer(error)
        waiting, self._repeat_answers = self._repeat_answers, None
        if waiting is not None:
            for answers in waiting.values():
                for answer in answers:
                    answer(error)


def check_sender(header: Header, producer: Producer) -> None:
    """InvalidBatch unless a batch says that it is of the producer that it was sent through."""
    if header.producer_id != producer.id or header.producer_epoch != producer.epoch:
        raise _foreign(header, producer)


def _foreign(header: Header, producer: Producer) -> InvalidBatch:
    return InvalidBatch(
        f"the batch says producer {header.producer_id} epoch {header.producer_epoch}, but it was sent through "
        f"the handle of producer {producer.id} epoch {producer.epoch}"
    )
