"""Who may publish to a topic, also when connections are lost, and names that live longer than processes."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.errors import InvalidArgument, ProducerBusy, TopicDeleted
from e2e.broker_process import environment
from e2e.lossy_proxy import LossyProxy
from e2e.traffic import numbered, payloads, read_all
from patience import HANG_S

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

ROWS = 20_000


async def wait_for(client: danubius.Client, topic: str) -> None:
    async with (
        asyncio.timeout(HANG_S),
        client.producer(topic, access="wait-for-exclusive") as producer,
    ):
        await producer.send(b"at last")


async def round_trips(client: danubius.Client, topic: str) -> None:
    """When these are over, what other tasks of this client began before has reached the broker: one line, in order."""
    for _ in range(10):  # opening a producer takes fewer
        await client.describe_topic(topic)


async def test_exclusive_keeps_others_out_and_says_who(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic, name="a", access="exclusive") as producer:
            with pytest.raises(ProducerBusy, match="held exclusively by 'a'"):
                await client.producer(topic)
            with pytest.raises(ProducerBusy, match="wait-for-exclusive"):
                await client.producer(topic, access="exclusive")
            await producer.send(b"x")
        async with client.producer(topic):
            with pytest.raises(ProducerBusy, match="must be alone"):
                await client.producer(topic, access="exclusive")


async def test_who_waits_comes_when_the_other_goes_in_order(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        incumbent = await client.producer(topic, access="exclusive")
        order: list[str] = []

        async def wait(name: str) -> None:
            async with client.producer(topic, name=name, access="wait-for-exclusive") as producer:
                order.append(name)
                await producer.send(name.encode())

        async with asyncio.TaskGroup() as tasks:
            waiting: list[asyncio.Task[None]] = []
            for name in ("first", "second", "third"):
                waiting.append(tasks.create_task(wait(name)))
                await round_trips(client, topic)  # each asks before the next
            assert not order
            waiting[1].cancel()
            await incumbent.close()
        assert order == ["first", "third"]
        assert payloads(await read_all(client, topic)) == [b"first", b"third"]


async def test_a_process_that_dies_leaves_its_place_to_who_waits(
    broker: BrokerProcess, topic: str
) -> None:
    async with (
        LossyProxy(broker.port) as proxy,
        danubius.connect(broker.url) as client,
        danubius.connect(proxy.url, reconnect_timeout=0.1) as doomed,
    ):
        await doomed.producer(topic, name="doomed", access="exclusive")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(wait_for(client, topic))
            await round_trips(client, topic)
            assert not waiting.done()
            for link in proxy.links:
                link.cut()


async def test_one_that_no_longer_answers_makes_way(broker: BrokerProcess, topic: str) -> None:
    async with (
        LossyProxy(broker.port) as proxy,
        danubius.connect(broker.url) as client,
        danubius.connect(proxy.url, reconnect_timeout=0.1) as silent,
    ):
        await silent.producer(topic, name="silent", access="exclusive")
        for link in proxy.links:
            link.is_frozen = True
        async with client.producer(topic, access="exclusive") as producer:
            await producer.send(b"mine now")
        for link in proxy.links:
            link.cut()


async def test_an_exclusive_producer_keeps_its_place_over_a_lost_connection(
    broker: BrokerProcess, topic: str
) -> None:
    async with LossyProxy(broker.port) as proxy, danubius.connect(proxy.url) as client:
        async with client.producer(topic, name="steady", access="exclusive") as producer:
            for round_ in range(3):
                await producer.send(str(round_).encode())
                for link in list(proxy.links):
                    link.cut()
            await producer.send(b"last")
        assert payloads(await read_all(client, topic)) == [b"0", b"1", b"2", b"last"]


async def test_those_who_wait_for_a_deleted_topic_hear_of_it(
    broker: BrokerProcess, topic: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.producer(topic, access="exclusive")

        async def wait_in_vain() -> None:
            with pytest.raises(TopicDeleted):
                await wait_for(client, topic)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(wait_in_vain())
            await round_trips(client, topic)
            await client.delete_topic(topic)


async def test_arguments_that_make_no_sense(broker: BrokerProcess, topic: str) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(InvalidArgument, match="'wait-for-exclusive'"):
            client.producer(topic, access="alone")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="needs a name"):
            client.producer(topic, resume=True)
        with pytest.raises(InvalidArgument, match="reliable"):
            client.producer(topic, name="a", resume=True, dispatch="non-reliable")


async def test_a_name_goes_on_where_it_stopped(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    rows = numbered(30)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic, name="loader", resume=True) as producer,
    ):
        assert producer.next_sequence == 0
        await producer.send_many(rows[:10])
        assert producer.next_sequence == 10
    broker.kill()
    broker.start()
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic, name="loader", resume=True) as producer:
            assert producer.next_sequence == 10
            await producer.send_many(rows[10:20])
        async with client.producer(topic, name="other", resume=True) as producer:
            assert producer.next_sequence == 0
        async with client.producer(topic, name="loader", resume=True) as producer:
            await producer.send_many(rows[producer.next_sequence :])
        assert payloads(await read_all(client, topic)) == rows


LOADER = """
import asyncio, sys
import danubius
async def main(url, topic, count):
    async with danubius.connect(url) as client:
        async with client.producer(topic, name="loader", resume=True, batch_records=50) as producer:
            print("at", producer.next_sequence, flush=True)
            at = producer.next_sequence
            while at < count:
                await producer.send_many([b"%d" % n for n in range(at, min(count, at + 500))])
                at += 500
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_a_loader_killed_again_and_again_stores_each_row_once(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    starts: list[int] = []
    for kill_after_s in (0.0, 0.02, 0.05, 0.01, 0.1, None):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            broker.url,
            topic,
            str(ROWS),
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        starts.append(int(line.split()[1]))
        if kill_after_s is None:
            await process.communicate()
            assert process.returncode == 0
        else:
            await asyncio.sleep(kill_after_s)
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.communicate()  # to the end of its output, so that the pipe is closed
    assert starts == sorted(starts)
    async with danubius.connect(broker.url) as client:
        stored = payloads(await read_all(client, topic))
    assert stored == [b"%d" % number for number in range(ROWS)]
