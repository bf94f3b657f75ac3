# pyright: reportUnknownMemberType=false
# (of createDataFrame, whose types speak of pyarrow, which has none)
"""Pipelines under way: the shell around `core.supervision`, in one thread but for batch writes.

It asks Spark twice a second what its queries did, tells the core, and obeys. Several pipelines share one session:
a query's plan is resolved when its views are made, so views of the same name are not mixed up. If one has to be given
up, all end. Invariant: every streaming query that was started has been
stopped when `run` returns, and the status files say how it ended.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from danubius.client.core.address import parse_urls
from danubius.errors import InvalidArgument
from danubius.pipeline import status as statuses
from danubius.pipeline.building import (
    check_target,
    frame_of,
    reason_of,
    start_stream,
    write_batch,
)
from danubius.pipeline.core.supervision import Done, GaveUp, Retry, Start, Stop, Supervision
from danubius.pipeline.functions import own_files
from danubius.pipeline.graph import needs
from danubius.pipeline.problems import InvalidPipeline
from danubius.pipeline.progress import Figures, Json, advance, is_batch
from danubius.pipeline.status import QueryStatus, Status
from danubius.pipeline.table_schema import UnfitRows
from danubius.pipeline.tables import TableDataSource
from danubius.spark.cluster.sessions import send_traces, session

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from danubius.pipeline.core.supervision import Effect
    from danubius.pipeline.spec import Pipeline, Sink

POLL_S: Final = 0.5
STOP_GRACE_S: Final = 10.0
"""How long a query that is told to stop may take to end its batch; then it is interrupted, which loses nothing."""
SPARK_LOG: Final = "spark.log"
"""Beside the checkpoint: stack traces, and what Java wrote to its standard error, in the newest run."""
STDERR: Final = 2
BROKER_WAIT_S: Final = 5.0
SOURCES_WAIT_S: Final = 10.0
_SETTINGS: Final = {
    # State that transformWithState needs, and that does not live in the JVM's heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.showConsoleProgress": "false",
}


class How(NamedTuple):
    """What the command line says about a run."""

    is_once: bool = False
    master: str | None = None
    remote: str | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    is_verbose: bool = False
    """What Spark writes to the standard error goes there, and not to a file beside the checkpoint."""


@dataclass
class Running:
    """One streaming query as Spark has it."""

    query: StreamingQuery
    batch: int = -1
    """The newest batch that was counted."""
    stop_by: float | None = None
    stop_after: int = -1


@dataclass
class Run:
    """One run of one pipeline."""

    spark: SparkSession
    pipeline: Pipeline
    how: How
    tell: Callable[[str], None]
    watch: Callable[[Status], None]
    wake: threading.Event = field(default_factory=threading.Event)
    """Set when there is something to do at once."""
    metrics_port: int | None = None
    outcome: bool | None = None
    """Whether all went well, once it is over."""
    _streams: dict[str, Running] = field(default_factory=dict[str, Running])
    _ended: queue.SimpleQueue[tuple[str, str | None]] = field(
        default_factory=queue.SimpleQueue[tuple[str, str | None]]
    )
    _is_asked_to_stop: bool = False
    _started: str = field(default_factory=lambda: _now())

    def __post_init__(self) -> None:
        waits = needs(self.pipeline, is_once=self.how.is_once)
        self._supervision = Supervision.of(self.pipeline.restart, waits)
        self._figures = dict.fromkeys(self.pipeline.sinks, Figures())

    def ask_to_stop(self) -> None:
        """From a signal handler or another thread; what runs ends its batch."""
        self._is_asked_to_stop = True
        self.wake.set()

    def step(self) -> None:
        """Look once at everything, do what is due, and say how it stands."""
        if self._is_asked_to_stop and not self._supervision.is_stopping:
            self.tell("stopping: every query ends its batch")
            self._obey(self._supervision.stop())
        self._obey(self._supervision.tick(_clock_ms()))
        self._hear_batches()
        for name in list(self._streams):
            self._look_at(name, self._streams[name])
        current = self.status()
        folder = statuses.folder_of(self.pipeline.checkpoint)
        if folder is not None:
            statuses.write(folder, current)
        self.watch(current)

    def close(self) -> None:
        """After an error of our own: leave no query behind."""
        for running in self._streams.values():
            running.query.stop()

    def status(self) -> Status:
        supervision = self._supervision
        state = "stopping" if supervision.is_stopping else "running"
        if self.outcome is not None:
            state = "finished" if self.outcome else "failed"
        return Status(
            self.pipeline.name, self.pipeline.file, os.getpid(), state, self._started, _now(), self.metrics_port,
            {
                name: QueryStatus(query.state.value, query.restarts, query.reason, self._figures[name])
                for name, query in supervision.queries.items()
            },
        )  # fmt: skip

    # ------------------------------------------------------------ effects

    def _obey(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(name):
                    self._start(self.pipeline.sinks[name])
                case Stop(name):
                    self._stop(name)
                case Retry(name, delay_ms, attempt, reason):
                    most = self.pipeline.restart.attempts_max
                    self.tell(
                        f"{name} failed ({attempt} of {most}), again in {delay_ms / 1000:g} s: {reason}"
                    )
                case GaveUp(name, attempts, reason):
                    often = "once" if attempts == 1 else f"{attempts} times"
                    self.tell(f"{name} failed {often} and is given up: {reason}")
                case Done(is_success):
                    self.outcome = is_success

    def _start(self, sink: Sink) -> None:
        try:
            frame = frame_of(self.spark, self.pipeline, sink)
            check_target(frame, self.pipeline, sink)
            if self.pipeline.is_stream(sink):
                query = start_stream(frame, self.pipeline, sink, is_once=self.how.is_once)
                self._streams[sink.name] = Running(query)
                _await_sources(query)
            else:
                threading.Thread(target=self._write_batch, args=(sink, frame), daemon=True).start()
        except UnfitRows as error:
            self._obey(self._supervision.refused(sink.name, error.message))
            return
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is this query's failure
            self._obey(self._supervision.failed(sink.name, reason_of(error), _clock_ms()))
            return
        self.tell(f"{sink.name} started")
        self._obey(self._supervision.started(sink.name))

    def _write_batch(self, sink: Sink, frame: Any) -> None:
        reason: str | None = None
        try:
            # Spark finds sources written in Python by the session of the thread, and this makes it that of this one.
            self.spark.createDataFrame([], "nothing INT")
            write_batch(frame, self.pipeline, sink)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is this query's failure
            reason = reason_of(error)
        self._ended.put((sink.name, reason))
        self.wake.set()

    def _stop(self, name: str) -> None:
        running = self._streams.get(name)
        if running is not None:
            running.stop_by = time.monotonic() + STOP_GRACE_S
            running.stop_after = running.batch

    # ------------------------------------------------------------ events

    def _hear_batches(self) -> None:
        while not self._ended.empty():
            name, reason = self._ended.get()
            if reason is None:
                self.tell(f"{name} finished")
                self._obey(self._supervision.finished(name))
            else:
                self._obey(self._supervision.failed(name, reason, _clock_ms()))

    def _look_at(self, name: str, running: Running) -> None:
        is_active = running.query.isActive
        for report in _reports(running):
            self._figures[name] = advance(self._figures[name], report)
            if is_batch(report):
                running.batch = int(report["batchId"])
                self._obey(self._supervision.progressed(name))
        if not is_active:
            del self._streams[name]
            self._end(name, running)
        elif running.stop_by is not None and self._may_stop(running, running.stop_by):
            running.query.stop()
            del self._streams[name]
            self._end(name, running)

    @staticmethod
    def _may_stop(running: Running, stop_by: float) -> bool:
        if running.batch > running.stop_after or time.monotonic() > stop_by:
            return True
        return not running.query.status["isTriggerActive"]

    def _end(self, name: str, running: Running) -> None:
        error = running.query.exception()
        if error is not None and running.stop_by is None:
            self._obey(self._supervision.failed(name, reason_of(error), _clock_ms()))
            return
        figures = self._figures[name]
        self.tell(f"{name} ended: {figures.rows_in:,} rows in, {figures.rows_out:,} out")
        self._obey(self._supervision.finished(name))


def run(
    pipelines: Sequence[Pipeline],
    how: How,
    tell: Callable[[str], None],
    watch: Callable[[Status], None],
) -> bool:
    """Start Spark, run the pipelines until they end or a signal asks for it; whether all went well."""
    for pipeline in pipelines:
        if any(source.topics for source in pipeline.sources.values()):
            _find_broker(pipeline.url)
    with ExitStack() as stack:
        for pipeline in pipelines:
            folder = statuses.folder_of(pipeline.checkpoint)
            if folder is not None:
                stack.enter_context(statuses.hold(folder))
        name = "danubius-" + "-".join(pipeline.name for pipeline in pipelines)
        settings = _SETTINGS | merged_settings(pipelines)
        folder = statuses.folder_of(pipelines[0].checkpoint)
        log = folder / SPARK_LOG if folder and not how.is_verbose else None
        if not how.is_verbose:
            send_traces(log)
        with errors_to(log):
            spark = session(name, master=how.master, remote=how.remote, config=settings)
        try:
            return run_on(spark, pipelines, how, tell, watch)
        finally:
            spark.stop()


@contextmanager
def errors_to(log: Path | None) -> Generator[None]:
    """Processes that are started meanwhile write their errors to a file: Java, and all that it starts.

    A query that fails is told in a sentence; what Java and Python workers say besides is for those who look for it.
    """
    if log is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(STDERR)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(file, STDERR)
    os.close(file)
    try:
        yield
    except Exception as error:
        error.add_note(f"what Java said is in {log}")
        raise
    finally:
        sys.stderr.flush()
        os.dup2(before, STDERR)
        os.close(before)


def merged_settings(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """Spark's settings of all files, which must not contradict each other."""
    settings: dict[str, str] = {}
    said_by: dict[str, str] = {}
    for pipeline in pipelines:
        for name, value in pipeline.spark.items():
            if settings.setdefault(name, value) != value:
                raise InvalidPipeline(
                    f"{pipeline.file}: {name} is {value}, and {settings[name]} in {said_by[name]}:"
                    " run them one by one, or make them the same"
                )
            said_by.setdefault(name, pipeline.file)
    return settings


def run_on(
    spark: SparkSession,
    pipelines: Sequence[Pipeline],
    how: How,
    tell: Callable[[str], None],
    watch: Callable[[Status], None],
) -> bool:
    """Run the pipelines on a session that is there; its owner sees to settings and to one run a checkpoint."""
    wake = threading.Event()
    runs: list[Run] = []
    _register(spark)
    for pipeline in pipelines:
        folder = statuses.folder_of(pipeline.checkpoint)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        _prepare(spark, pipeline, how)
        for name, waits in needs(pipeline, is_once=how.is_once).items():
            if not waits:  # what Spark finds wrong in the file is told before anything runs
                sink = pipeline.sinks[name]
                check_target(frame_of(spark, pipeline, sink), pipeline, sink)
        speak = _with_name(pipeline.name, tell) if len(pipelines) > 1 else tell
        runs.append(Run(spark, pipeline, how, speak, watch, wake))
    if how.metrics_port is not None:
        _serve_metrics(runs, how, tell)
    with _signals(lambda: _stop_all(runs)):
        try:
            return _loop(runs, wake)
        finally:
            for each in runs:
                each.close()


def _await_sources(query: StreamingQuery) -> None:
    """Let a query come to its first trigger before the next one is started, for a while.

    A Python source has one hash map of environment variables for all queries, into which each puts some when it starts
    its reader, unsynchronised (PythonStreamingSourceRunner of Spark 4.3). A driver that had started two at once was
    seen to fail with every task it sent, where such a map is read (OptionalDataException), until it was started anew.
    """
    until = time.monotonic() + SOURCES_WAIT_S
    while query.isActive and time.monotonic() < until:
        if not query.status["message"].startswith(("Initializing", "Getting offsets")):
            return
        time.sleep(0.05)  # Spark tells nobody


def _loop(runs: list[Run], wake: threading.Event) -> bool:
    """Until all are over; whether nothing had to be given up."""
    while True:
        for each in runs:
            if each.outcome is None:
                each.step()
            if each.outcome is False:
                _stop_all(runs)
        if all(each.outcome is not None for each in runs):
            return all(each.outcome for each in runs)
        wake.wait(POLL_S)
        wake.clear()


def _stop_all(runs: list[Run]) -> None:
    for each in runs:
        each.ask_to_stop()


def _with_name(name: str, tell: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: tell(f"{name}.{line}")


def _serve_metrics(runs: list[Run], how: How, tell: Callable[[str], None]) -> None:
    from danubius.pipeline.metrics import serve  # needs a package that other runs do not

    assert how.metrics_port is not None
    port = serve(lambda: [each.status() for each in runs], how.metrics_host, how.metrics_port)
    for each in runs:
        each.metrics_port = port
    tell(f"metrics at http://{how.metrics_host}:{port}/metrics")


def _register(spark: SparkSession) -> None:
    from danubius.spark.data_source import DanubeDataSource

    spark.dataSource.register(TableDataSource)
    spark.dataSource.register(DanubeDataSource)


def _prepare(spark: SparkSession, pipeline: Pipeline, how: How) -> None:
    files = own_files(pipeline)
    if how.remote is not None and files:
        spark.addArtifacts(*files, pyfile=True)
    elif how.master is not None and not how.master.startswith("local"):
        for file in files:
            spark.sparkContext.addPyFile(file)


def _find_broker(url: str) -> None:
    """Spark takes seconds to start and pages to say that a connection was refused."""
    reasons: list[str] = []
    for address in parse_urls(url):
        try:
            socket.create_connection((address.host, address.port), BROKER_WAIT_S).close()
        except OSError as error:
            reasons.append(error.strerror or str(error))
        else:
            return
    raise InvalidArgument(
        f"there is no broker at {url} ({'; '.join(reasons)}):"
        " start one with `danubius standalone`, or give another --url"
    )


def _reports(running: Running) -> Iterator[Json]:
    """What Spark reported since the last look, each batch once."""
    newest = _decode(running.query.lastProgress)
    if newest is None:
        return
    if int(newest["batchId"]) > running.batch + 1:
        for each in running.query.recentProgress:
            report = _decode(each)
            if report is not None and running.batch < int(report["batchId"]) < int(
                newest["batchId"]
            ):
                yield report
    if int(newest["batchId"]) > running.batch or not is_batch(newest):
        yield newest


def _decode(progress: Any) -> Json | None:
    if progress is None:
        return None
    return msgspec.json.decode(
        progress.json if hasattr(progress, "json") else msgspec.json.encode(progress)
    )


@contextmanager
def _signals(stop: Callable[[], None]) -> Generator[None]:
    def handle(number: int, frame: object) -> None:
        del number, frame
        stop()

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, action in before.items():
            signal.signal(each, action)


def _clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
