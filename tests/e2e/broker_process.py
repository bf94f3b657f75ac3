"""A real broker in a process of its own: started, killed, restarted and read from the outside.

The port is chosen below the kernel's ephemeral range, so that a client that dials a dead broker again and again can
never be connected to itself; and it is this process's alone until that ends, so that a restart always finds it free,
whatever other test processes start meanwhile. Every broker ever started is in `STARTED`
until its owner forgets it: a failing test shows their logs.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2e.warm_start import WarmProcess
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"
READY: Final = re.compile(
    r"^danubius ready: danube://([^\s:]+):(\d+)\s+http://[^\s:]+:(\d+)\s+data (.+)$"
)
LOG_TAIL_CHARACTERS: Final = 8_000

STARTED: list[BrokerProcess] = []
_claims: list[socket.socket] = []


class BrokerNotReady(Exception):
    """The broker ended, or did not say that it is ready, before the deadline."""


@dataclass
class Exit:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def environment() -> dict[str, str]:
    """The environment of a child: the sources under test, output without delay, no colours, no stray settings.

    And no gRPC unless a test wants it: its ports are those of any other broker that runs here.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DANUBIUS_")}
    return kept | {
        "PYTHONPATH": str(SOURCE),
        "PYTHONUNBUFFERED": "1",
        "DANUBIUS_SERVER_GRPC": "false",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


def run_command(*arguments: str, stdin: str | None = None, timeout_s: float = HANG_S) -> Exit:
    """Run `danubius ARGUMENTS` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "danubius", *arguments],
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(),
        check=False,
    )
    return Exit(done.returncode, done.stdout, done.stderr)


def free_port() -> int:
    """A port that nobody listens on, outside the ephemeral range, and that no other test process is given."""
    dice = random.Random(os.urandom(8))
    for _ in range(200):
        port = dice.randrange(12_000, 31_000)
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                # A name that the kernel gives to one process, and takes back when that ends.
                claim.bind(f"\0danubius-test-port-{port}")
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port
    raise BrokerNotReady("no free port found")


@dataclass
class BrokerProcess:
    """One broker on one data directory; `start` after `kill` or `stop` is a restart on the same ports."""

    data_dir: Path
    options: Sequence[str] = ()
    port: int = 0
    http_port: int = 0
    grpc: bool = False
    """Whether it serves clients of Danube too."""
    grpc_port: int = 0
    admin_port: int = 0
    _process: WarmProcess | None = None
    _lines: list[str] = field(default_factory=list[str])
    _ready: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def __post_init__(self) -> None:
        self.port = self.port or free_port()
        self.http_port = self.http_port or free_port()
        if self.grpc:
            self.grpc_port = self.grpc_port or free_port()
            self.admin_port = self.admin_port or free_port()

    @property
    def url(self) -> str:
        return f"danube://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """As clients of Danube are told it."""
        return f"http://127.0.0.1:{self.grpc_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process without waiting for it to be ready."""
        assert not self.is_running
        self._reap()
        self._ready.clear()
        self._process = WarmProcess(
            [
                "standalone",
                "--data-dir", str(self.data_dir),
                "--port", str(self.port),
                "--http-port", str(self.http_port),
                *self._grpc_options(),
                *self.options,
            ],
            environment(),
        )  # fmt: skip
        if self not in STARTED:
            STARTED.append(self)
        reader = threading.Thread(target=self._read_output, args=(self._process,), daemon=True)
        reader.start()
        self._threads.append(reader)

    def _grpc_options(self) -> list[str]:
        if not self.grpc:
            return []
        return [
            "--set",
            "server.grpc=true",
            "--grpc-port",
            str(self.grpc_port),
            "--admin-port",
            str(self.admin_port),
        ]

    def start(self) -> BrokerProcess:
        """Start the process and wait until it says that it is ready."""
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        limit = time.monotonic() + HANG_S
        while not self._ready.wait(LOOK_S):
            if not self.is_running:
                self._reap()
                if self._ready.is_set():
                    break
                raise BrokerNotReady(
                    f"the broker ended with code {self.exit_code}:\n{self.log_tail()}"
                )
            if time.monotonic() > limit:
                raise BrokerNotReady(f"not ready after {HANG_S} s:\n{self.log_tail()}")

    def kill(self) -> None:
        """End it at once with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reap()

    def stop(self) -> int:
        """Ask it to stop and return its exit code."""
        assert self._process is not None
        self.ask_to_stop()
        try:
            code = self._process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._reap()
        return code

    def ask_to_stop(self) -> None:
        """Send SIGTERM and do not wait."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait_exit(self, timeout_s: float = HANG_S) -> int:
        """Wait until it ends by itself."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._reap()
        return code

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def log(self) -> str:
        """Everything it printed, over all its lives."""
        return "".join(self._lines)

    def log_tail(self) -> str:
        return self.log()[-LOG_TAIL_CHARACTERS:]

    def rss_bytes(self) -> int:
        """The memory it holds now."""
        return self._status_kib("VmRSS") * 1024

    @property
    def front_pid(self) -> int:
        """The process of its gRPC ports."""
        return self.health()["grpc_front_pid"]

    def front_rss_bytes(self) -> int:
        """The memory that this one holds."""
        return self._status_kib("VmRSS", self.front_pid) * 1024

    def health(self) -> dict[str, Any]:
        """What it says of itself."""
        with urllib.request.urlopen(f"{self.http_url}/health", timeout=HANG_S) as page:
            return json.loads(page.read())

    def rss_peak_bytes(self) -> int:
        """The most memory that it ever held in this life."""
        return self._status_kib("VmHWM") * 1024

    def front_rss_peak_bytes(self) -> int:
        """The most that the process of its gRPC ports ever held."""
        return self._status_kib("VmHWM", self.front_pid) * 1024

    def reset_rss_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def _status_kib(self, name: str, pid: int = 0) -> int:
        pid = pid or self.pid
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise AssertionError(f"no {name} for process {pid}")

    def _read_output(self, process: WarmProcess) -> None:
        for line in process.stdout:
            self._lines.append(line)
            match = READY.match(line.rstrip("\n"))
            if match is not None:
                self.port, self.http_port = int(match[2]), int(match[3])
                self._ready.set()

    def _reap(self) -> None:
        for thread in self._threads:
            thread.join(HANG_S)
        self._threads.clear()
        if self._process is not None:
            self._process.stdout.close()
