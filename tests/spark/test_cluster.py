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
from spark.cluster_program import ROWS
from spark.processes import Program, bare_python

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker
    from spark.processes import Cluster

FILES: Final = Path(__file__).resolve().parents[2] / "pipelines"
WAIT_S: Final = 300.0
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bare_python(tmp_path_factory.mktemp("python") / "bare")


async def _payloads(url: str, topic: str) -> list[bytes]:
    async with (
        danubius.connect(url) as client,
        client.reader(topic, start="earliest", stop_at_end=True) as reader,
    ):
        return [message.payload async for message in reader]


def _run(program: Program) -> None:
    try:
        code = program.wait(WAIT_S)
    finally:
        program.kill()
    assert code == 0, program.log()


def test_source_sink_and_pipeline_on_a_cluster(
    start_broker: StartBroker, cluster: Cluster, python: str, tmp_path: Path
) -> None:
    broker: BrokerProcess = start_broker()
    settings = {"PYSPARK_PYTHON": python, "PYTHONPATH": ""}
    program = str(Path(__file__).with_name("cluster_program.py"))
    checkpoint = str(tmp_path / "checkpoint")
    answer = tmp_path / "answer.json"
    command = [sys.executable, program, cluster.master, broker.url, checkpoint, str(answer)]
    _run(Program(command, tmp_path / "driver.log", settings))
    said = json.loads(answer.read_text())

    assert said["read"] == [ROWS, sum(range(ROWS))]
    executors = said["executors"]
    assert len({each["executor"] for each in executors}) == 2
    assert {each["python"] for each in executors} == {python}
    assert all(".zip" in each["package"] for each in executors), executors
    streamed = Counter(asyncio.run(_payloads(broker.url, "/default/second")))
    assert streamed == Counter(b"seen %d" % number for number in range(ROWS))

    table = tmp_path / "table"
    archive = ["pipeline", "run", str(FILES / "archive.toml"), "--once", "--master", cluster.master]
    where = ["--url", broker.url, "--checkpoint", str(tmp_path / "archive")]
    given = ["--set", "topic=/default/second", "--set", f"table={table}"]
    command = [sys.executable, "-m", "danubius", *archive, *where, *given]
    _run(Program(command, tmp_path / "pipeline.log", settings))
    stored = DeltaTable(str(table)).to_pyarrow_table(columns=["payload"]).column("payload")
    assert Counter(stored.to_pylist()) == streamed
