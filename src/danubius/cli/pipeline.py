"""`danubius pipeline validate | run | status FILE`: pipelines declared in a file, on Spark."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from danubius.cli.options import broker_url, json_option
from danubius.cli.output import build_table, print_facts, print_json, print_table
from danubius.cli.query_figures import COLUMNS, rows, sentence
from danubius.pipeline import status as statuses
from danubius.pipeline.functions import check_functions, look_beside
from danubius.pipeline.graph import draw
from danubius.pipeline.problems import InvalidPipeline, Problems
from danubius.pipeline.reading import Given, load
from danubius.pipeline.ready_made import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from danubius.cli.options import F
    from danubius.pipeline.spec import Pipeline
    from danubius.pipeline.status import Status

TOLD_EVERY_S: Final = 10.0
"""How often figures are printed where nobody watches a terminal."""


class Mistakes(click.ClickException):
    """Wrong usage: the file is told line by line, as a compiler would."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(self.message, err=True, file=file)


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark: from topics and tables, through SQL and Python, to topics and tables.

    FILE is a pipeline file, or the name of a ready-made one, such as archive or aggregate.
    """


def _file_options(command: F) -> F:
    for option in (
        click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="Give a parameter of the file."),
        click.option("--checkpoint", metavar="DIR", help="Where progress is kept, instead of the file's."),
        click.option(
            "--url", type=broker_url, envvar="DANUBIUS_URL", show_envvar=True,
            help="Where the broker is, instead of the file's.",
        ),
        click.argument("file", type=click.Path(path_type=Path)),
    ):  # fmt: skip
        command = option(command)
    return command


@pipeline.command()
@_file_options
def validate(
    file: Path, url: str | None, checkpoint: str | None, parameters: tuple[str, ...]
) -> None:
    """Check FILE without Spark and draw it; every mistake is named with its line and the fix."""
    found = _load(file, url, checkpoint, parameters)
    click.echo(draw(found))
    count = len(found.sinks)
    click.echo(f"\n{file} is right: {count} {'query' if count == 1 else 'queries'}")


@pipeline.command()
@_file_options
@click.option("--once", "is_once", is_flag=True, help="Read what is there now, then end.")
@click.option(
    "--master",
    metavar="URL",
    help="Spark's master, such as spark://host:7077; local[*] unless given.",
)
@click.option("--remote", metavar="URL", help="A Spark Connect server, such as sc://host:15002.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Tell Prometheus' metrics there; 0 picks a port.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="Address for the metrics."
)
def run(
    file: Path,
    url: str | None,
    checkpoint: str | None,
    parameters: tuple[str, ...],
    is_once: bool,
    master: str | None,
    remote: str | None,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Run FILE until it ends or is stopped; queries that fail are started again.

    SIGTERM or Ctrl-C lets every query end its batch. The next run goes on from the checkpoint.
    """
    if master is not None and remote is not None:
        raise click.UsageError("give --master or --remote, not both")
    found = _load(file, url, checkpoint, parameters)
    from danubius.pipeline.run import How
    from danubius.pipeline.run import run as run_pipeline

    _tell(f"{found.name}: starting Spark on {remote or master or 'local[*]'}")
    with _display() as (tell, watch):
        is_well = run_pipeline(
            found, How(is_once, master, remote, metrics_host, metrics_port), tell, watch
        )
    return 0 if is_well else 1


@pipeline.command("status")
@_file_options
@json_option
def show_status(
    file: Path, url: str | None, checkpoint: str | None, parameters: tuple[str, ...], as_json: bool
) -> None:
    """Show what the run of FILE on this machine does, or how the newest one ended."""
    found = _load(file, url, checkpoint, parameters)
    folder = statuses.folder_of(found.checkpoint)
    if folder is None:
        raise click.ClickException(
            f"the status lies beside the checkpoint, and {found.checkpoint} is not on this machine"
        )
    status = statuses.read(folder)
    if status is None:
        raise click.ClickException(f"{found.name} never ran with the checkpoint {found.checkpoint}")
    is_held = statuses.is_held(folder)
    ended = status.state in {"finished", "failed"}
    state = status.state if is_held or ended else "died"
    if as_json:
        import msgspec

        print_json({**msgspec.to_builtins(status), "state": state})
        return
    facts = {
        "pipeline": status.pipeline,
        "state": state,
        "process": status.pid,
        "since": status.started,
    }
    facts["as of"] = status.updated
    if status.metrics_port is not None and is_held:
        facts["metrics port"] = status.metrics_port
    print_facts(facts)
    print_table(COLUMNS, rows(status))
    for name, query in status.queries.items():
        if query.reason:
            click.echo(f"{name} failed last with: {query.reason}")


def _load(
    file: Path, url: str | None, checkpoint: str | None, parameters: tuple[str, ...]
) -> Pipeline:
    named: dict[str, str] = {}
    for each in parameters:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--set {each} must be NAME=VALUE")
        named[name] = value
    try:
        found = load(resolve(file), Given(url, checkpoint, named))
        look_beside(found.file)
        problems = Problems()
        check_functions(found, problems)
        problems.raise_if_any()
    except InvalidPipeline as error:
        raise Mistakes(error.message) from error
    return found


def _tell(line: str) -> None:
    click.echo(line, err=True)


@contextlib.contextmanager
def _display() -> Generator[tuple[Callable[[str], None], Callable[[Status], None]]]:
    """A table that changes in place at a terminal; otherwise a line a query now and then."""
    if not sys.stderr.isatty():
        yield _tell, _Lines().watch
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:

        def tell(line: str) -> None:
            live.console.print(line, markup=False, highlight=False)

        def watch(status: Status) -> None:
            live.update(
                build_table(COLUMNS, rows(status), f"{status.pipeline}: {status.state}"),
                refresh=True,
            )

        yield tell, watch


class _Lines:
    def __init__(self) -> None:
        self._told_at = time.monotonic()

    def watch(self, status: Status) -> None:
        if time.monotonic() - self._told_at < TOLD_EVERY_S:
            return
        self._told_at = time.monotonic()
        for name, query in status.queries.items():
            _tell(f"{name}: {sentence(query)}")
