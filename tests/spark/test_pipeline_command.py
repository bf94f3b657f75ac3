# pyright: reportUnknownVariableType=false
"""`danubius pipeline`: what the command says and how it ends, as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from e2e.broker_process import Exit, environment, free_port, run_command
from patience import HANG_S, LOOK_S, PROGRAM_HANG_S
from spark.topics import numbers, publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.broker_process import BrokerProcess

FILES = Path(__file__).resolve().parents[2] / "pipelines"
ARCHIVE = str(FILES / "archive.toml")


def _until(condition: Callable[[], bool]) -> None:
    """Spark starts in this time, also where many others do."""
    limit = time.monotonic() + PROGRAM_HANG_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(LOOK_S)


def _validate(folder: Path, text: str) -> Exit:
    file = folder / "wrong.toml"
    file.write_text(text)
    return run_command("pipeline", "validate", str(file))


@pytest.mark.parametrize("file", sorted(path.name for path in FILES.glob("*.toml")))
def test_ready_made_files_are_right(file: str) -> None:
    done = run_command("pipeline", "validate", str(FILES / file))
    assert done.code == 0, done.stderr
    assert "sink " in done.stdout
    assert "is right" in done.stdout


def test_mistakes_are_told_by_line_with_exit_code_2(tmp_path: Path) -> None:
    done = _validate(
        tmp_path,
        'checkpoint = "c"\n[source.a]\ntopik = "/default/a"\n[sink.b]\nfrom = "c"\nconsole = true\n',
    )
    lines = done.stderr.splitlines()
    assert done.code == 2
    assert any(
        line.endswith("wrong.toml:3: [source.a] has no setting topik; did you mean topic?")
        for line in lines
    )
    assert any("wrong.toml:5: there is no source or step c" in line for line in lines)


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "own_steps.py").write_text("def clean(frame):\n    return frame\n")
    text = """
checkpoint = "c"
[source.a]
topic = "/default/a"
[step.b]
python = "own_steps:claen"
inputs = ["a"]
[sink.c]
from = "b"
console = true
"""
    done = _validate(tmp_path, text)
    assert done.code == 2
    assert (
        "wrong.toml:5: step b: own_steps has no function claen; did you mean clean?" in done.stderr
    )
    assert _validate(tmp_path, text.replace("claen", "clean")).code == 0
    assert (
        "cannot import nowhere" in _validate(tmp_path, text.replace("own_steps", "nowhere")).stderr
    )


def test_an_option_that_the_source_does_not_have(tmp_path: Path) -> None:
    text = 'checkpoint = "c"\n[source.a]\ntopic = "/default/a"\noptions = { startingOfsets = "earliest" }\n'
    done = _validate(tmp_path, text + '[sink.b]\nfrom = "a"\nconsole = true\n')
    assert done.code == 2
    assert "wrong.toml:4: " in done.stderr
    assert "startingOffsets" in done.stderr


def test_no_broker_is_said_before_spark_starts(tmp_path: Path) -> None:
    url = f"danube://127.0.0.1:{free_port()}"
    done = run_command(
        "pipeline", "run", ARCHIVE, "--url", url, "--checkpoint", str(tmp_path / "c")
    )
    assert done.code == 1
    assert f"there is no broker at {url}" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_run_follows_its_topic_tells_its_figures_and_stops_cleanly(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    publish(broker.url, topic, numbers(0, 100))
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    options = [
        ARCHIVE,
        "--url",
        broker.url,
        "--checkpoint",
        str(checkpoint),
        "--set",
        f"topic={topic}",
    ]
    options += ["--set", f"table={table}"]
    command = [
        sys.executable,
        "-m",
        "danubius",
        "pipeline",
        "run",
        *options,
        "--master",
        "local[2]",
    ]
    process = subprocess.Popen(
        [*command, "--metrics-port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    said: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=said.extend, args=(process.stderr,), daemon=True)
    reader.start()

    def status() -> dict[str, Any]:
        done = run_command("pipeline", "status", *options, "--json")
        return json.loads(done.stdout) if done.code == 0 else {}

    def rows() -> int:
        is_there = DeltaTable.is_deltatable(str(table))
        return DeltaTable(str(table)).to_pyarrow_table().num_rows if is_there else 0

    try:
        _until(lambda: process.poll() is not None or rows() == 100)
        assert process.poll() is None, "".join(said)
        publish(broker.url, topic, numbers(100, 150))
        _until(lambda: process.poll() is not None or rows() == 150)
        _until(lambda: status()["queries"]["table"]["figures"]["rows_out"] == 150)
        told = status()
        assert told["state"] == "running"
        assert run_command("pipeline", "run", *options).stderr.count("is in use by process") == 1
        address = f"http://127.0.0.1:{told['metrics_port']}/metrics"
        with urllib.request.urlopen(address, timeout=HANG_S) as answer:
            assert (
                b'danubius_pipeline_rows_in_total{pipeline="archive",query="table"} 150.0'
                in answer.read()
            )
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0, "".join(said)
    finally:
        process.kill()
        process.wait()
    reader.join(HANG_S)
    assert status()["state"] == "finished"
    assert any("stopping" in line for line in said)
    assert rows() == 150
