"""Servers of other systems: started on loopback with a folder of their own, installed if that is possible."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.cli.bench.work import Work


class Server(ABC):
    """A peer's server process on loopback, on a free port, with its data in a folder of its own."""

    name = ""
    scheme = ""
    start_timeout_s = 20.0

    def __init__(self, folder: Path, durability: str) -> None:
        self.folder = folder
        self.durability = durability
        self.port = free_port()
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self.pid: int | None = None

    @abstractmethod
    def arguments(self) -> list[str]:
        """What starts it; its folder is there already."""

    def environment(self) -> dict[str, str] | None:
        """None: ours."""
        return None

    def __enter__(self) -> Server:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                self.arguments(), env=self.environment(), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid
        deadline = time.monotonic() + self.start_timeout_s
        while not _answers(self.port):
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.__exit__()
                log_text = (self.folder / "server.log").read_text(errors="replace")
                raise RuntimeError(f"{self.name} did not start: {log_text[-300:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        # All of its group: some servers are started by a script of theirs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @abstractmethod
    def command(self) -> list[str]:
        """What runs a worker."""

    def clean(self, work: Work) -> None:  # noqa: B027  # nothing is left to do
        """The server goes with its folder."""


def debian_program(program: str, package: str) -> str:
    """Where a program is; its package is installed if it is nowhere and that is possible."""
    if found := shutil.which(program):
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(f"{program} is missing: run 'sudo apt-get install -y {package}' first")
    print(f"installing {package} (Debian)", file=sys.stderr)
    install = ["apt-get", "install", "-y", "-qq", package]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(install, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(install, env=environment, stdout=subprocess.DEVNULL, check=True)
    found = shutil.which(program)
    if found is None:
        raise SystemExit(f"apt-get installed no {program}")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
    except OSError:
        return False
    return True
