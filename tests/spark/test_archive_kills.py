# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""`pipelines/archive.toml` with driver, executors and broker killed by -9: the table holds every message once.

On a standalone cluster. A second query of the same pipeline writes to a topic, which must hold every message once too.
In `make prove` it is a million messages, for each kind of table, and the topic has a test of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from danubius.pipeline.iceberg import Place
from proving import sized
from spark.kills import BATCH, HARMS, KEYS, MESSAGES, Torment, publish, read_all, report
from spark.processes import Program, small_copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker
    from spark.processes import Cluster

FILE: Final = Path(__file__).resolve().parents[2] / "pipelines" / "archive.toml"
TOPIC: Final = "/default/archive-kills"
LOUD: Final = "/default/archive-kills-loud"
LOUD_QUERY: Final = f"""
[step.loud]
sql = "SELECT key, upper(CAST(payload AS STRING)) AS payload FROM messages"

[sink.loud]
from = "loud"
topic = "{LOUD}"
"""
QUERIES: Final = sized(["table", "loud"], ["table"])


def _pipeline(folder: Path) -> Path:
    """The ready-made file with small batches, and no pause between them."""
    limit = f"maxOffsetsPerTrigger = {BATCH}, minPartitions = 2"
    changes = (
        ('trigger = "10s"', 'trigger = "fastest"'),
        ("maxOffsetsPerTrigger = 1_000_000", limit),
    )
    return small_copy(FILE, folder, *changes, more=sized(LOUD_QUERY, ""))


def _committed(checkpoint: Path) -> int:
    """How far the query has come, as its checkpoint says."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        newest = max(
            int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()
        )
        offsets = (checkpoint / "offsets" / str(newest)).read_text().splitlines()[-1]
        return int(json.loads(offsets)[TOPIC]["0"])
    return 0


def _rows(request: pytest.FixtureRequest, kind: str, table: Path) -> Any:
    columns = ["offset", "key", "payload"]
    if kind == "delta":
        return DeltaTable(str(table)).to_pyarrow_table(columns=columns)
    if kind == "iceberg":
        return Place(table, None).load().scan(selected_fields=tuple(columns)).to_arrow()
    spark: SparkSession = request.getfixturevalue("spark")
    return pa.Table.from_batches(
        spark.read.parquet(str(table)).select(*columns).toArrow().to_batches()
    )


@pytest.mark.grows
@pytest.mark.parametrize("kind", sized(["delta"], ["delta", "iceberg", "parquet"]))
def test_the_table_holds_every_message_once(
    start_broker: StartBroker,
    cluster: Cluster,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
) -> None:
    broker: BrokerProcess = start_broker()
    asyncio.run(publish(broker.url, TOPIC))
    table, checkpoint, file = tmp_path / "table", tmp_path / "checkpoint", _pipeline(tmp_path)

    def start() -> Program:
        command = [sys.executable, "-m", "danubius", "pipeline", "run", str(file)]
        where = ["--url", broker.url, "--checkpoint", str(checkpoint), "--master", cluster.master]
        given = {"topic": TOPIC, "table": table, "format": kind}
        given["compact_every"] = "0" if kind == "parquet" else "5"
        sets = [text for name, value in given.items() for text in ("--set", f"{name}={value}")]
        settings = {"PYSPARK_PYTHON": cluster.python}
        return Program([*command, *where, *sets], tmp_path / "driver.log", settings)

    def done() -> int:
        return min(_committed(checkpoint / query) for query in QUERIES)

    torment = Torment(broker, cluster, start, done)
    begun = time.monotonic()
    torment.run()
    report(f"archive as {kind}", torment, begun)
    rows = _rows(request, kind, table)
    found = Counter(
        zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True)
    )
    assert found == Counter((n, b"key-%d" % (n % KEYS), b"m-%d" % n) for n in range(MESSAGES))
    assert all(torment.kills[harm] for harm in HARMS)
    if "loud" in QUERIES:
        loud = Counter(asyncio.run(read_all(broker.url, LOUD)))
        assert loud == Counter((b"key-%d" % (n % KEYS), b"M-%d" % n) for n in range(MESSAGES))
