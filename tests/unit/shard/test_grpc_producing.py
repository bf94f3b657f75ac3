"""Messages of Danube's clients on their way into batches, over a broker without sockets or threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from danubius.edge.grpc.bounds import WAITING_BYTES_MAX
from danubius.edge.grpc.data import producing
from danubius.edge.grpc.data.partitioning import Partitioning
from danubius.edge.grpc.data.producing import Draft, Producers
from danubius.errors import MessageTooLarge, Overloaded, ProducerBusy, TopicNotFound
from danubius.model.ids import TopicName
from danubius.model.policy import Policies
from danubius.model.topic import Dispatch, TopicSpec
from danubius.publish.journaling import BATCH_RECORD
from danubius.record.batch import RecordBatch
from danubius.session.door import Door
from danubius.wire.commands import Access, CreateTopic, Done, OpenProducer, ProducerOpened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

TOPIC = TopicName("/default/t")


def _draft(payload: bytes, schema: tuple[int, int] = (0, 0), size: int | None = None) -> Draft:
    return Draft(payload, None, None, 1_000, schema, len(payload) if size is None else size)


@pytest.fixture
async def producers(bench: Any) -> AsyncIterator[Producers]:
    made = Producers(Door(bench.node))
    yield made
    made.close()


async def _finish(bench: Any, *works: Coroutine[Any, Any, Any]) -> list[Any]:
    """Let the loop and the disk work until all are done; what they raise is what they return."""

    async def caught(work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except Exception as error:  # noqa: BLE001  # looked at by the test
            return error

    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(caught(work)) for work in works]
        while not all(task.done() for task in started):
            bench.settle()
            await asyncio.sleep(0)
    return [task.result() for task in started]


async def _open(bench: Any, producers: Producers, name: str = "p") -> None:
    (opened,) = await _finish(bench, producers.open(TOPIC, name, Dispatch.RELIABLE, Access.SHARED))
    assert opened.handle, opened


def _batches(bench: Any) -> list[list[bytes]]:
    return [
        RecordBatch.parse(record.body).payloads()
        for record in bench.recover_journal()
        if record.kind == BATCH_RECORD
    ]


async def test_what_comes_together_is_one_batch_and_one_answer_each(
    bench: Any, producers: Producers
) -> None:
    await _open(bench, producers)
    payloads = [b"%d" % number for number in range(100)]
    answers = await _finish(bench, *(producers.send(TOPIC, "p", _draft(one)) for one in payloads))
    assert answers == [None] * 100
    assert _batches(bench) == [payloads]
    assert producers.waiting_bytes == 0


async def test_nobody_is_answered_before_it_is_on_disk(bench: Any, producers: Producers) -> None:
    await _open(bench, producers)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(producers.send(TOPIC, "p", _draft(b"x")))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not sending.done()
        while not sending.done():
            bench.settle()
            await asyncio.sleep(0)


async def test_what_comes_while_a_batch_is_on_its_way_is_the_next(
    bench: Any, producers: Producers
) -> None:
    await _open(bench, producers)
    async with asyncio.TaskGroup() as tasks:
        sending: list[asyncio.Task[None]] = []
        for number in range(5):
            sending.append(tasks.create_task(producers.send(TOPIC, "p", _draft(b"%d" % number))))
            for _ in range(5):
                await asyncio.sleep(0)
        while not all(task.done() for task in sending):
            bench.settle()
            await asyncio.sleep(0)
    assert _batches(bench) == [[b"0"], [b"1", b"2", b"3", b"4"]]


async def test_messages_of_two_schemas_are_two_batches_in_order(
    bench: Any, producers: Producers
) -> None:
    await _open(bench, producers)
    drafts = [_draft(b"a"), _draft(b"b", (7, 1)), _draft(b"c", (7, 1)), _draft(b"d")]
    await _finish(bench, *(producers.send(TOPIC, "p", one) for one in drafts))
    assert _batches(bench) == [[b"a"], [b"b", b"c"], [b"d"]]


async def test_one_that_cannot_be_stored_is_refused_alone(bench: Any, producers: Producers) -> None:
    spec = TopicSpec(policies=Policies(message_bytes_max=100))
    assert isinstance(bench.connect().call(CreateTopic(TOPIC, spec)), Done)
    await _open(bench, producers)
    payloads = [b"a", bytes(1000), b"b"]
    answers = await _finish(bench, *(producers.send(TOPIC, "p", _draft(one)) for one in payloads))
    assert [type(one) for one in answers] == [type(None), MessageTooLarge, type(None)]
    assert [one for batch in _batches(bench) for one in batch] == [b"a", b"b"]
    assert producers.waiting_bytes == 0


async def test_a_producer_that_is_not_known_is_opened_by_its_message(
    bench: Any, producers: Producers
) -> None:
    await _open(bench, producers)
    await _finish(bench, producers.send(TOPIC, "another", _draft(b"x")))
    assert len(producers) == 2
    (missing,) = await _finish(bench, producers.send(TopicName("/default/no"), "p", _draft(b"x")))
    assert isinstance(missing, TopicNotFound)


async def test_more_than_the_bound_is_refused_and_may_be_tried_again(
    bench: Any, producers: Producers
) -> None:
    await _open(bench, producers)
    large = _draft(b"x", size=WAITING_BYTES_MAX)
    first, second = await _finish(
        bench, producers.send(TOPIC, "p", large), producers.send(TOPIC, "p", _draft(b"y"))
    )
    assert first is None
    assert isinstance(second, Overloaded)
    assert second.is_retryable
    assert await _finish(bench, producers.send(TOPIC, "p", _draft(b"y"))) == [None]


async def test_a_silent_producer_leaves_and_comes_back_with_its_next_message(
    bench: Any, producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _open(bench, producers)
    monkeypatch.setattr(producing, "IDLE_PRODUCER_S", 0.0)
    producers._close_idle()
    assert len(producers) == 0
    assert not bench.shard.topics[TOPIC].attached
    assert await _finish(bench, producers.send(TOPIC, "p", _draft(b"x"))) == [None]
    assert list(bench.shard.topics[TOPIC].attached) == ["p"]


async def test_partitions_that_are_asked_for_at_once_are_all_there(
    bench: Any, producers: Producers
) -> None:
    partitioning = Partitioning(Door(bench.node), producers.line)
    names = [TopicName(f"{TOPIC}-part-{index}") for index in (2, 0, 3, 1)]
    works = [partitioning.provide(name, Dispatch.RELIABLE) for name in names]
    assert await _finish(bench, *works) == [None] * 4
    assert bench.shard.catalog.partitioned[TOPIC].partitions == 4
    assert set(names) <= set(bench.shard.topics)


async def test_what_comes_while_its_producer_is_opened_waits_there_in_order(
    bench: Any, producers: Producers
) -> None:
    assert isinstance(bench.connect().call(CreateTopic(TOPIC, TopicSpec())), Done)
    payloads = [b"%d" % number for number in range(20)]
    told: list[Any] = []
    for payload in payloads[:10]:
        producers.start_send(TOPIC, "new", _draft(payload), told.append)
    await asyncio.sleep(0)
    for payload in payloads[10:]:
        producers.start_send(TOPIC, "new", _draft(payload), told.append)
    await _finish(bench, producers.send(TOPIC, "new", _draft(b"last")))
    assert told == [None] * 20
    assert b"".join(b"".join(batch) for batch in _batches(bench)) == b"".join(payloads) + b"last"
    assert producers.waiting_bytes == 0


async def test_whoever_waits_for_a_producer_that_cannot_be_opened_is_told_why(
    bench: Any, producers: Producers
) -> None:
    assert isinstance(bench.connect().call(CreateTopic(TOPIC, TopicSpec())), Done)
    native = bench.connect()
    assert isinstance(native.call(OpenProducer(TOPIC, "taken", TopicSpec())), ProducerOpened)
    answers = await _finish(
        bench, *(producers.send(TOPIC, "taken", _draft(b"x")) for _ in range(3))
    )
    assert [type(answer) for answer in answers] == [ProducerBusy] * 3
    assert producers.waiting_bytes == 0
    assert len(producers) == 0
