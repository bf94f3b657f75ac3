# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# (pyarrow comes without types)
"""`danubius demo`: it ends by itself, its totals are right, and Ctrl-C leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from e2e.broker_process import environment, run_command
from patience import LOOK_S, PROGRAM_HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = ("--sensors", "20", "--minutes", "3", "--seconds", "2")
"""Another 4,000 messages; the rest is Spark's start."""


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "danubius", "demo", "--dir", str(folder), *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )


def _below(pid: int) -> Iterator[int]:
    """All processes of the sessions that the children of this one began, as long as they are there."""
    sessions: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        sessions.update(map(int, children.read_text().split()))
    return (
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if _session(stat) in sessions
    )


def _session(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except OSError:
        return -1


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_every_total_is_right_and_the_tables_stay(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with _start(folder) as demo:
        said, _ = demo.communicate(timeout=PROGRAM_HANG_S)
    assert demo.returncode == 0, said
    assert "every total is right" in said
    assert "WRONG" not in said
    checks = re.findall(r"^ok +(\w+)", said, re.MULTILINE)
    assert checks == ["archive", "malformed", "averages", "topic", "sensors"]
    archive = DeltaTable(str(folder / "tables" / "archive"))
    rows = int(archive.to_pyarrow_table(columns=["offset"]).num_rows)
    assert f"{rows:,} of {rows:,} messages in the table" in said
    # The commands that it says are there to look at the tables do that.
    question = re.search(r"danubius sql '(SELECT device.*)'$", said, re.MULTILINE)
    assert question is not None
    done = run_command("sql", question[1], timeout_s=PROGRAM_HANG_S)
    assert done.code == 0, done.stderr
    assert done.stdout.count("sensor-") == 5


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_demo_leaves_no_process_and_no_files(tmp_path: Path, how: signal.Signals) -> None:
    folder = tmp_path / "demo"
    demo = _start(folder)
    try:
        assert demo.stdout is not None
        while not (line := demo.stdout.readline()).startswith("pipelines"):
            assert line, "it ended before its pipelines began"
        limit = time.monotonic() + PROGRAM_HANG_S
        while len(below := list(_below(demo.pid))) < 3:  # the broker, the pipelines, Java
            assert time.monotonic() < limit
            assert demo.poll() is None
            time.sleep(LOOK_S)
        demo.send_signal(how)
        said, _ = demo.communicate(timeout=PROGRAM_HANG_S)
    finally:
        demo.kill()
    assert demo.returncode == 1, said
    assert said.splitlines()[-1] == "danubius: stopped"
    assert not folder.exists()
    limit = time.monotonic() + PROGRAM_HANG_S
    while any(map(_is_there, below)):
        assert time.monotonic() < limit
        time.sleep(LOOK_S)


WITHOUT_JAVA = """
from danubius.cli import main
from danubius.spark.cluster import sessions
sessions.ROOTS = ()
raise SystemExit(main(["demo", "--dir", "demo"]))
"""


def test_without_java_it_says_how_to_get_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAVA],
        capture_output=True,
        text=True,
        timeout=PROGRAM_HANG_S,
        env=environment() | {"PATH": os.devnull, "JAVA_HOME": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no Java here" in done.stderr
    assert "danubius demo --engine" in done.stderr
    assert list(tmp_path.iterdir()) == []
