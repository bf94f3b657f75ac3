"""What the kernel says of a process, as this one sees its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from danubius.runtime.processes import UNKNOWN, standing


def test_this_process_runs_and_uses_time() -> None:
    before = standing(os.getpid())
    while (after := standing(os.getpid())).cpu_s == before.cpu_s:
        pass
    assert after.is_runnable
    assert after.cpu_s > before.cpu_s


def test_one_that_is_stopped_is_not_runnable_whatever_it_did() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            while standing(child.pid).cpu_s == 0:
                pass
            os.kill(child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert not standing(child.pid).is_runnable
        finally:
            child.kill()


def test_nothing_is_known_of_one_that_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert standing(child.pid) == UNKNOWN
