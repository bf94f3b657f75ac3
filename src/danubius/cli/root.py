"""The root command: what all commands share, and the one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import click

from danubius.cli.bench.command import bench
from danubius.cli.consume import consume
from danubius.cli.demo import demo
from danubius.cli.produce import produce
from danubius.cli.standalone import standalone
from danubius.cli.topics import topics
from danubius.client.version import VERSION
from danubius.errors import DanubiusError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: danubius standalone   then: danubius produce /default/hello -m hi",
)
@click.version_option(VERSION, prog_name="danubius")
def cli() -> None:
    """Durable publish-subscribe: one broker process, no configuration."""


for command in (standalone, produce, consume, topics, bench, demo):
    cli.add_command(command)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 success, 1 failure, 2 wrong usage."""
    try:
        result: object = cli.main(
            args=None if argv is None else list(argv), prog_name="danubius", standalone_mode=False
        )
    except click.ClickException as error:
        error.show(file=sys.stderr)
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
    return result if isinstance(result, int) else 0


def _fail(sentence: str) -> int:
    click.echo(f"danubius: {' '.join(sentence.split())}", err=True)
    return 1
