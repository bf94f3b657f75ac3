"""`danubius topics ledgers` and `offload` of a topic in partitions: all of them at once, and one alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import danubius
from e2e.cli_calls import call, run, run_json
from e2e.test_cold_storage import objects_of, offloaded, start
from patience import HANG_S

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

PARTITIONS = 3


async def publish(broker: BrokerProcess, topic: str, first: int, count: int) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        numbers = range(first, first + count)
        await producer.send_many(
            [b"%d/" % n + bytes(300) for n in numbers], keys=[b"%d" % n for n in numbers]
        )


async def read(broker: BrokerProcess, topic: str, count: int) -> list[int]:
    found: list[int] = []
    async with (
        danubius.connect(broker.url) as client,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
        asyncio.timeout(HANG_S),
    ):
        while len(found) < count:
            batch = await consumer.receive_batch()
            found += [int(bytes(payload).partition(b"/")[0]) for payload in batch.payloads]
            await consumer.ack(batch)
    return sorted(found)


async def test_all_partitions_of_a_topic_move_at_once_and_one_moves_alone(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path)
    names = [f"{topic}-part-{number}" for number in range(PARTITIONS)]
    await asyncio.to_thread(run, broker, "topics", "create", topic, "--partitions", str(PARTITIONS))
    assert "holds nothing" in await asyncio.to_thread(run, broker, "topics", "ledgers", topic)
    await publish(broker, topic, 0, 6000)
    # One alone.
    told = await asyncio.to_thread(run, broker, "topics", "offload", names[1])
    assert f"{names[1]}: " in told
    assert "are in cold storage" in told
    lines = await asyncio.to_thread(run_json, broker, "topics", "ledgers", topic)
    assert [line["topic"] for line in lines] == sorted(line["topic"] for line in lines)
    assert {line["topic"] for line in lines if line["tier"] != "local"} == {names[1]}
    shown = await asyncio.to_thread(run, broker, "topics", "ledgers", topic)
    assert shown.split()[0] == "TOPIC"
    assert all(name in shown for name in names)
    # All of them, and what is told adds up.
    [done] = await asyncio.to_thread(run_json, broker, "topics", "offload", topic)
    assert done["is_done"]
    assert set(done["until"]) == set(names)
    assert sum(done["until"].values()) == 6000
    lines = await offloaded(broker, topic)
    assert {line["topic"] for line in lines} == set(names)
    assert done["ledgers"] == done["stored_ledgers"] == len(lines) == len(objects_of(tmp_path))
    assert done["bytes"] == done["stored_bytes"] == sum(line["bytes"] for line in lines)
    for name in names:
        own = await asyncio.to_thread(run_json, broker, "topics", "ledgers", name)
        assert own == [line for line in lines if line["topic"] == name]
        ends = [line["end_offset"] for line in own]
        assert [line["base_offset"] for line in own] == [0, *ends[:-1]]
        assert ends[-1] == done["until"][name]
    broker.kill()
    broker.start()
    assert await read(broker, topic, 6000) == list(range(6000))


async def test_what_cannot_be_moved_is_named(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path)
    for command in ("ledgers", "offload"):
        missing = await asyncio.to_thread(call, broker, "topics", command, topic)
        assert missing.code == 1
        assert "does not exist" in missing.stderr
    options = ("--partitions", "2", "--non-reliable")
    await asyncio.to_thread(run, broker, "topics", "create", topic, *options)
    refused = await asyncio.to_thread(call, broker, "topics", "offload", topic)
    assert refused.code == 1
    assert f"{topic}-part-0 is non-reliable" in refused.stderr
