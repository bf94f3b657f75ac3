"""A command that starts a broker of its own takes it along when it is told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.broker_process import environment
from patience import HANG_S


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_demo_leaves_no_broker_and_no_files(tmp_path: Path, how: signal.Signals) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "danubius", "demo", "--engine"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"TMPDIR": str(tmp_path)},
    )
    try:
        assert demo.stdout is not None
        assert demo.stdout.readline().startswith("broker ")
        brokers = children_of(demo.pid)
        assert len(brokers) == 1
        demo.send_signal(how)
        _, said = demo.communicate(timeout=HANG_S)
    finally:
        demo.kill()
    assert demo.returncode == 1
    assert said.strip() == "danubius: stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(brokers[0], 0)
    assert list(tmp_path.iterdir()) == []
