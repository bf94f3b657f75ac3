# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A real standalone cluster: a master and two workers, with executors whose Python does not have this package."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from deltalake import DeltaTable

import danubius
from patience import PROGRAM_HANG_S
from spark.cluster_program import ROWS
from spark.processes import Program, bare_python, quick_python, small_copy

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker
    from spark.processes import Cluster

FILES: Final = Path(__file__).resolve().parents[2] / "pipelines"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bare_python(tmp_path_factory.mktemp("python") / "bare")


async def _payloads(url: str, topic: str) -> list[bytes]:
    async with (
        danubius.connect(url) as client,
        client.reader(topic, start="earliest", stop_at_end=True) as reader,
    ):
        return [message.payload async for message in reader]


def test_source_sink_and_pipeline_on_a_cluster(
    start_broker: StartBroker, cluster: Cluster, python: str, tmp_path: Path
) -> None:
    broker: BrokerProcess = start_broker()
    program = str(Path(__file__).with_name("cluster_program.py"))
    pipeline = small_copy(FILES / "archive.toml", tmp_path)
    command = [sys.executable, program, cluster.master, broker.url, str(tmp_path), str(pipeline)]
    settings = {"PYSPARK_PYTHON": quick_python(tmp_path, python), "PYTHONPATH": ""}
    driver = Program(command, tmp_path / "driver.log", settings)
    try:
        assert driver.wait(PROGRAM_HANG_S) == 0, driver.log()
    finally:
        driver.kill()
    said = json.loads((tmp_path / "answer.json").read_text())

    assert said["read"] == [ROWS, sum(range(ROWS))]
    executors = said["executors"]
    assert len({each["executor"] for each in executors}) == 2
    assert {each["python"] for each in executors} == {python}
    assert all(".zip" in each["package"] for each in executors), executors
    streamed = Counter(asyncio.run(_payloads(broker.url, "/default/second")))
    assert streamed == Counter(b"seen %d" % number for number in range(ROWS))

    stored = (
        DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["payload"]).column("payload")
    )
    assert Counter(stored.to_pylist()) == streamed
