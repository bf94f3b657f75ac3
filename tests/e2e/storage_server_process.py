"""A real storage server in a process of its own: started, killed and restarted on the same port."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

from e2e.broker_process import environment, free_port
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Sequence

READY: Final = re.compile(r"^danubius storage-server ready: grpc://(\S+)  backend (.+)$")


class StorageServerProcess:
    """One server over one backend; `start` after `kill` or `stop` is a restart."""

    def __init__(self, backend: str, *options: str) -> None:
        self._arguments: Sequence[str] = (
            "--backend",
            backend,
            *(word for option in options for word in ("--option", option)),
        )
        self.port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> StorageServerProcess:
        self._ready.clear()
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "danubius", "storage-server", *self._arguments,
                "--listen", f"127.0.0.1:{self.port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        assert self._ready.wait(HANG_S), self.log()
        assert self._process.poll() is None, self.log()
        return self

    def kill(self) -> None:
        """End it at once with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._reap()

    def hang(self) -> None:
        """Stop it in its tracks: it keeps its connections, and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(HANG_S)
        return self._reap()

    def end(self) -> None:
        """Kill it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def log(self) -> str:
        return "".join(self._lines)

    def _reap(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(HANG_S)
        self._reader.join(HANG_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)
            if READY.match(line.rstrip("\n")):
                self._ready.set()
        self._ready.set()  # it ended: whoever waits looks at it
