"""Cold storage of a real broker, in files: moved, read back without a seam, killed, checked, and seen by operators."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import danubius
from danubius.errors import StorageFull
from e2e.broker_process import BrokerNotReady, run_command
from e2e.cli_calls import call, run, run_json
from e2e.rest_client import Rest
from e2e.traffic import payloads, read_all
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from danubius.model.admin_replies import LedgerSummary
    from e2e.broker_process import BrokerProcess, Exit
    from e2e.conftest import StartBroker

SMALL = (
    "--set", "tier.cycle_ms=200ms",
    "--set", "tier.retry_ms=100ms",
    "--set", "tier.segment_bytes=64KiB",
    "--set", "ledgers.ledger_bytes_max=256KiB",
    "--set", "ledgers.cache_bytes=2MiB",
    "--set", "broker.checkpoint_bytes=1MiB",
)  # fmt: skip


def start(start_broker: StartBroker, cold: Path, *options: str) -> BrokerProcess:
    return start_broker("--tier-url", f"fs://{cold}", *SMALL, *options)


async def fill(broker: BrokerProcess, topic: str, first: int, count: int) -> None:
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        for at in range(first, first + count, 500):
            await producer.send_many([b"%d/" % n + bytes(300) for n in range(at, at + 500)])


async def numbers(broker: BrokerProcess, topic: str) -> list[int]:
    async with danubius.connect(broker.url) as client:
        messages = await read_all(client, topic)
    assert [m.offset for m in messages] == list(range(len(messages)))
    return [int(payload.partition(b"/")[0]) for payload in payloads(messages)]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another process does, of which nobody tells."""
    async with asyncio.timeout(HANG_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


async def called(broker: BrokerProcess, *arguments: str) -> Exit:
    return await asyncio.to_thread(call, broker, *arguments)


async def told(broker: BrokerProcess, *arguments: str) -> str:
    return await asyncio.to_thread(run, broker, *arguments)


async def told_json(broker: BrokerProcess, *arguments: str) -> list[dict[str, Any]]:
    return await asyncio.to_thread(run_json, broker, *arguments)


async def offloaded(broker: BrokerProcess, topic: str) -> list[dict[str, Any]]:
    """Move everything, and wait until the files are gone too."""
    await told(broker, "topics", "offload", topic)
    async with asyncio.timeout(HANG_S):
        while True:
            lines = await told_json(broker, "topics", "ledgers", topic)
            if all(line["tier"] == "cold" for line in lines):
                return lines
            await asyncio.sleep(LOOK_S)


async def cold_lines(client: danubius.Client, topic: str) -> list[LedgerSummary]:
    """The ledgers of a topic once all of them are in cold storage alone; none before that."""
    lines = await client.admin.list_ledgers(topic)
    return lines if all(line.tier == "cold" for line in lines) else []


def files_of(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.data_dir / "ledgers").glob("[0-9a-f][0-9a-f]/*.ledger"))


def objects_of(cold: Path) -> list[Path]:
    while True:
        # A folder that is removed while it is looked at is no answer.
        with contextlib.suppress(FileNotFoundError):
            return sorted(cold.glob("*/*/*.ledger"))


async def test_a_topic_moves_to_cold_storage_and_is_read_back_by_every_kind_of_reader(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path)
    await fill(broker, topic, 0, 5000)
    middle = datetime.now(UTC)
    await fill(broker, topic, 5000, 5000)
    lines = await offloaded(broker, topic)
    await until(lambda: not files_of(broker))
    assert len(objects_of(tmp_path)) == len(lines) > 5
    broker.kill()
    broker.start()
    assert await numbers(broker, topic) == list(range(10_000))
    async with danubius.connect(broker.url) as client:
        async with client.reader(topic, start=middle) as reader:
            async for message in reader:
                assert message.offset == 5000
                break
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            got: list[int] = []
            while len(got) < 10_000:
                batch = await consumer.receive_batch()
                got += [int(bytes(payload).partition(b"/")[0]) for payload in batch.payloads]
                await consumer.ack(batch)
            assert got == list(range(10_000))


class Stream:
    """Numbered messages at full speed, and readers that must see each once, in order, from the first to the last."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._url = broker.url
        self._topic = topic
        self._is_enough = False
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.caught_up = asyncio.Event()
        """A late reader has come half-way to where the stream was when it began."""
        self.sent = 0

    def finish(self) -> None:
        self._is_enough = True

    async def produce(self) -> None:
        async with danubius.connect(self._url) as client, client.producer(self._topic) as producer:
            while not self._is_enough:
                group = [b"%d/" % n + bytes(300) for n in range(self.sent, self.sent + 500)]
                await producer.send_many(group)
                self.sent += 500
            # Known before the last message is sent: no reader waits behind it.
            self._end.set_result(self.sent + 1)
            await producer.send(b"%d/" % self.sent)

    async def read(self, *, is_late: bool = False) -> None:
        expected, half = 0, self.sent // 2
        async with (
            danubius.connect(self._url) as client,
            client.reader(self._topic, start=0) as reader,
        ):
            async for message in reader:
                assert message.offset == expected
                assert message.payload.startswith(b"%d/" % expected)
                expected += 1
                if is_late and expected > half:
                    self.caught_up.set()
                if self._end.done() and expected == self._end.result():
                    return


async def test_readers_see_no_seam_while_ledgers_are_rolled_moved_and_deleted_under_them(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path)
    await told(broker, "topics", "create", topic, "--offload-age", "0")
    stream = Stream(broker, topic)
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
        group.create_task(stream.produce())
        group.create_task(stream.read())
        tiers: set[str] = set()
        while "cold" not in tiers or stream.sent < 20_000:
            lines = await told_json(broker, "topics", "ledgers", topic)
            tiers = {line["tier"] for line in lines}
        late = group.create_task(stream.read(is_late=True))
        await stream.caught_up.wait()
        stream.finish()
        await late
    async with Rest(broker) as rest:
        metrics = (await rest.http.get("/metrics")).text
    [read_bytes] = [x for x in metrics.splitlines() if x.startswith("danubius_tier_read_bytes")]
    assert int(read_bytes.split()[1]) > 0


async def test_kills_while_ledgers_move_lose_nothing_and_leave_nothing_over(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path, "--set", "tier.orphan_age_ms=0")
    await told(broker, "topics", "create", topic, "--offload-age", "0")
    for life in range(4):
        await fill(broker, topic, life * 2000, 2000)
        await asyncio.sleep(0.15 * life)
        broker.kill()
        broker.start()
    assert await numbers(broker, topic) == list(range(8000))
    lines = await offloaded(broker, topic)
    names = {str(line["object"]) for line in lines}
    await until(lambda: {str(p.relative_to(tmp_path)) for p in objects_of(tmp_path)} == names)
    assert await numbers(broker, topic) == list(range(8000))
    await told(broker, "topics", "delete", topic, "--yes")
    await until(lambda: not objects_of(tmp_path))


async def test_of_two_brokers_with_copies_of_one_directory_the_newer_owns_the_store(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    cold = tmp_path / "cold"
    older = start(start_broker, cold)
    await fill(older, topic, 0, 3000)
    await offloaded(older, topic)
    assert older.stop() == 0
    shutil.copytree(older.data_dir, tmp_path / "copy")
    older.start()
    await until(lambda: older.log().count("cold storage is ours") == 2)
    with pytest.raises(BrokerNotReady, match="the data directory is an old copy"):
        start_broker("--tier-url", f"fs://{cold}", *SMALL, data_dir=tmp_path / "copy")
    # Started without cold storage, which would have told, its epoch becomes the higher one.
    for _ in range(2):
        start_broker(data_dir=tmp_path / "copy").kill()
    newer = start_broker("--tier-url", f"fs://{cold}", *SMALL, data_dir=tmp_path / "copy")
    await until(lambda: "belongs to another broker" in older.log())
    objects = objects_of(cold)
    await fill(older, topic, 3000, 1000)
    await told(older, "topics", "delete", topic, "--yes")
    refused = await called(older, "topics", "offload", topic)
    assert refused.code == 1
    await offloaded(newer, topic)
    assert set(objects) <= set(objects_of(cold)), "what the other one needs was not removed"
    assert await numbers(newer, topic) == list(range(3000))


async def test_storage_check_proves_both_tiers_and_names_damage(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path)
    await fill(broker, topic, 0, 3000)
    await told(broker, "topics", "update", topic, "--local-age", "forever")
    await told(broker, "topics", "offload", topic)
    await fill(broker, topic, 3000, 500)
    lines = await told_json(broker, "topics", "ledgers", topic)
    assert {line["tier"] for line in lines} == {"both", "local"}
    assert f"{topic} is sound" in await told(broker, "storage", "check", topic)
    victim = objects_of(tmp_path)[1]
    content = bytearray(victim.read_bytes())
    content[5000] ^= 1
    victim.write_bytes(content)
    objects_of(tmp_path)[0].unlink()
    done = await called(broker, "storage", "check", topic, "--json")
    assert done.code == 1
    assert done.stdout.count('"damage":"the block') == 1
    assert done.stdout.count("has no object") == 1
    assert (await called(broker, "storage", "check", topic)).code == 1


async def test_operators_see_and_move_ledgers_over_rest_and_by_metrics(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path)
    await fill(broker, topic, 0, 2000)
    await offloaded(broker, topic)
    async with Rest(broker) as rest:
        page = await rest.get(rest.path(topic) + "/ledgers")
        assert page["tier_url"] == f"fs://{tmp_path}"
        assert {line["tier"] for line in page["ledgers"]} == {"cold"}
        ledger_id = page["ledgers"][0]["ledger_id"]
        answer = await rest.http.post(rest.path(topic) + f"/ledgers/{ledger_id}/check")
        assert answer.json()["places"] == [
            {
                "tier": "cold",
                "bytes": page["ledgers"][0]["object_bytes"],
                "damage": "",
                "first_offset": 0,
                "end_offset": 0,
            }
        ]
        answer = await rest.http.patch(rest.path(topic), json={"policies": {"local_bytes": 5}})
        assert answer.json()["effective"]["local_bytes"] == 5
        async with asyncio.timeout(HANG_S):
            metrics = ""
            while 'danubius_tier_ledgers{tier="cold"} 0' in metrics or not metrics:
                metrics = (await rest.http.get("/metrics")).text
    assert f"danubius_tier_uploads_total {len(page['ledgers'])}" in metrics


async def test_namespaces_hand_their_offload_policies_on(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start(start_broker, tmp_path)
    await told(
        broker, "namespaces", "create", "archive", "--offload-age", "1h", "--local-bytes", "1GiB"
    )
    await told(broker, "topics", "create", "/archive/t", "--offload-age", "never")
    [found] = await told_json(broker, "topics", "describe", "/archive/t")
    assert found["effective"]["offload_age_ms"] == -1
    assert found["effective"]["local_bytes"] == 1 << 30
    await told(broker, "topics", "update", "/archive/t", "--inherit", "offload-age")
    [found] = await told_json(broker, "topics", "describe", "/archive/t")
    assert found["effective"]["offload_age_ms"] == 3_600_000
    assert "offload age" in await told(broker, "namespaces", "describe", "archive")


async def test_a_broker_that_is_full_says_why_and_goes_on_when_there_is_room(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path, "--tier-local-bytes-max", "1MiB")
    await told(broker, "topics", "create", topic)
    with pytest.raises(StorageFull, match=r"local_bytes_max\): no topic has more") as refused:
        async with (
            danubius.connect(broker.url) as client,
            client.producer(topic, send_timeout=2.0) as producer,
        ):
            for _ in range(5000):
                await producer.send_many([bytes(1000)] * 10)
    assert refused.value.retry
    await told(broker, "topics", "update", topic, "--offload-age", "0")
    await offloaded(broker, topic)
    await fill(broker, topic, 0, 500)


async def test_wrong_settings_are_named_at_the_start(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    wrong = run_command(
        "standalone", "--data-dir", str(tmp_path / "d"), "--tier-url", "nowhere://x"
    )
    assert wrong.code == 1
    assert "nowhere" in wrong.stderr
    broker = start_broker("--tier-url", "s3://bucket/p", *SMALL,
                          "--tier-option", "endpoint=http://127.0.0.1:9",
                          "--tier-option", "region=r",
                          "--tier-option", "access_key_id=k",
                          "--tier-option", "secret_access_key=hidden",
                          "--set", "tier.deadline_ms=1s")  # fmt: skip
    await fill(broker, topic, 0, 500)
    await until(lambda: "cold storage cannot be used" in broker.log())
    assert "hidden" not in broker.log()
    assert len(await numbers(broker, topic)) == 500
    done = await called(broker, "topics", "offload", topic, "--timeout", "10s")
    assert done.code == 1
    first, last = done.stderr.splitlines()
    assert first.startswith("it waits, because "), "whoever waits hears why at once"
    assert "s3://bucket/p" in first
    assert "not all of" in last


async def test_without_cold_storage_its_messages_are_missed_by_name_and_others_are_served(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    broker = start(start_broker, tmp_path)
    await fill(broker, topic, 0, 1000)
    await offloaded(broker, topic)
    await fill(broker, topic, 1000, 500)
    broker.stop()
    broker.options = []
    broker.start()
    done = await called(broker, "topics", "offload", topic)
    assert done.code == 1
    assert "--tier-url" in done.stderr
    async with danubius.connect(broker.url) as client, client.reader(topic, start=1000) as reader:
        async for message in reader:
            assert message.offset == 1000
            break
