"""A Spark standalone cluster on this machine, from the pip package: a master and workers, each a process of its own.

    python -m danubius.spark.cluster --workers 2 --cores 1 --memory 1g

PyPI's PySpark has no scripts that start these daemons, but everything that the scripts would start. This is for trying
things out and for tests; docs/spark-cluster.md says how the same daemons are started on many machines.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from danubius.errors import DanubiusError, InvalidArgument
from danubius.spark.cluster.sessions import use_java

if TYPE_CHECKING:
    from collections.abc import Sequence

START_S: Final = 120.0
STOP_S: Final = 30.0
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_MASTER_READY: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_READY: Final = re.compile(r"Successfully registered with master (spark://\S+)")
_LOG_TAIL: Final = 2_000


class ClusterNotStarted(DanubiusError):
    """A master or worker ended, or did not say that it is ready in time."""


class Daemon:
    """One JVM, whose log is a file."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, host: str) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  # PySpark's own script
                [_spark_class(), *command, "--host", host, "--webui-port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(folder, host),
                cwd=folder,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, says: re.Pattern[str]) -> str:
        """Until its log says this; the first group of it."""
        limit = time.monotonic() + START_S
        while True:
            is_over = not self.is_running or time.monotonic() > limit
            text = self._log.read_text(errors="replace")
            if found := says.search(text):
                return found[1]
            if is_over:
                raise ClusterNotStarted(f"Spark's {self.name} did not start: {text[-_LOG_TAIL:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Ask it to end, and end it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Cluster:
    """A master and its workers; a context manager that ends them."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._folder = folder
        self._host = host
        self._port = port
        self._daemons: list[Daemon] = []
        self.master = ""
        """What `--master` takes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Workers first: they end their executors, and do not look for a master that is gone.
        for daemon in reversed(self._daemons):
            daemon.stop()

    def start(self, hosts: Sequence[str], *, cores: int = 1, memory: str = "1g") -> None:
        """Start the master and a worker at each address, and return when all have found each other."""
        use_java()
        (self._folder / "conf").mkdir(parents=True, exist_ok=True)
        port = ["--port", str(self._port)]
        master = Daemon("master", [_MASTER, *port], self._folder, self._host)
        self._daemons.append(master)
        self.master = master.wait(_MASTER_READY)
        size = ["--cores", str(cores), "--memory", memory]
        started: list[Daemon] = []
        for number, host in enumerate(hosts):
            name = f"worker-{number}"
            place = ["--work-dir", str(self._folder / name)]
            command = [_WORKER, self.master, *size, *place]
            started.append(Daemon(name, command, self._folder, host))
            self._daemons.append(started[-1])
        for worker in started:
            worker.wait(_WORKER_READY)

    def dead(self) -> list[str]:
        """Those that ended by themselves."""
        return [daemon.name for daemon in self._daemons if not daemon.is_running]


def _spark_class() -> str:
    try:
        from pyspark.find_spark_home import _find_spark_home  # pyright: ignore[reportPrivateUsage]
    except ImportError:
        raise InvalidArgument(
            "Spark needs the Python package pyspark: pip install 'danubius[spark]'"
        ) from None
    return str(Path(_find_spark_home()) / "bin" / "spark-class")


def _environment(folder: Path, host: str) -> dict[str, str]:
    chosen = {
        "SPARK_DAEMON_MEMORY": "256m",
        # They live short and do little: compiling everything well is not worth its time.
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    # Nothing listens elsewhere; and settings of its own, because readiness is seen by what logs say.
    own = {"SPARK_LOCAL_IP": host, "SPARK_CONF_DIR": str(folder / "conf")}
    return chosen | dict(os.environ) | own


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m danubius.spark.cluster", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address of the master")
    parser.add_argument("--port", type=int, default=7077, help="of the master; 0 picks one")
    parser.add_argument("--workers", type=int, default=2, help="how many, at the same address")
    parser.add_argument(
        "--worker-hosts",
        metavar="A,B",
        help="an address for each worker instead: Spark speculates between hosts only",
    )
    parser.add_argument("--cores", type=int, default=1, help="of each worker")
    parser.add_argument("--memory", default="1g", help="that each worker gives to executors")
    parser.add_argument(
        "--folder", type=Path, help="for logs and executors; a temporary one unless given"
    )
    return parser.parse_args()


def main() -> int:
    """Start a cluster, say where it is, and end it when asked to."""
    arguments = _arguments()
    several: str | None = arguments.worker_hosts
    hosts = several.split(",") if several else [arguments.host] * arguments.workers
    is_over = threading.Event()

    def end(*_: object) -> None:
        is_over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with tempfile.TemporaryDirectory(prefix="danubius-cluster-") as temporary:
        folder: Path = arguments.folder or Path(temporary)
        with Cluster(folder.absolute(), host=arguments.host, port=arguments.port) as cluster:
            try:
                cluster.start(hosts, cores=arguments.cores, memory=arguments.memory)
            except DanubiusError as error:
                sys.stderr.write(f"{error.message}\n")
                return 1
            sys.stdout.write(f"spark ready: {cluster.master}  logs {folder}\n")
            sys.stdout.flush()
            while not is_over.wait(1.0):
                if dead := cluster.dead():
                    sys.stderr.write(f"{', '.join(dead)} ended: see the logs in {folder}\n")
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
