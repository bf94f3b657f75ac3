"""`danubius pipeline validate | run | status FILE`: pipelines declared in a file, on Spark."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from danubius.cli.options import broker_url, json_option
from danubius.cli.output import print_facts, print_json, print_line, print_table, print_text
from danubius.cli.query_figures import COLUMNS, live_table, rows, sentence
from danubius.pipeline import status as statuses
from danubius.pipeline.functions import check_functions, look_beside
from danubius.pipeline.graph import draw
from danubius.pipeline.problems import InvalidPipeline, Problems
from danubius.pipeline.reading import Given, load
from danubius.pipeline.ready_made import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from datetime import timedelta

    from danubius.cli.options import F
    from danubius.pipeline.spec import Pipeline
    from danubius.pipeline.status import Status

TOLD_EVERY_S: Final = 10.0
"""How often figures are printed where nobody watches a terminal."""


class Mistakes(click.ClickException):
    """Wrong usage: the file is told line by line, as a compiler would."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        del file
        print_text(self.message, err=True)


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark: from topics and tables, through SQL and Python, to topics and tables.

    FILE is a pipeline file, or the name of a ready-made one, such as archive or aggregate. Of several, --set says which
    one it means: --set archive.table=tables/orders; and each has a folder of its own below --checkpoint.
    """


def _file_options(command: F) -> F:
    for option in (
        click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="Give a parameter of the file."),
        click.option("--checkpoint", metavar="DIR", help="Where progress is kept, instead of the file's."),
        click.option(
            "--url", type=broker_url, envvar="DANUBIUS_URL", show_envvar=True,
            help="Where the broker is, instead of the file's.",
        ),
        click.argument(
            "files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE..."
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@pipeline.command()
@_file_options
def validate(
    files: tuple[Path, ...], url: str | None, checkpoint: str | None, parameters: tuple[str, ...]
) -> None:
    """Check FILE without Spark and draw it; every mistake is named with its line and the fix."""
    for found in _load(files, url, checkpoint, parameters):
        print_text(draw(found))
        count = len(found.sinks)
        print_text(f"\n{found.file} is right: {count} {'query' if count == 1 else 'queries'}")


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
@click.option(
    "--verbose", "-v", "is_verbose", is_flag=True,
    help="Show what Spark itself writes, stack traces too; otherwise it is in spark.log beside the checkpoint.",
)  # fmt: skip
def run(
    files: tuple[Path, ...],
    url: str | None,
    checkpoint: str | None,
    parameters: tuple[str, ...],
    is_once: bool,
    master: str | None,
    remote: str | None,
    metrics_port: int | None,
    metrics_host: str,
    is_verbose: bool,
) -> int:
    """Run FILE until it ends or is stopped; queries that fail are started again. Several files share one Spark.

    SIGTERM or Ctrl-C lets every query end its batch. The next run goes on from the checkpoint.
    """
    if master is not None and remote is not None:
        raise click.UsageError("give --master or --remote, not both")
    if remote is not None and len(files) > 1:
        # A server resolves views when a query needs them, and not when they are made.
        raise click.UsageError(
            "with --remote, run one file at a time: views of several would be mixed up"
        )
    found = _load(files, url, checkpoint, parameters)
    # What PySpark thinks of the versions of its dependencies is for those who package it.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.")
    from danubius.pipeline.run import How
    from danubius.pipeline.run import run as run_pipeline

    names = ", ".join(each.name for each in found)
    _tell(f"{names}: starting Spark on {remote or master or 'local[*]'}")
    with _display() as (tell, watch):
        is_well = run_pipeline(
            found,
            How(is_once, master, remote, metrics_host, metrics_port, is_verbose),
            tell,
            watch,
        )
    return 0 if is_well else 1


@pipeline.command("status")
@_file_options
@json_option
def show_status(
    files: tuple[Path, ...],
    url: str | None,
    checkpoint: str | None,
    parameters: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what the run of FILE on this machine does, or how the newest one ended."""
    for number, found in enumerate(_load(files, url, checkpoint, parameters)):
        if number and not as_json:
            print_line()
        _show_status(found, as_json=as_json)


def _show_status(found: Pipeline, *, as_json: bool) -> None:
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
        print_json({**msgspec.to_builtins(status), "state": state})
        return
    since, updated = (datetime.fromisoformat(text) for text in (status.started, status.updated))
    facts = {
        "pipeline": f"{status.pipeline} ({status.file})",
        "state": f"{state} (process {status.pid})" if is_held else state,
        "started": f"{since:%Y-%m-%d %H:%M:%S}Z",
        "as of": f"{updated:%Y-%m-%d %H:%M:%S}Z, after {_duration(updated - since)}",
        "checkpoint": found.checkpoint,
    }
    if status.metrics_port is not None and is_held:
        facts["metrics port"] = str(status.metrics_port)
    print_facts(facts)
    print_table(COLUMNS, rows(status, is_alive=is_held))
    for name, query in status.queries.items():
        if query.reason:
            print_line(f"{name} failed last with: {query.reason}")
    if state == "died":
        print_line("It was ended from outside. The next run goes on from the checkpoint.")


def _duration(time: timedelta) -> str:
    minutes, seconds = divmod(round(time.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _load(
    files: tuple[Path, ...], url: str | None, checkpoint: str | None, parameters: tuple[str, ...]
) -> list[Pipeline]:
    try:
        paths = [resolve(file) for file in files]
        named = _parameters(paths, parameters)
        found: list[Pipeline] = []
        for path in paths:
            place = f"{checkpoint}/{path.stem}" if checkpoint and len(paths) > 1 else checkpoint
            found.append(load(path, Given(url, place, named[path])))
            look_beside(found[-1].file)
            problems = Problems()
            check_functions(found[-1], problems)
            problems.raise_if_any()
    except InvalidPipeline as error:
        raise Mistakes(error.message) from error
    names = [each.name for each in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise click.UsageError(f"two pipelines have the name {twice[0]}")
    return found


def _parameters(files: list[Path], given: tuple[str, ...]) -> dict[Path, dict[str, str]]:
    """What --set says to each file; of several it has to say which."""
    named: dict[Path, dict[str, str]] = {file: {} for file in files}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--set {each} must be NAME=VALUE")
        prefix, dot, rest = name.partition(".")
        meant = [file for file in files if dot and file.stem == prefix]
        if meant:
            name = rest
        elif len(files) == 1:
            meant = files
        else:
            known = " or ".join(f"{file.stem}.{name}" for file in files)
            raise click.UsageError(f"--set {name} does not say which file it is for: write {known}")
        for file in meant:
            named[file][name] = value
    return named


def _tell(line: str) -> None:
    print_line(line, err=True)


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

        newest: dict[str, Status] = {}

        def watch(status: Status) -> None:
            newest[status.pipeline] = status
            title = ", ".join(f"{name}: {each.state}" for name, each in newest.items())
            live.update(live_table(newest, title, live.console.width), refresh=True)

        yield tell, watch


class _Lines:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._told_at: dict[str, float] = {}

    def watch(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._told_at.get(status.pipeline, self._started) < TOLD_EVERY_S:
            return
        self._told_at[status.pipeline] = now
        for name, query in status.queries.items():
            _tell(f"{status.pipeline}.{name}: {sentence(query)}")
