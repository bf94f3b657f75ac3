# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The ready-made pipelines, each on a real broker and local Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from danubius.pipeline import iceberg
from danubius.pipeline.reading import Given, load
from danubius.pipeline.run import How, run_on
from danubius.pipeline.table_schema import UnfitRows
from e2e.cli_calls import run_json
from spark.topics import administer, numbers, payloads, publish, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from danubius.pipeline.status import Status
    from e2e.broker_process import BrokerProcess

FILES = Path(__file__).resolve().parents[2] / "pipelines"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
START = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries that tables and pandas bring


@dataclass
class Pipelines:
    """Runs files once, on the shared session."""

    spark: SparkSession
    url: str
    folder: Path
    told: list[str] = field(default_factory=list[str])
    seen: list[Status] = field(default_factory=list["Status"])

    def run(self, file: Path | str, **parameters: str) -> None:
        path = FILES / file if isinstance(file, str) else file
        given = Given(self.url, str(self.folder / "checkpoint"), parameters)
        pipeline = load(path, given)
        restart = msgspec.structs.replace(pipeline.restart, attempts_max=2)
        pipeline = msgspec.structs.replace(pipeline, restart=restart)
        is_well = run_on(
            self.spark, [pipeline], How(is_once=True), self.told.append, self.seen.append
        )
        assert is_well, self.told

    def messages(self, topic: str) -> list[Any]:
        return read(self.spark, self.url, topic=topic).orderBy("partition", "offset").collect()

    def json(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(bytes(row.payload)) for row in self.messages(topic)]


@pytest.fixture
def pipelines(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Pipelines:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    return Pipelines(spark, broker.url, tmp_path)


def _at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def _delta(path: Path) -> list[dict[str, Any]]:
    return DeltaTable(str(path)).to_pyarrow_table().to_pylist()


def _iceberg(path: Path) -> list[dict[str, Any]]:
    return iceberg.Place(path, None).load().scan().to_arrow().to_pylist()


def test_archive_keeps_every_message_once(pipelines: Pipelines, topic: str) -> None:
    table = pipelines.folder / "archive"
    given = {"topic": topic, "table": str(table), "compact_every": "2"}
    publish(pipelines.url, topic, numbers(0, 300))
    pipelines.run("archive.toml", **given)
    publish(pipelines.url, topic, numbers(300, 500))
    pipelines.run("archive.toml", **given)
    assert sorted(row["offset"] for row in _delta(table)) == list(range(500))
    assert len(DeltaTable(str(table)).file_uris()) == 1, "two batches were compacted"
    # The driver died after the table's commit and before Spark's: the batch comes again.
    for commit in (pipelines.folder / "checkpoint/table/commits").glob("*1*"):
        commit.unlink()
    pipelines.run("archive.toml", **given)
    assert sorted(int(row["payload"]) for row in _delta(table)) == list(range(500))
    figures = pipelines.seen[-1].queries["table"].figures
    assert figures.rows_in == figures.rows_out == 200


@pytest.mark.parametrize("table_format", ["iceberg", "parquet"])
def test_archive_in_other_formats(
    pipelines: Pipelines, broker: BrokerProcess, topic: str, table_format: str
) -> None:
    table = pipelines.folder / "tables" / "archive"
    compact = "1" if table_format == "iceberg" else "0"
    given = {"topic": topic, "table": str(table), "format": table_format, "compact_every": compact}
    publish(pipelines.url, topic, numbers(0, 100))
    pipelines.run("archive.toml", **given)
    (pipelines.folder / "checkpoint/table/commits/0").unlink()
    (pipelines.folder / "checkpoint/table/commits/.0.crc").unlink(missing_ok=True)
    pipelines.run("archive.toml", **given)
    publish(pipelines.url, topic, numbers(100, 150))
    pipelines.run("archive.toml", **given)
    if table_format == "parquet":
        rows = pipelines.spark.read.parquet(str(table)).collect()
        assert sorted(int(row.payload) for row in rows) == list(range(150))
    else:
        assert sorted(int(row["payload"]) for row in _iceberg(table)) == list(range(150))
        assert len(iceberg.data_files(table, None)[1]) == 1, "two batches were compacted"
    # The table and the topic it is of, in one question.
    query = (
        f"SELECT count(*) AS n, sum(a.offset) AS s FROM {table_format}.`{table}` a"
        f" JOIN danube.`{topic}` b ON a.offset = b.offset AND CAST(a.payload AS STRING) = b.payload"
    )
    assert run_json(broker, "sql", query) == [{"n": 150, "s": 11175}]


def test_aggregate_counts_late_ones_and_no_duplicate(pipelines: Pipelines, topic: str) -> None:
    def reading(number: int, device: str, seconds: float, value: float) -> bytes:
        facts = {"id": f"{device}-{number}", "device": device, "at": _at(seconds), "value": value}
        return json.dumps(facts).encode()

    sent = [
        reading(0, "a", 1, 10.0), reading(1, "a", 12, 30.0), reading(2, "a", 2, 20.0),  # the last one is late
        reading(0, "a", 1, 10.0), b"{not json", reading(0, "b", 3, 5.0), reading(9, "z", 120, 0.0),
    ]  # fmt: skip
    publish(pipelines.url, topic, sent)
    table = pipelines.folder / "averages"
    pipelines.run(
        "aggregate.toml",
        input=topic,
        output=f"{topic}-out",
        malformed=f"{topic}-bad",
        table=str(table),
    )
    expected = {("a", 2, 15.0), ("a", 1, 30.0), ("b", 1, 5.0)}
    assert {(row["device"], row["readings"], row["mean"]) for row in _delta(table)} == expected
    found = pipelines.json(f"{topic}-out")
    assert {(row["device"], row["readings"], row["mean"]) for row in found} == expected
    assert len(found) == 3
    # Two queries read the malformed one, and of both there is one letter.
    letters = pipelines.messages(f"{topic}-bad")
    assert [bytes(letter.payload) for letter in letters] == [b"{not json"]
    assert letters[0].attributes["x-original-topic-offset"] == "4"
    watermark = pipelines.seen[-1].queries["table"].figures.watermark
    assert watermark is not None
    assert watermark.startswith("2026-11-16T08:01:50")


def test_enrich_joins_what_a_table_knows(pipelines: Pipelines, topic: str) -> None:
    table = pipelines.folder / "customers"
    table.mkdir()
    pq.write_table(
        pa.table({"customer": ["ada", "bob"], "city": ["Ulm", "Linz"]}), table / "a.parquet"
    )
    publish(pipelines.url, topic, [b"1", b"2", b"3"], keys=[b"ada", b"bob", b"eve"])
    pipelines.run("enrich.toml", input=topic, output=f"{topic}-out", table=str(table))
    found = {
        row["payload"]: row.get("customer", {}).get("city")
        for row in pipelines.json(f"{topic}-out")
    }
    assert found == {"1": "Ulm", "2": "Linz", "3": None}


def test_deduplicate_lets_the_first_one_pass(pipelines: Pipelines, topic: str) -> None:
    publish(pipelines.url, topic, [b"1", b"2", b"1"])
    publish(pipelines.url, topic, [b"3", b"4"], attributes={"id": "same"})
    pipelines.run("deduplicate.toml", input=topic, output=f"{topic}-out")
    publish(pipelines.url, topic, [b"2", b"5"])
    pipelines.run("deduplicate.toml", input=topic, output=f"{topic}-out")
    found = payloads(read(pipelines.spark, pipelines.url, topic=f"{topic}-out"))
    assert len(found) == 4
    assert {1, 2, 5} < set(found)


def test_replay_takes_a_range_of_time(pipelines: Pipelines, topic: str) -> None:
    publish(pipelines.url, topic, numbers(0, 50), keys=[b"k"] * 50)
    middle = pipelines.messages(topic)[-1].publish_time.replace(tzinfo=UTC) + timedelta(
        milliseconds=2
    )
    publish(pipelines.url, topic, numbers(50, 80))
    pipelines.run("replay.toml", input=topic, output=f"{topic}-old", until=middle.isoformat())
    pipelines.run("replay.toml", input=topic, output=f"{topic}-new", since=middle.isoformat())
    old = pipelines.messages(f"{topic}-old")
    assert sorted(int(row.payload) for row in old) == list(range(50))
    assert {bytes(row.key) for row in old} == {b"k"}
    assert payloads(read(pipelines.spark, pipelines.url, topic=f"{topic}-new")) == list(
        range(50, 80)
    )


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_compact_keeps_the_latest_of_each_key(
    pipelines: Pipelines, topic: str, table_format: str
) -> None:
    table = pipelines.folder / "tables" / "latest"
    given = {"topic": topic, "table": str(table), "format": table_format}
    publish(pipelines.url, topic, [b"1", b"2", b"3"], keys=[b"a", b"b", b"a"])
    pipelines.run("compact.toml", **given)
    publish(pipelines.url, topic, [b"4", b"5"], keys=[b"b", b"c"])
    publish(pipelines.url, topic, [b"without a key"])
    pipelines.run("compact.toml", **given)
    query = json.loads((pipelines.folder / "checkpoint/table/metadata").read_text())["id"]
    if table_format == "delta":
        rows, newest = _delta(table), DeltaTable(str(table)).transaction_version(query)
    else:
        rows = _iceberg(table)
        newest = int(iceberg.Place(table, None).load().properties[f"danubius.batch.{query}"])
    assert newest is not None, "the table knows the query, so it takes a batch once"
    assert newest >= 1
    assert {row["key"]: (row["payload"], row["offset"]) for row in rows} == {
        "a": (b"3", 2),
        "b": (b"4", 3),
        "c": (b"5", 4),
    }


def test_sessions_end_after_a_gap(pipelines: Pipelines, topic: str) -> None:
    minutes = {"ada": [0, 10, 35, 120, 20], "bob": [5]}
    sent = [
        json.dumps({"user": user, "at": _at(60 * minute)}).encode()
        for user, each in minutes.items()
        for minute in each
    ]
    publish(pipelines.url, topic, sent)
    pipelines.run("sessions.toml", input=topic, output=f"{topic}-out")
    publish(pipelines.url, topic, [json.dumps({"user": "eve", "at": _at(36_000)}).encode()])
    pipelines.run("sessions.toml", input=topic, output=f"{topic}-out")
    found = {
        (row["user"], row["started"][11:16], row["events"])
        for row in pipelines.json(f"{topic}-out")
    }
    assert found == {("ada", "08:00", 4), ("bob", "08:05", 1), ("ada", "10:00", 1)}


def test_a_query_that_fails_is_started_again(pipelines: Pipelines, topic: str) -> None:
    marker = pipelines.folder / "broken"
    marker.write_text("")
    file = pipelines.folder / "failing.toml"
    file.write_text(f"""
checkpoint = "unused"
restart = {{ first_delay = "10ms" }}
[source.raw]
topic = "{topic}"
options = {{ startingOffsets = "earliest" }}
[step.marked]
python = "spark.failing_step:unless"
inputs = ["raw"]
arguments = {{ marker = "{marker}" }}
[sink.rows]
from = "marked"
table = "{pipelines.folder}/rows"
format = "delta"
""")
    publish(pipelines.url, topic, numbers(0, 10))
    pipelines.run(file)
    status = pipelines.seen[-1].queries["rows"]
    assert status.restarts == 1
    assert "the marker is there" in status.reason
    assert len(_delta(pipelines.folder / "rows")) == 10
    assert any("again in 0.01 s" in line for line in pipelines.told)
    administer(pipelines.url, "delete_topic", topic)


def test_rows_that_do_not_fit_are_refused_before_there_is_a_checkpoint(
    pipelines: Pipelines, topic: str
) -> None:
    folder = pipelines.folder
    there = pa.table({"offset": [7], "payload": ["a"]})
    (folder / "parquet").mkdir()
    pq.write_table(there, folder / "parquet" / "part-0.parquet")
    DeltaTable.create(str(folder / "delta"), there.schema)
    publish(pipelines.url, topic, numbers(0, 10))
    file = folder / "unfit.toml"
    for target in (
        f'table = "{folder}/delta"\nformat = "delta"',
        f'table = "{folder}/parquet"',
        f'topic = "{topic}-out"',
    ):
        file.write_text(f"""
checkpoint = "unused"
[source.raw]
topic = "{topic}"
[step.more]
sql = "SELECT CAST(offset AS STRING) AS offset, CAST(payload AS STRING) AS payload, 1 AS extra FROM raw"
[sink.rows]
from = "more"
{target}
""")
        with pytest.raises(UnfitRows, match=r"unfit.toml:7: rows: .*extra") as caught:
            pipelines.run(file)
        assert "topic =" in target or "column offset is bigint in the table and string" in str(
            caught.value
        )
        assert not (folder / "checkpoint" / "rows").exists()
    assert _delta(folder / "delta") == []
    assert [path.name for path in (folder / "parquet").iterdir()] == ["part-0.parquet"]
