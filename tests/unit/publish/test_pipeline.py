"""Batches of the broker's own on the way through a topic's pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.errors import DanubiusError, InvalidBatch, StorageFull
from danubius.model.ids import Epoch, ProducerId
from danubius.publish.core.sequencer import Sequencer
from danubius.publish.journaling import BATCH_RECORD, TopicJournal
from danubius.publish.pipeline import PublishPipeline
from danubius.record.batch import read_header
from danubius.record.encode import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.ledger.entry import Entry
    from danubius.model.buffers import Buffer
    from danubius.model.ids import Offset
    from danubius.publish.journaling import JournalToken


class HeldJournal:
    """Keeps what is appended until the test decides."""

    def __init__(self) -> None:
        self.tokens: list[JournalToken] = []
        self.kinds: list[int] = []

    def append(
        self,
        kind: int,
        topic_id: int,
        body: Buffer | Sequence[Buffer],
        token: JournalToken | None,
        *,
        sync: bool,
    ) -> None:
        assert token is not None
        self.kinds.append(kind)
        self.tokens.append(token)

    def fail(self, error: DanubiusError) -> None:
        tokens, self.tokens = self.tokens, []
        for token in tokens:
            token.failed(error)


class Log:
    """What became visible."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)


class Bench:
    """One pipeline."""

    def __init__(self, *, is_journaled: bool = True) -> None:
        self.journal = HeldJournal()
        self.log = Log()
        self.extended = 0
        self.pipeline = PublishPipeline(
            Epoch(4),
            Sequencer(10),
            self.log,
            TopicJournal(self.journal, 1, sync=True) if is_journaled else None,
            self.extend,
        )
        self.producer = self.pipeline.sequencer.open(ProducerId(7), "p", Epoch(1), resumed=False)
        self.answers: list[Offset | DanubiusError] = []

    def extend(self, _entry: Entry) -> None:
        self.extended += 1

    def publish(self) -> None:
        batch = encode(
            [b"x"],
            publish_time_us=1,
            producer_id=7,
            producer_epoch=1,
            base_sequence=self.producer.admitted_next,
        )
        self.pipeline.publish(memoryview(batch), self.producer, self.answers.append)


def own(count: int, producer_id: int = 0) -> memoryview:
    batch = encode([b"m"] * count, publish_time_us=3, producer_id=producer_id)
    return memoryview(batch)


def test_an_unsequenced_batch_is_stored_between_others_and_answered() -> None:
    bench = Bench()
    bench.publish()
    bench.pipeline.publish_unsequenced(own(3), bench.answers.append)
    bench.publish()
    assert bench.journal.kinds == [BATCH_RECORD] * 3
    assert not bench.answers
    for token in bench.journal.tokens:
        token.committed()
    assert bench.answers == [10, 11, 14]
    assert [(e.first, e.end) for e in bench.log.entries] == [(10, 11), (11, 14), (14, 15)]
    assert read_header(bench.log.entries[1].buffer).base_offset == 11
    assert bench.producer.committed_next == 2
    assert bench.extended == 3


def test_an_unsequenced_batch_that_names_a_producer_is_refused() -> None:
    bench = Bench()
    with pytest.raises(InvalidBatch, match="producer 7"):
        bench.pipeline.publish_unsequenced(own(1, producer_id=7), bench.answers.append)
    assert bench.pipeline.sequencer.next_offset == 10
    assert not bench.journal.tokens


def test_an_unsequenced_batch_of_a_topic_that_stores_nothing_is_visible_at_once() -> None:
    bench = Bench(is_journaled=False)
    bench.pipeline.publish_unsequenced(own(2), bench.answers.append)
    assert bench.answers == [10]
    assert len(bench.log.entries) == 1
    bench.pipeline.sequencer.check()


def test_a_reserved_batch_is_seen_by_nobody_before_it_is_settled() -> None:
    bench = Bench()
    batch = own(2)
    entry = bench.pipeline.reserve(batch, read_header(batch))
    assert (entry.first, entry.end, entry.last_time_us) == (10, 12, 3)
    assert read_header(batch).base_offset == 10
    assert read_header(batch).epoch == 4
    assert not bench.log.entries
    assert not bench.extended
    bench.pipeline.settle(entry)
    assert bench.log.entries == [entry]
    assert bench.extended == 1
    assert bench.pipeline.sequencer.committed_offset == 12


@pytest.mark.parametrize("is_first", [True, False])
def test_cancelling_takes_plain_publishes_with_it_and_each_hears_of_it_once(
    is_first: bool,
) -> None:
    bench = Bench()
    bench.publish()
    batch = own(2)
    bench.pipeline.reserve(batch, read_header(batch))
    bench.publish()
    if is_first:
        bench.pipeline.cancel()
    error = StorageFull("no room")
    bench.journal.fail(error)
    if not is_first:
        bench.pipeline.cancel()
    bench.pipeline.sequencer.check()
    assert bench.answers == [error, error]
    assert bench.pipeline.sequencer.next_offset == 10
    bench.publish()
    bench.journal.tokens[0].committed()
    assert bench.answers[2:] == [10]
