"""`danubius bench`: measure a broker, its own or a given one, with the work of real programs."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from danubius.cli.bench.fairness import ROUNDS, SETTLE_S
from danubius.cli.bench.harness import BenchFailed
from danubius.cli.bench.report import print_fairness, print_measurements
from danubius.cli.bench.runner import Danubius, measure, median_of
from danubius.cli.bench.work import DEFAULT_COUNTS, KINDS, SIZE_MIN, Kind, Measurement, Work
from danubius.cli.broker_process import BrokerProcess
from danubius.cli.options import byte_count, json_option
from danubius.cli.options import count as count_of
from danubius.cli.output import meter, note, print_json, print_line
from danubius.client.options import DurabilityName

if TYPE_CHECKING:
    from collections.abc import Generator

_FEW_TOPICS = 10
_MANY_TOPICS = 10_000
_QUIET_TOPICS = 1_000
_SEND_TASKS = (1, 100)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options, apart from where and how to print."""

    size: int
    count: int | None
    rate: int
    subscriptions: int
    topics: int | None
    seconds: float
    tasks: int | None
    durability: DurabilityName
    repeat: int
    timeout_s: float


@click.command(
    epilog="""\b
What is measured (producer and consumers are processes of their own, every message is counted):
  publish  one producer alone, until the last message is acknowledged
  e2e      one producer, one consumer, until the last message is received and acknowledged
  latency  --rate messages a second, from send to receive, as percentiles
  fanout   one producer, --subscriptions consumers that all get everything
  drain    a backlog is written, then one consumer reads it all
  topics   publish to 10 topics, then to --topics, in batches of 100
  send     `await producer.send(...)` one at a time, from 1 and from 100 tasks
  fairness latency of --topics quiet ones at 1 message a second each, alone for
           --seconds and for as long beside one topic at full speed, in turn
\b
Examples:
  danubius bench e2e --size 1024 --count 500k
  danubius bench latency --rate 1000 --durability written --plot latency.svg
  danubius bench fairness --topics 1000 --seconds 20
  danubius bench all --json > results.jsonl
"""
)
@click.argument("kind", type=click.Choice([*KINDS, "all"]), metavar="|".join([*KINDS, "all"]))
@click.option(
    "--size",
    type=byte_count,
    default="100",
    show_default=True,
    metavar="BYTES",
    help=f"Payload of one message, at least {SIZE_MIN}.",
)
@click.option(
    "--count", type=count_of, metavar="N", help="Messages a run; each kind has a default."
)
@click.option(
    "--rate",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Messages a second, for latency.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    metavar="N",
    help="For fanout.",
)
@click.option(
    "--topics",
    type=click.IntRange(1),
    metavar="N",
    help=f"For topics (default {_MANY_TOPICS:,}) and fairness (default {_QUIET_TOPICS:,}).",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=10.0,
    show_default=True,
    metavar="S",
    help="For fairness: without the busy topic, and again with it.",
)
@click.option("--tasks", type=click.IntRange(1), metavar="N", help="For send (default 1 and 100).")
@click.option(
    "--durability",
    type=click.Choice(["synced", "written"]),
    default="synced",
    show_default=True,
    help="What must be true before a publish is answered.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 99),
    default=1,
    show_default=True,
    metavar="N",
    help="Runs of each; the median counts.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1),
    default=300.0,
    metavar="SECONDS",
    help="Give up on a run after this long.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also draw the results (.svg, .png, .pdf).",
)
@click.option(
    "--url",
    envvar="DANUBIUS_URL",
    metavar="URL",
    help="Broker to measure; without it one is started for the occasion.",
)
@json_option
def bench(
    kind: str,
    size: int,
    count: int | None,
    rate: int,
    subscriptions: int,
    topics: int | None,
    seconds: float,
    tasks: int | None,
    durability: DurabilityName,
    repeat: int,
    timeout_s: float,
    plot: Path | None,
    url: str | None,
    as_json: bool,
) -> int:  # one parameter an option
    """Measure throughput, latency and memory. One line a measurement."""
    if size < SIZE_MIN:
        raise click.BadParameter(f"at least {SIZE_MIN} bytes", param_hint="--size")
    if count is not None and count < 1:
        raise click.BadParameter("at least 1", param_hint="--count")
    if plot is not None and find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install matplotlib")
    settings = Settings(
        size=size,
        count=count,
        rate=rate,
        subscriptions=subscriptions,
        topics=topics,
        seconds=seconds,
        tasks=tasks,
        durability=durability,
        repeat=repeat,
        timeout_s=timeout_s,
    )
    works = [work for each in KINDS if kind in {each, "all"} for work in _works(each, settings)]
    try:
        with _system(url) as system:
            measured = _measure_all(system, works, repeat)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        for measurement in measured:
            print_json(measurement)
    else:
        print_measurements(measured)
        print_fairness([each for each in measured if each.kind == "fairness"])
    if plot is not None:
        from danubius.cli.bench.plot import draw

        draw(measured, plot)
    return 0 if all(measurement.is_exact for measurement in measured) else 1


def _works(kind: Kind, settings: Settings) -> list[Work]:
    count = settings.count or max(1, DEFAULT_COUNTS[kind] * 100 // max(100, settings.size))
    if kind == "latency" and settings.count is None:
        count = settings.rate * 10
    work = Work(
        kind=kind, url="", topic=f"/bench/{kind}", size=settings.size, count=count,
        rate=settings.rate, durability=settings.durability, timeout_s=settings.timeout_s,
        subscriptions=settings.subscriptions if kind == "fanout" else 1,
    )  # fmt: skip
    many = settings.topics or _MANY_TOPICS
    match kind:
        case "topics":
            return [
                msgspec.structs.replace(work, topics=topics)
                for topics in sorted({min(_FEW_TOPICS, many), many})
            ]
        case "fairness":
            topics = settings.topics or _QUIET_TOPICS
            return [
                msgspec.structs.replace(work, topics=topics, rate=topics, seconds=settings.seconds)
            ]
        case "send":
            choices = (settings.tasks,) if settings.tasks else _SEND_TASKS
            return [msgspec.structs.replace(work, tasks=tasks) for tasks in choices]
        case _:
            return [work]


def _measure_all(system: Danubius, works: list[Work], repeat: int) -> list[Measurement]:
    measured: list[Measurement] = []
    with meter("measuring", len(works) * repeat) as progress:
        for work in works:
            runs: list[Measurement] = []
            if work.kind == "fairness":
                note(
                    f"fairness: {work.topics:,} quiet topics, {work.seconds:g} s alone and {work.seconds:g} s beside "
                    f"a busy one, in {2 * ROUNDS} windows with {SETTLE_S:g} s each to settle"
                )
            for _ in range(repeat):
                topic = f"{work.topic}-{uuid.uuid4().hex[:8]}"
                fresh = msgspec.structs.replace(work, topic=topic, url=system.url)
                runs.append(measure(system, fresh))
                progress.advance(1)
            measured.append(median_of(runs))
    return measured


@contextlib.contextmanager
def _system(url: str | None) -> Generator[Danubius]:
    if url is not None:
        yield Danubius(url, None)
        return
    with (
        tempfile.TemporaryDirectory(prefix="danubius-bench-") as folder,
        BrokerProcess(Path(folder) / "data") as broker,
    ):
        if sys.stderr.isatty():
            print_line(f"broker {broker.url}, data in {folder}", err=True)
        yield Danubius(broker.url, broker.pid)
