"""`danubius ARGUMENTS` in a process of its own, without a second of imports each time.

Each test process has one that has imported what a broker imports and does nothing but fork (forge.py). A child is a
broker like any other, with a pid, memory, files and an end of its own; only its beginning differs from what a shell
starts, and tests of just that start the command themselves.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from patience import HANG_S

_REQUEST_BYTES_MAX: Final = 1 << 17
_SOURCE: Final = Path(__file__).resolve().parents[2] / "src"
_FORGE: Final = Path(__file__).with_name("forge.py")


class WarmProcess:
    """As much of `subprocess.Popen` as its owners use; its output and its errors are one stream."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        output, output_of_child = os.pipe()
        self._end, end_of_child = os.pipe()
        try:
            files = [output_of_child, end_of_child]
            self.pid = _forge().fork(arguments, environment, files)
        finally:
            os.close(output_of_child)
            os.close(end_of_child)
        self.stdout = os.fdopen(output, encoding="utf-8")
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout_s: float | None = None) -> int:
        code = self._look(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired("danubius", timeout_s or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and self._is_told(timeout_s):
                self.returncode = int(os.read(self._end, 16))
                os.close(self._end)
            return self.returncode

    def _is_told(self, timeout_s: float | None) -> bool:
        told = select.poll()  # `select` takes no number above 1,023, and some tests open more
        told.register(self._end, select.POLLIN)
        return bool(told.poll(None if timeout_s is None else timeout_s * 1000))


class _Forge:
    """The process that forks, as its owner sees it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(HANG_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_FORGE), str(theirs.fileno()), str(_REQUEST_BYTES_MAX)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(_SOURCE), "PYTHONUNBUFFERED": "1"},
            )
        atexit.register(self._close)

    def fork(self, arguments: list[str], environment: dict[str, str], files: list[int]) -> int:
        """The child's pid; its output goes to the first of the files, and how it ended to the second."""
        request = json.dumps([arguments, environment, str(Path.cwd())]).encode()
        assert len(request) <= _REQUEST_BYTES_MAX
        with self._lock:
            socket.send_fds(self._socket, [request], files)
            return int(self._socket.recv(16))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait(HANG_S)


@functools.cache
def _forge() -> _Forge:
    return _Forge()
