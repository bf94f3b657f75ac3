"""The root command: what all commands share, and the one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from danubius.cli.output import print_line, print_text
from danubius.client.version import VERSION
from danubius.errors import DanubiusError

if TYPE_CHECKING:
    from collections.abc import Sequence


_MODULES: Final = {
    "standalone": "danubius.cli.commands.standalone",
    "broker": "danubius.cli.commands.standalone",
    "storage-server": "danubius.cli.commands.storage_server",
    "produce": "danubius.cli.commands.produce",
    "consume": "danubius.cli.commands.consume",
    "topics": "danubius.cli.commands.topics",
    "namespaces": "danubius.cli.commands.namespaces",
    "subscriptions": "danubius.cli.commands.subscriptions",
    "producers": "danubius.cli.commands.producers",
    "consumers": "danubius.cli.commands.consumers",
    "transactions": "danubius.cli.commands.transactions",
    "storage": "danubius.cli.commands.storage",
    "brokers": "danubius.cli.commands.brokers",
    "bench": "danubius.cli.bench.command",
    "demo": "danubius.cli.demo.command",
    "pipeline": "danubius.cli.commands.pipeline",
    "sql": "danubius.cli.commands.sql",
}


class Commands(click.Group):
    """Imports a command when it is asked for: a broker should not wait for the benchmark's tables."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        module = _MODULES.get(cmd_name)
        if module is None:
            return None
        command: object = getattr(import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Start with:
  danubius standalone
  danubius produce /default/hello -m hi
""",
)
@click.version_option(VERSION, prog_name="danubius")
def cli() -> None:
    """Durable publish-subscribe: one broker process, no configuration."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 success, 1 failure, 2 wrong usage."""
    try:
        result: object = cli.main(
            args=None if argv is None else list(argv), prog_name="danubius", standalone_mode=False
        )
    except click.ClickException as error:
        sentence = io.StringIO()
        error.show(file=sentence)
        print_text(sentence.getvalue(), err=True, nl=False)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("stopped")
    except BrokenPipeError:
        # The reader of our output went away (`| head`): that is its right, and no failure of ours.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except DanubiusError as error:
        return _fail(error.message)
    except (OSError, OverflowError) as error:
        return _fail(str(error))
    return result if isinstance(result, int) else 0


def _fail(sentence: str) -> int:
    print_line(f"danubius: {' '.join(sentence.split())}", err=True)
    return 1
