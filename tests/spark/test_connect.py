# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A pipeline on a Spark Connect server: another process, to which the command is only a client."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
import pytest
from deltalake import DeltaTable

from e2e.broker_process import environment
from patience import HANG_S, LOOK_S, PROGRAM_HANG_S
from spark.processes import Program, quick_python, small_copy
from spark.topics import numbers, publish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.broker_process import BrokerProcess

FILES: Final = Path(__file__).resolve().parents[2] / "pipelines"
SUBMIT: Final = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture
def connect_url(tmp_path: Path) -> Iterator[str]:
    """A server as docs/pipelines.md starts it, on a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = f"--master local[2] --conf spark.connect.grpc.binding.port={port} --class {SERVER}"
    command = [str(SUBMIT), *options.split(), "--conf", "spark.ui.enabled=false", "spark-internal"]
    settings = {"PYSPARK_PYTHON": quick_python(tmp_path, sys.executable)}
    server = Program(command, tmp_path / "server.log", settings)
    try:
        _await_port(port, server)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()


def _await_port(port: int, server: Program) -> None:
    until = time.monotonic() + PROGRAM_HANG_S
    while time.monotonic() < until and server.is_running:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=HANG_S).close()
        except OSError:
            time.sleep(LOOK_S)  # another process opens it, which tells nobody
        else:
            return
    raise AssertionError(f"the server did not start:\n{server.log()}")


def test_a_pipeline_runs_on_a_connect_server(
    broker: BrokerProcess, topic: str, connect_url: str, tmp_path: Path
) -> None:
    publish(broker.url, topic, numbers(0, 500))
    file = small_copy(FILES / "archive.toml", tmp_path)
    table = tmp_path / "table"
    options = ["--url", broker.url, "--remote", connect_url, "--once"]
    folders = ["--checkpoint", str(tmp_path / "checkpoint"), "--set", f"table={table}"]
    command = [sys.executable, "-m", "danubius", "pipeline", "run", str(file), *options, *folders]
    ran = subprocess.run(
        [*command, "--set", f"topic={topic}"],
        env=environment(),
        timeout=PROGRAM_HANG_S,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    stored = DeltaTable(str(table)).to_pyarrow_table(columns=["payload"]).column("payload")
    assert sorted(map(int, stored.to_pylist())) == list(range(500))
