"""Cold storage in a real S3 server: moved in parts, read back exactly, also by Spark, and wrong credentials named."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from danubius.errors import StorageFailed, TierMisconfigured
from danubius.spark.connection import fetching
from danubius.spark.source import cold_stores
from e2e.spark_reads import Read
from e2e.test_cold_storage import SMALL, files_of, fill, numbers, offloaded, until
from object_servers import PATIENCE_MS, ObjectPlace, s3_by_seaweedfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import StartBroker


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectPlace]:
    with s3_by_seaweedfs() as place:
        yield place


def options_of(place: ObjectPlace) -> list[str]:
    given = [("--tier-option", f"{name}={value}") for name, value in place.options.items()]
    words = [word for pair in given for word in pair]
    deadline = ("--set", f"tier.deadline_ms={PATIENCE_MS}")
    return ["--tier-url", place.url, *words, *SMALL, *deadline]


async def test_a_topic_in_s3_is_read_back_exactly_after_a_kill(
    start_broker: StartBroker, s3: ObjectPlace, topic: str
) -> None:
    broker = start_broker(
        *options_of(s3.below("moved")),
        "--set", "ledgers.ledger_bytes_max=8MiB",
        "--set", "tier.part_bytes=5MiB",
        "--set", "tier.verify=full",
    )  # fmt: skip
    await fill(broker, topic, 0, 40_000)
    lines = await offloaded(broker, topic)
    assert max(line["object_bytes"] for line in lines) > 5 << 20, "in more than one part"
    await until(lambda: not files_of(broker))
    broker.kill()
    broker.start()
    assert await numbers(broker, topic) == list(range(40_000))


async def test_wrong_credentials_are_named_at_the_start_and_publishing_goes_on(
    start_broker: StartBroker, s3: ObjectPlace, topic: str
) -> None:
    wrong = s3._replace(options=s3.options | {"secret_access_key": "not-the-right-one"})
    broker = start_broker(*options_of(wrong.below("refused")))
    await until(lambda: "cold storage cannot be used" in broker.log())
    assert "not-the-right-one" not in broker.log()
    await fill(broker, topic, 0, 1000)
    assert len(await numbers(broker, topic)) == 1000
    [line] = [x for x in broker.log().splitlines() if "cold storage cannot be used" in x][:1]
    assert "everything stays on the broker's disk" in line


async def test_spark_reads_from_s3_with_credentials_given_by_options_or_the_environment(
    start_broker: StartBroker, s3: ObjectPlace, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker(*options_of(s3.below("spark")))
    await fill(broker, topic, 0, 2000)
    await offloaded(broker, topic)
    place = {name: s3.options[name] for name in ("endpoint", "region")}
    secrets = {name: value for name, value in s3.options.items() if name not in place}

    def read(given: dict[str, str], **options: str) -> Read:
        told_ = {f"tierOption.{name}": value for name, value in given.items()}
        return Read(broker, topic, **options, **told_)

    tier = await asyncio.to_thread(read, place | secrets, readFrom="tier")
    auto = await asyncio.to_thread(read, place | secrets)
    for name, value in secrets.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    by_variables = await asyncio.to_thread(read, place, readFrom="tier")
    pairs = ",".join(f"{name}={value}" for name, value in place.items())
    monkeypatch.setenv("DANUBIUS_TIER_OPTIONS", pairs)
    without_options = await asyncio.to_thread(read, {}, readFrom="tier")
    for given, says in [
        ({"secret_access_key": "not-the-right-one"}, "s3://"),
        ({"acces_key_id": "k"}, "did you mean 'access_key_id'"),
    ]:
        for word in ("auto", "tier"):
            with pytest.raises(TierMisconfigured, match=says) as caught:
                await asyncio.to_thread(read, place | secrets | given, readFrom=word)
            assert "not-the-right-one" not in str(caught.value)
    nowhere = place | secrets | {"endpoint": "http://127.0.0.1:9"}
    with pytest.raises(StorageFailed, match="s3://"):
        await asyncio.to_thread(read, nowhere, readFrom="tier")
    down = await asyncio.to_thread(read, nowhere)
    assert not any(range_.segments for range_ in down.ranges)
    assert await asyncio.to_thread(down.numbers) == list(range(2000)), "the broker reaches it"
    broker.kill()
    for planned in (tier, auto, by_variables, without_options):
        assert await asyncio.to_thread(planned.numbers) == list(range(2000))
    fetching.close_clients()
    cold_stores.close_stores()
