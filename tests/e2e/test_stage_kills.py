"""Stages through kill -9 of the broker: every batch of a job is there once, whatever was under way.

In `make prove` at full size.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.errors import InvalidArgument, StageNotFound
from proving import sized

if TYPE_CHECKING:
    from danubius.client.client import Client
    from danubius.client.producing.staging import StageReceipt
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

BATCHES: Final = sized(12, 200)
KILLS: Final = sized(3, 20)
TASKS: Final = 2
MESSAGES: Final = 400
TARGET: Final = "/default/stage-target"


async def read_all(client: Client, topic: str) -> list[bytes]:
    async with client.reader(topic, start="earliest", stop_at_end=True) as reader:
        return [message.payload async for message in reader]


async def run_batches(client: Client) -> None:
    """As a driver does it: stage by tasks, commit; a batch that is refused is run again."""
    for batch in range(BATCHES):
        while True:
            try:
                receipts = [await run_task(client, batch, task) for task in range(TASKS)]
                await client.commit_stages("job", batch, receipts)
            except StageNotFound:
                continue
            break
        await client.commit_stages("job", batch, [])  # once more, as after a lost answer


async def run_task(client: Client, batch: int, task: int) -> StageReceipt:
    stage = await client.stage("job", batch)
    for part in range(4):
        payloads = [b"%d/%d/%d/%d" % (batch, task, part, n) for n in range(MESSAGES // 4)]
        await stage.send_many(TARGET, [payload.ljust(1000) for payload in payloads])
    return await stage.finish()


async def kill_now_and_then(broker: BrokerProcess) -> None:
    dice = random.Random(24)
    for _ in range(KILLS):
        await asyncio.sleep(dice.uniform(0.1, 0.6))
        broker.kill()
        await asyncio.to_thread(broker.start)


@pytest.mark.grows
async def test_every_batch_is_there_once(start_broker: StartBroker) -> None:
    broker = start_broker()
    async with danubius.connect(broker.url) as client:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_batches(client))
            group.create_task(kill_now_and_then(broker))
        found = Counter(payload.rstrip() for payload in await read_all(client, TARGET))
    expected = Counter(
        b"%d/%d/%d/%d" % (batch, task, part, n)
        for batch in range(BATCHES)
        for task in range(TASKS)
        for part in range(4)
        for n in range(MESSAGES // 4)
    )
    assert found == expected


async def test_nobody_sees_a_stage_before_its_commit_nor_after_its_abort(
    broker: BrokerProcess, topic: str
) -> None:
    job = topic.rpartition("/")[2]
    async with danubius.connect(broker.url) as client:
        kept = await client.stage(job, 0)
        await kept.send_many(topic, [b"a", b"b"], keys=[b"k", None], attributes=[{"x": "1"}, None])
        left = await client.stage(job, 0)
        await left.send_many(topic, [b"never"])
        gone = await client.stage(job, 0)
        await gone.send_many(topic, [b"gone"])
        receipts = [await kept.finish(), await gone.finish()]
        assert await read_all(client, topic) == []

        await client.abort_stages(job, 0, receipts[1:])
        with pytest.raises(StageNotFound, match="run its task again"):
            await client.commit_stages(job, 0, receipts)
        with pytest.raises(StageNotFound, match="holds 1 batches where 2"):
            await client.commit_stages(job, 0, [receipts[0]._replace(batches=2)])
        assert await read_all(client, topic) == []

        await client.commit_stages(job, 0, receipts[:1])
        assert await read_all(client, topic) == [b"a", b"b"]
        await client.commit_stages(job, 0, receipts[:1])
        assert await read_all(client, topic) == [b"a", b"b"]
        with pytest.raises(InvalidArgument, match="is committed"):
            await client.abort_stages(job, 0)
        late = await client.stage(job, 0)
        assert late.is_over
        with pytest.raises(StageNotFound):
            await left.send_many(topic, [b"too late"])
            await left.finish()


async def test_a_large_commit_comes_whole(broker: BrokerProcess, topic: str) -> None:
    """More than one atomic record takes."""
    job = topic.rpartition("/")[2]
    async with danubius.connect(broker.url) as client:
        stage = await client.stage(job, 7)
        for number in range(48):
            await stage.send_many(topic, [b"%d" % number + bytes(1024 * 1024 - 1000)])
        await client.commit_stages(job, 7, [await stage.finish()])
        found = [int(payload.rstrip(b"\0")) for payload in await read_all(client, topic)]
    assert found == list(range(48))


async def test_topics_are_taken_as_they_are_or_made(broker: BrokerProcess, topic: str) -> None:
    job = topic.rpartition("/")[2]
    async with danubius.connect(broker.url) as client:
        await client.create_topic(f"{topic}-written", durability="written", retention_age=60)
        await client.create_topic(f"{topic}-parts", partitions=2)
        stage = await client.stage(job, 0)
        for suffix in ("-written", "-parts", "-new"):
            await stage.send_many(f"{topic}{suffix}", [b"1", b"2", b"3", b"4"])
        await client.commit_stages(job, 0, [await stage.finish()])
        for suffix in ("-written", "-parts", "-new"):
            assert sorted(await read_all(client, f"{topic}{suffix}")) == [b"1", b"2", b"3", b"4"]
        assert await client.resolve_offset(f"{topic}-parts-part-0", "latest") == 2
