"""Processes that tests of Spark start and kill: a cluster, programs with everything below them, a bare Python."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyspark

from danubius.spark.cluster.sessions import BARE_PYTHON
from e2e.broker_process import environment
from patience import PROGRAM_HANG_S
from spark.class_archive import java_options

if TYPE_CHECKING:
    from collections.abc import Mapping

_READY: Final = re.compile(r"spark ready: (\S+)")
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
PYTHON_WORKER: Final = "/danubius/spark/cluster/daemon.py"
SMALL: Final = {
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A task may lose its executor, then its worker, and wait for a broker in between.
    "spark.task.maxFailures": "20",
    "spark.driver.extraJavaOptions": java_options(),
    "spark.executor.extraJavaOptions": java_options(),
}
"""Settings of drivers that start and end within a test."""


class Program:
    """A process, and everything that it starts."""

    def __init__(
        self, command: list[str], log: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self.log_path = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment() | dict(settings or {}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-6_000:]

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """It and all below it at once, each with -9."""
        pids = [self.pid, *descendants(self.pid)]
        for pid in pids:
            kill(pid)
        self._process.wait()


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(root: int, *, named: str = "") -> list[int]:
    """The processes below one whose command line holds the word, the nearest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return [pid for pid in found[1:] if not named or named in _command_line(pid)]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def small_copy(file: Path, folder: Path, *changes: tuple[str, str], more: str = "") -> Path:
    """A pipeline's file with changes, and with settings for a short life."""
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    settings = [f'{name.removeprefix("spark.")} = "{value}"' for name, value in SMALL.items()]
    copy = folder / file.name
    copy.write_text("\n".join([text, more, "[spark]", *settings, ""]))
    return copy


class Cluster:
    """`python -m danubius.spark.cluster` as docs/spark-cluster.md has it, on a port that is free."""

    def __init__(self, folder: Path) -> None:
        # Two addresses, because Spark runs no second attempt of a task on the host of the first.
        size = "--workers 2 --cores 1 --memory 1g --worker-hosts 127.0.0.2,127.0.0.3"
        command = f"-m danubius.spark.cluster --port 0 {size} --folder"
        self._process = subprocess.Popen(
            [sys.executable, *command.split(), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            # Executors inherit this: they shall get the package from the driver, not from here.
            env=environment() | {"PYTHONPATH": ""},
        )
        self.master = ""
        self.python = quick_python(folder, sys.executable)
        """PYSPARK_PYTHON for drivers: with this package, on executors too."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        # Ended, it says nothing more and the line is empty.
        limit = threading.Timer(PROGRAM_HANG_S, self._process.kill)
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        found = _READY.match(line)
        if found is None:
            self.__exit__()
            raise AssertionError(f"the cluster did not start: {line!r}")
        self.master = found[1]
        return self

    def __exit__(self, *_: object) -> None:
        below = descendants(self.pid)
        self._process.terminate()
        try:
            self._process.wait(PROGRAM_HANG_S)
        except subprocess.TimeoutExpired:
            for pid in [self.pid, *below]:
                kill(pid)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def quick_python(folder: Path, interpreter: str) -> str:
    """An interpreter for Spark that does not compile PySpark each time: Spark waits ten seconds for some to start."""
    script = folder / "python.sh"
    script.write_text(f'#!/bin/sh\nDANUBIUS_SPARK_PYTHON={interpreter} exec {BARE_PYTHON} "$@"\n')
    script.chmod(0o755)
    return str(script)


def bare_python(folder: Path) -> str:
    """An interpreter with everything that is installed here, but without this project, which lies elsewhere."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = Path(pyspark.__file__).parent.parent
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "there.pth").write_text(f"{packages}\n")
    return str(folder / "bin" / "python")
