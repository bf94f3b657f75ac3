# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""`pipelines/archive.toml` with driver, executors and broker killed by -9: the table holds every message once.

On a standalone cluster. With DANUBIUS_PROVE=1 it is a million messages, for each kind of table.
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
from spark.kills import BATCH, HARMS, IS_PROOF, KEYS, MESSAGES, Torment, publish, report
from spark.processes import INSTALLED, SMALL, Program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker
    from spark.processes import Cluster

FILE: Final = Path(__file__).resolve().parents[2] / "pipelines" / "archive.toml"
TOPIC: Final = "/default/archive-kills"
SETTINGS: Final = {**SMALL, **INSTALLED, "spark.task.maxFailures": "20"}


def _pipeline(folder: Path) -> Path:
    """The ready-made file with small batches, and no pause between them."""
    text = FILE.read_text()
    for old, new in (
        ('trigger = "10s"', 'trigger = "fastest"'),
        ("maxOffsetsPerTrigger = 1_000_000", f"maxOffsetsPerTrigger = {BATCH}, minPartitions = 2"),
    ):
        assert old in text
        text = text.replace(old, new)
    file = folder / "archive.toml"
    settings = [f'{name.removeprefix("spark.")} = "{value}"' for name, value in SETTINGS.items()]
    file.write_text("\n".join([text, "[spark]", *settings, ""]))
    return file


def _committed(checkpoint: Path) -> int:
    """How far the query has come, as its checkpoint says."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        newest = max(
            int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()
        )
        offsets = (checkpoint / "offsets" / str(newest)).read_text().splitlines()[-1]
        return int(json.loads(offsets)[TOPIC]["0"])
    return 0


def _rows(spark: SparkSession, kind: str, table: Path) -> Any:
    columns = ["offset", "key", "payload"]
    if kind == "delta":
        return DeltaTable(str(table)).to_pyarrow_table(columns=columns)
    if kind == "iceberg":
        return Place(table, None).load().scan(selected_fields=tuple(columns)).to_arrow()
    return pa.Table.from_batches(
        spark.read.parquet(str(table)).select(*columns).toArrow().to_batches()
    )


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"] if IS_PROOF else ["delta"])
def test_the_table_holds_every_message_once(
    start_broker: StartBroker, cluster: Cluster, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    broker: BrokerProcess = start_broker()
    asyncio.run(publish(broker.url, TOPIC))
    table, checkpoint, file = tmp_path / "table", tmp_path / "checkpoint", _pipeline(tmp_path)

    def start() -> Program:
        command = [sys.executable, "-m", "danubius", "pipeline", "run", str(file)]
        where = ["--url", broker.url, "--checkpoint", str(checkpoint), "--master", cluster.master]
        given = {"topic": TOPIC, "table": table, "format": kind}
        given["compact_every"] = "5" if kind == "delta" else "0"
        sets = [text for name, value in given.items() for text in ("--set", f"{name}={value}")]
        return Program([*command, *where, *sets], tmp_path / "driver.log")

    torment = Torment(broker, cluster, start, lambda: _committed(checkpoint / "table"))
    begun = time.monotonic()
    torment.run()
    report(f"archive as {kind}", torment, begun)
    rows = _rows(spark, kind, table)
    found = Counter(
        zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True)
    )
    assert found == Counter((n, b"key-%d" % (n % KEYS), b"m-%d" % n) for n in range(MESSAGES))
    assert all(torment.kills[harm] for harm in HARMS)
