"""A process that has imported what a broker imports, and forks one whenever it is asked (see warm_start.py).

It has one thread and opens nothing, so that its children begin as if they had imported it all themselves.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final

from danubius.cli import main

if TYPE_CHECKING:
    from types import FrameType

IMPORTED: Final = (
    "danubius.cli.root",
    "danubius.cli.commands.standalone",
    "danubius.app.main",
    "uvloop",
)


class Forge:
    """Requests on one socket, each with the files that a child writes to; ends reported as they come."""

    def __init__(self, requests: socket.socket, request_bytes_max: int) -> None:
        self._requests = requests
        self._request_bytes_max = request_bytes_max
        self._ends: dict[int, int] = {}
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> list[str] | None:
        """Until nobody asks any more; in a child what it was forked for."""
        signal.signal(signal.SIGCHLD, _ignored)
        signal.set_wakeup_fd(self._wake)
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._woken:
                        os.read(self._woken, 1024)
                        self._reap()
                        continue
                    request, files, _, _ = socket.recv_fds(
                        self._requests, self._request_bytes_max, 2
                    )
                    if not request:
                        return None
                    if (pid := os.fork()) == 0:
                        return self._become(request, *files)
                    os.close(files[0])
                    self._ends[pid] = files[1]
                    self._requests.send(str(pid).encode())

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                end = self._ends.pop(pid)
                with contextlib.suppress(BrokenPipeError):  # nobody wants to know
                    os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(end)

    def _become(self, request: bytes, output: int, end: int) -> list[str]:
        """Leave nothing of the parent open, and take what was asked for."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for file in (output, end, *self._ends.values(), self._woken, self._wake):
            os.close(file)
        self._requests.close()
        arguments, environment, folder = json.loads(request)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        return arguments


def _ignored(number: int, frame: FrameType | None) -> None:
    """The wake-up is all that is wanted."""


def serve() -> int:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    requests, request_bytes_max = map(int, sys.argv[1:])
    arguments = Forge(socket.socket(fileno=requests), request_bytes_max).run()
    if arguments is None:
        return 0
    sys.argv = ["danubius", *arguments]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(serve())
