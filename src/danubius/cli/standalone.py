"""`danubius standalone`: one broker in this process, until it is told to stop."""

from __future__ import annotations

from pathlib import Path

import click

from danubius.cli.options import byte_count


@click.command(
    epilog="""\b
Examples:
  danubius standalone
  danubius standalone --data-dir ./data --port 7651 --http-port 0
"""
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("danubius-data"),
    show_default=True,
    help="Where messages are kept; made if it is not there. One broker at a time.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=6651, show_default=True, metavar="N",
    help="Port of the native protocol; 0 picks a free one.",
)  # fmt: skip
@click.option(
    "--http-port", type=click.IntRange(0, 65535), default=6652, show_default=True, metavar="N",
    help="Port of /health, /ready and /metrics; 0 picks a free one.",
)  # fmt: skip
@click.option(
    "--cache-bytes", type=byte_count, default="128MiB", show_default=True, metavar="SIZE",
    help="Memory for the newest messages of all topics together.",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
    show_default=True, help="How much to log, on stderr.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Lines for people, or JSON for log collectors.",
)  # fmt: skip
def standalone(
    data_dir: Path,
    host: str,
    port: int,
    http_port: int,
    cache_bytes: int,
    log_level: str,
    log_format: str,
) -> int:
    """Run one broker with zero configuration.

    It prints one line when it is ready, and stops cleanly on Ctrl-C or SIGTERM.
    """  # \b belongs to the epilog
    try:
        from danubius.app.main import run_standalone
        from danubius.app.options import StandaloneOptions
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("danubius"):
            raise
        raise click.UsageError(
            f"the broker needs {missing.name}: pip install 'danubius[broker]'"
        ) from missing
    return run_standalone(
        StandaloneOptions(
            data_dir=data_dir,
            host=host,
            port=port,
            http_port=http_port,
            cache_bytes=cache_bytes,
            log_level=log_level,
            log_format=log_format,
        )
    )
