"""Spark's worker daemon, started from the installed packages instead of from zip files.

Spark puts `pyspark.zip` first on the path of its Python processes. Nothing in a zip is kept compiled, so every first
task compiles PySpark again, which takes seconds. Where Spark itself comes from the installed package (local masters),
the same modules lie beside it, compiled. PyArrow is not imported here: it starts threads, and workers are forks.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Final

_SEND_BUFFER_BYTES: Final = 1024 * 1024
"""About an Arrow batch: a worker goes on while the JVM reads, and is not woken for every 200 KB. The kernel may give
less; more was no better."""


def main() -> None:
    """Run PySpark's daemon without the zip files in the way."""
    sys.path[:] = [
        entry for entry in sys.path if not entry.endswith(".zip") or "pyspark" not in entry
    ]
    from pyspark import daemon

    work = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        """A query that has enough rows hangs up on its workers, which is nothing to tell."""
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        try:
            return work(sock, authenticated)
        except BrokenPipeError:
            return 1

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
