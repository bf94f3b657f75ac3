"""A broker as a child process: for the demo, the benchmark and tests that kill it.

The child is this same interpreter running `danubius standalone`. It is ready when it has printed
its ready line, and it is always gone when the context ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from danubius.errors import BrokerUnavailable

if TYPE_CHECKING:
    from pathlib import Path

_READY: Final = re.compile(r"ready: danube://\S+")
_PORTS: Final = range(12_000, 31_000)
"""Below the kernel's ephemeral range: there, a client that dials a dead broker could be connected to itself."""
_STOP_TIMEOUT_S: Final = 15.0


class BrokerProcess:
    """One broker on loopback; its ports are picked free once and kept over restarts."""

    def __init__(self, data_dir: Path, *, arguments: tuple[str, ...] = ()) -> None:
        self._data_dir = data_dir
        self._arguments = arguments
        self._log_path = data_dir.parent / f"{data_dir.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = [_free_port(), _free_port()]
        self.url = f"danube://127.0.0.1:{self._ports[0]}"
        self.http_url = f"http://127.0.0.1:{self._ports[1]}"
        self.ready_after_s = 0.0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> BrokerProcess:
        # SIGTERM would end this process without unwinding, and leave the child behind.
        self._old_sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        signal.signal(signal.SIGTERM, self._old_sigterm)

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start the child and wait for its ready line."""
        assert self._process is None
        command = [
            sys.executable,
            "-m",
            "danubius",
            "standalone",
            "--data-dir",
            str(self._data_dir),
        ]
        command += ["--port", str(self._ports[0]), "--http-port", str(self._ports[1])]
        command += ["--set", "server.grpc=false"]  # its ports may be those of another broker here
        started = time.monotonic()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the parent, which then stops the child
            )
        line = self._first_line(started + timeout_s)
        if _READY.search(line) is None:
            self.kill()
            raise BrokerUnavailable(f"the broker did not start: {line or self._last_log_line()}")
        self.ready_after_s = time.monotonic() - started

    def kill(self) -> None:
        """SIGKILL: the broker gets no chance to do anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes too long."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _first_line(self, deadline: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in data and (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    break
                piece = os.read(descriptor, 4096)
                if not piece:
                    break
                data += piece
        return data.decode(errors="replace").partition("\n")[0]

    def _last_log_line(self) -> str:
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _free_port() -> int:
    dice = random.SystemRandom()
    for _ in range(200):
        port = dice.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise BrokerUnavailable("no free port was found on 127.0.0.1")
