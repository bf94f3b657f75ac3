"""`danubius standalone` and `danubius broker`: one broker in this process, until it is told to stop.

Both take their settings from a file, the environment and flags; `broker` insists on the file. Of the flags only those
that were given count: a default shown in the help must not win over a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click
from click.core import ParameterSource

from danubius.cli.options import F, byte_count, log_options, name_and_value
from danubius.cli.output import print_text
from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.app.settings import Given

_PATHS: Final = {
    "data_dir": "server.data_dir",
    "host": "server.host",
    "port": "server.port",
    "http_port": "server.http_port",
    "allowed_host": "server.allowed_hosts",
    "grpc_port": "server.grpc_port",
    "admin_port": "server.admin_port",
    "cache_bytes": "ledgers.cache_bytes",
    "ledger_store": "ledger_store.kind",
    "ledger_store_url": "ledger_store.url",
    "ledger_store_option": "ledger_store.options",
    "tier_url": "tier.url",
    "tier_option": "tier.options",
    "tier_local_bytes_max": "tier.local_bytes_max",
    "diskless": "diskless.enabled",
    "group_ms": "diskless.group_ms",
    "log_level": "logs.level",
    "log_format": "logs.format",
}


_CONFIG_HELP: Final = "Settings in TOML; SIGHUP reads them again."


def _settings_options(command: F) -> F:
    for option in (
        click.option(
            "--print-config", is_flag=True,
            help="Print all settings, each with where it came from, and end.",
        ),
        click.option(
            "--set", "sets", type=name_and_value, multiple=True, metavar="SECTION.KEY=VALUE",
            help="Any setting, for example broker.connections_max=500; may be repeated.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    epilog="""\b
Examples:
  danubius standalone
  danubius standalone --data-dir ./data --port 7651 --http-port 0
  danubius standalone --config danubius.toml --set policies.ttl_ms=1h --print-config
  danubius standalone --diskless --tier-url s3://bucket/prefix --tier-option region=eu-central-1

Every setting is also read from DANUBIUS_SECTION_KEY. Flags win over the environment, that over the file.
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
    "--allowed-host", multiple=True, metavar="NAME",
    help="A name that HTTP answers to beside localhost, addresses and this machine's own; may be repeated.",
)  # fmt: skip
@click.option(
    "--grpc-port", type=click.IntRange(0, 65535), default=6650, show_default=True, metavar="N",
    help="Port for clients of Danube; 0 picks a free one.",
)  # fmt: skip
@click.option(
    "--admin-port", type=click.IntRange(0, 65535), default=50051, show_default=True, metavar="N",
    help="Port for danube-admin; 0 picks a free one.",
)  # fmt: skip
@click.option(
    "--cache-bytes", type=byte_count, default="128MiB", show_default=True, metavar="SIZE",
    help="Memory for the newest messages of all topics together.",
)  # fmt: skip
@click.option(
    "--ledger-store", type=click.Choice(["local", "remote", "object"]), default="local",
    show_default=True,
    help="Where ledgers are kept: in the data directory, on a storage server, or in an object store.",
)  # fmt: skip
@click.option(
    "--ledger-store-url", metavar="URL",
    help="Of the store: grpc://host:port, or s3://bucket/prefix and the like.",
)  # fmt: skip
@click.option(
    "--ledger-store-option", type=name_and_value, multiple=True, metavar="KEY=VALUE",
    help="An option of the object store; may be repeated.",
)  # fmt: skip
@click.option(
    "--tier-url", metavar="URL",
    help="Cold storage: s3://bucket/prefix, gcs://…, azblob://container/prefix, fs:///path, memory://name.",
)  # fmt: skip
@click.option(
    "--tier-option", type=name_and_value, multiple=True, metavar="KEY=VALUE",
    help="An option of cold storage, such as endpoint or region; may be repeated.",
)  # fmt: skip
@click.option(
    "--tier-local-bytes-max", type=byte_count, metavar="SIZE",
    help="Refuse to publish while ledgers take this much of the disk, until some were moved.",
)  # fmt: skip
@click.option(
    "--diskless", is_flag=True,
    help="Keep everything in the store of --tier-url, and nothing on the disk: a message is acknowledged when an "
    "object with it is stored.",
)  # fmt: skip
@click.option(
    "--group-ms", type=click.IntRange(1, 10_000), default=100, show_default=True, metavar="N",
    help="Of --diskless: gather the batches of all topics for so long into one object.",
)  # fmt: skip
@log_options
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    envvar="DANUBIUS_CONFIG", show_envvar=True, help=_CONFIG_HELP,
)  # fmt: skip
@_settings_options
@click.pass_context
def standalone(
    context: click.Context,
    config: Path | None,
    sets: Sequence[tuple[str, str]],
    print_config: bool,
    **_flags: object,
) -> int:
    """Run one broker; no configuration is needed.

    It prints one line when it is ready, and stops cleanly on Ctrl-C or SIGTERM.
    """  # \b belongs to the epilog
    return _run(context, config, sets, print_config=print_config)


@click.command(
    epilog="""\b
Examples:
  danubius broker --config danubius.toml
  danubius broker --config danubius.toml --print-config
  kill -HUP PID        the file is read again; what needs a restart is named in the log
"""
)
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", required=True,
    envvar="DANUBIUS_CONFIG", show_envvar=True, help=_CONFIG_HELP,
)  # fmt: skip
@_settings_options
@click.pass_context
def broker(
    context: click.Context,
    config: Path,
    sets: Sequence[tuple[str, str]],
    print_config: bool,
) -> int:
    """Run a broker as a file says."""  # \b belongs to the epilog
    return _run(context, config, sets, print_config=print_config)


def _run(
    context: click.Context,
    config: Path | None,
    sets: Sequence[tuple[str, str]],
    *,
    print_config: bool,
) -> int:
    try:
        from danubius.app.main import run_settings
        from danubius.app.settings import Given, Sources, load, render
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("danubius"):
            raise
        raise click.UsageError(
            f"the broker needs {missing.name}: pip install 'danubius[broker]'"
        ) from missing
    flags: list[Given] = [
        Given(path, _plain(value), f"--{name.replace('_', '-')}")
        for name, path in _PATHS.items()
        if (value := context.params.get(name)) is not None
        and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    flags += [Given(path, value, f"--set {path}") for path, value in sets]
    sources = Sources(config, os.environ, flags)
    try:
        loaded = load(sources)
    except InvalidArgument as error:
        raise click.UsageError(error.message) from error
    if print_config:
        print_text(render(loaded), nl=False)
        return 0
    return run_settings(sources, loaded)


def _plain(value: object) -> object:
    """A flag's value as a file would have it."""
    if isinstance(value, tuple):
        values = cast("tuple[str | tuple[str, str], ...]", value)
        texts = [each for each in values if isinstance(each, str)]
        return ",".join(texts) if texts else dict(cast("tuple[tuple[str, str], ...]", values))
    return str(value) if isinstance(value, Path) else value
