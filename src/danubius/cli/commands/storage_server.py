"""`danubius storage-server`: keep the ledgers of brokers that run elsewhere."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

import click

from danubius.cli.options import log_options, name_and_value
from danubius.cli.output import print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.storage_service.backends import Backend

STOP_SECONDS: Final = 5.0
"""For calls that are under way when it is told to stop."""


def host_and_port(text: str | tuple[str, int]) -> tuple[str, int]:
    """`host:port`; an IPv6 address stands in brackets."""
    if isinstance(text, tuple):
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is no HOST:PORT, such as 127.0.0.1:6660")
    return host.strip("[]"), int(port)


@click.command(
    "storage-server",
    epilog="""\b
Examples:
  danubius storage-server --backend local --option path=ledgers
  danubius storage-server --backend s3://bucket/ledgers --option region=eu-central-1
  danubius storage-server --backend s3 --option bucket=b --option endpoint=http://127.0.0.1:8333
  danubius storage-server --backend redis://127.0.0.1:6379/0 --listen 127.0.0.1:6660
  danubius standalone --ledger-store remote --ledger-store-url grpc://127.0.0.1:6660

\b
Backends:
  memory            nothing outlives the process: for tests
  local             files; --option path=DIRECTORY
  SCHEME or an URL  what OpenDAL reaches (s3, gcs, azblob, redis, postgresql, ...); every option is OpenDAL's, and
                    credentials are also read from the environment. Needs the extra danubius[tier]

One server at a time on one backend. The port has no authentication: keep it inside a trusted network.
""",
)
@click.option(
    "--backend", required=True, metavar="SCHEME", help="What ledgers are kept in; see below."
)
@click.option(
    "--option", "options", type=name_and_value, multiple=True, metavar="KEY=VALUE",
    help="An option of the backend; may be repeated.",
)  # fmt: skip
@click.option(
    "--listen", type=host_and_port, default="127.0.0.1:6660", show_default=True,
    metavar="HOST:PORT", help="Where brokers reach it; port 0 picks a free one.",
)  # fmt: skip
@click.option(
    "--metrics", type=host_and_port, metavar="HOST:PORT",
    help="Where Prometheus reaches its metrics; none unless this is given.",
)  # fmt: skip
@log_options
def storage_server(
    backend: str,
    options: Sequence[tuple[str, str]],
    listen: tuple[str, int],
    metrics: tuple[str, int] | None,
    log_level: str,
    log_format: str,
) -> int:
    """Keep the ledgers of brokers in a backend.

    Brokers that are started with --ledger-store remote write their topics' ledgers here, over gRPC; each has a store of
    its own. It prints one line when it is ready, and stops cleanly on Ctrl-C or SIGTERM.
    """  # \b belongs to the epilog
    from danubius.runtime.logs import set_up_logging

    try:
        from danubius.storage_service.backends import open_backend
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("danubius"):
            raise
        raise click.UsageError(
            f"the storage server needs {missing.name}: pip install 'danubius[broker,grpc]'"
        ) from missing
    set_up_logging(log_level, log_format)
    # A thread coming back from a sync must not wait 5 ms for its turn.
    sys.setswitchinterval(0.0005)
    opened = open_backend(backend, dict(options))
    try:
        _serve(opened, listen, metrics)
    finally:
        opened.close()
    return 0


def _serve(backend: Backend, listen: tuple[str, int], metrics: tuple[str, int] | None) -> None:
    from danubius.storage_service.figures import Figures
    from danubius.storage_service.server import StorageServer
    from danubius.storage_service.stores import Stores

    figures = Figures()
    stores = Stores(backend.open_store)
    server = StorageServer(stores, figures)
    port = server.bind(*listen)
    end_metrics: Callable[[], None] | None = None
    if metrics is not None:
        try:
            end_metrics = figures.serve(*metrics)
        except OSError as error:
            raise click.UsageError(f"--metrics {metrics[0]}:{metrics[1]}: {error}") from error
    ended = threading.Event()

    def end(_number: int, _frame: object) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    stores.start()
    server.start()
    host = f"[{listen[0]}]" if ":" in listen[0] else listen[0]
    print_line(f"danubius storage-server ready: grpc://{host}:{port}  backend {backend.place}")
    sys.stdout.flush()
    ended.wait()
    server.stop(STOP_SECONDS)
    stores.close()
    if end_metrics is not None:
        end_metrics()
