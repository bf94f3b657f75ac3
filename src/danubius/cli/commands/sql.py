"""`danubius sql`: questions to topics, answered by Spark in this process.

Whatever can be wrong without Spark (the query's topics, the broker, Java) is found before it is started, which takes
seconds. What the JVM prints goes to a file that is gone afterwards: a person gets the result, or one sentence.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from danubius.cli.commands.message_lines import text_or_base64
from danubius.cli.options import json_option, url_option
from danubius.cli.output import note, print_json, print_line, print_table
from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from danubius.pipeline.spec import TableFormat
    from danubius.spark.sql.references import Query
    from danubius.spark.sql.topics import Topics

TABLE_ROWS_MAX: Final = 1_000
"""Rows of a table if --limit does not say: more than anybody reads, less than a terminal chokes on."""
CELL_CHARACTERS_MAX: Final = 120
_OTHER_VOICES: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where PySpark logs, on this process's standard error, what it raises anyway."""
_LOOK_SECONDS: Final = 0.2
_LOG_TAIL_BYTES: Final = 4_096


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name.strip(), value


@click.command()
@click.argument("query", metavar="QUERY")
@click.option(
    "--schema", "schemas", multiple=True, metavar="[TOPIC=]DDL",
    help="The fields of JSON payloads, as 'id BIGINT, at TIMESTAMP'; of one topic, or of all.",
)  # fmt: skip
@click.option("--infer", is_flag=True, help="Find the fields of JSON payloads by looking at some.")
@click.option("--watch", is_flag=True, help="Go on with what is published, until Ctrl-C.")
@click.option(
    "--from", "start", type=click.Choice(["earliest", "latest"]),
    help="Where to begin: earliest, or with --watch latest, unless WHERE says it.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1), metavar="N",
    help=f"Print at most so many rows; a table has at most {TABLE_ROWS_MAX} otherwise. Ends --watch.",
)  # fmt: skip
@click.option(
    "--option", "options", type=_pair, multiple=True, metavar="NAME=VALUE",
    help="Any option of the data source danube, for example minPartitions=4.",
)  # fmt: skip
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@json_option
@url_option
def sql(
    query: str,
    schemas: tuple[str, ...],
    infer: bool,
    watch: bool,
    start: str | None,
    limit: int | None,
    options: tuple[tuple[str, str], ...],
    master: str,
    as_json: bool,
    url: str,
) -> None:
    """Ask topics with Spark SQL: danubius sql 'SELECT count(*) FROM danube.`/default/orders`'.

    A topic has the columns topic, partition, offset, publish_time, key, payload (as text), attributes and producer;
    with --schema or --infer also the fields of its JSON. Tables are read by their folders: delta.`tables/orders`,
    iceberg.`…`, parquet.`…`. Times are in UTC. QUERY may be - for standard input.
    """
    text = sys.stdin.read() if query == "-" else query
    with _in_words():
        from danubius.spark.sql import topics as topics_in_sql
    parsed = topics_in_sql.check_query(text)
    topics_in_sql.check_topics(url, parsed)
    _check_tables(parsed)
    read = dict(options)
    says_start = any(name.lower().startswith("starting") for name in read)
    if start or (watch and not says_start and not topics_in_sql.find_bounds(parsed)):
        read["startingOffsets"] = start or "latest"
    declared = _declared(schemas)
    if infer:
        declared |= _inferred(url, parsed, declared)
    with _spark(master) as spark:
        topics = topics_in_sql.Topics(
            spark, url, schemas=declared, options=read, tables=partial(_read_table, spark)
        )
        if watch:
            _watch(topics, text, limit, as_json=as_json)
        else:
            _answer(topics, text, limit, as_json=as_json)


def _check_tables(query: Query) -> None:
    for table in query.tables:
        if not Path(table.folder).is_dir():
            raise InvalidArgument(f"there is no folder {table.folder} for a {table.format} table")


def _read_table(spark: SparkSession, table_format: str, folder: str) -> DataFrame:
    from danubius.pipeline.building import read_table
    from danubius.pipeline.spec import Table

    return read_table(spark, Table(folder, cast("TableFormat", table_format)))


# ---------------------------------------------------------------- answers


def _answer(topics: Topics, text: str, limit: int | None, *, as_json: bool) -> None:
    from danubius.spark.sql.topics import FAILURES, plain

    frame = topics.query(text)
    try:
        if as_json:
            _print_lines(frame.columns, (frame.limit(limit) if limit else frame).toLocalIterator())
            return
        most = limit or TABLE_ROWS_MAX
        rows = frame.take(most + 1)
    except FAILURES as error:
        raise plain(error) from None
    _print_rows(frame.columns, rows[:most])
    if len(rows) > most and not limit:
        print_line(f"… and more: the first {most} rows are shown, see --limit", err=True)


def _watch(topics: Topics, text: str, limit: int | None, *, as_json: bool) -> None:
    from danubius.spark.sql.topics import follow, plain

    frame = topics.query(text, is_stream=True)
    if not frame.isStreaming:
        raise InvalidArgument("--watch needs a query that reads a topic")
    stop = threading.Event()
    left = [limit or sys.maxsize]

    def show(batch: DataFrame) -> None:
        if stop.is_set():
            return
        rows = batch.take(min(left[0], TABLE_ROWS_MAX)) if not as_json else batch.toLocalIterator()
        shown = _show(batch.columns, rows, left[0], as_json=as_json)
        left[0] -= shown
        if left[0] <= 0:
            stop.set()

    with tempfile.TemporaryDirectory(prefix="danubius-sql-", ignore_cleanup_errors=True) as place:
        with _stopping(stop):
            running = follow(frame, show, place)
            note("watching; Ctrl-C ends it")
            while not stop.wait(_LOOK_SECONDS) and running.isActive:
                pass
        failure = running.exception()
        running.stop()
    if failure is not None and not stop.is_set():
        raise plain(failure)


@contextlib.contextmanager
def _stopping(stop: threading.Event) -> Generator[None]:
    """Ctrl-C and SIGTERM set the event, instead of breaking a call to the JVM in the middle."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def end(_number: int, _frame: object) -> None:
        stop.set()

    before = [signal.signal(number, end) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _show(columns: Sequence[str], rows: Iterable[Row], most: int, *, as_json: bool) -> int:
    if as_json:
        return _print_lines(columns, rows, most)
    shown = list(rows)
    if shown:
        _print_rows(columns, shown)
        sys.stdout.flush()
    return len(shown)


def _print_lines(columns: Sequence[str], rows: Iterable[Row], most: int = sys.maxsize) -> int:
    count = 0
    for row in rows:
        if count >= most:
            break
        line: dict[str, object] = {}
        values: list[Any] = list(row)
        for name, value in zip(columns, values, strict=True):
            line |= (
                text_or_base64(name, bytes(value))
                if isinstance(value, bytes | bytearray)
                else {name: _plain(value)}
            )
        print_json(line)
        count += 1
    sys.stdout.flush()
    return count


def _print_rows(columns: Sequence[str], rows: Sequence[Row]) -> None:
    values: list[list[Any]] = [list(row) for row in rows]
    print_table(columns, [[_cell(value) for value in row] for row in values])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode(errors="replace")
    text = value if isinstance(value, str) else str(_plain(value))
    clean = "".join(character if character.isprintable() else "·" for character in text)
    return clean if len(clean) <= CELL_CHARACTERS_MAX else clean[: CELL_CHARACTERS_MAX - 1] + "…"


def _plain(value: Any) -> Any:
    """A value of a row as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bytes | bytearray):
        return text_or_base64("", bytes(value)).popitem()[1]
    if hasattr(value, "asDict"):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(each) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType] - a map of Spark's
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType] - an array of Spark's
    return value


# ---------------------------------------------------------------- schemas


def _declared(schemas: Iterable[str]) -> dict[str, str]:
    """DDL by topic; "" is for all others."""
    from danubius.spark.payloads.ddl import parse_ddl

    declared: dict[str, str] = {}
    for schema in schemas:
        topic, sign, ddl = schema.partition("=")
        topic = topic.strip() if sign and topic.strip().startswith("/") else ""
        ddl = ddl if topic else schema
        parse_ddl(ddl, "--schema")
        if topic in declared:
            raise click.UsageError(f"--schema is given twice for {topic or 'all topics'}")
        declared[topic] = ddl
    return declared


def _inferred(url: str, query: Query, declared: dict[str, str]) -> dict[str, str]:
    from danubius.spark.payloads.inference import to_ddl
    from danubius.spark.sql.topics import infer_schema

    found: dict[str, str] = {}
    for topic in query.topics:
        if topic in declared or "" in declared:
            continue
        inferred = infer_schema(url, topic)
        found[topic] = to_ddl(inferred.fields)
        note(f"{topic}: {found[topic]}")
        if inferred.omitted:
            note(
                f"{topic}: without {', '.join(inferred.omitted)}, whose values have several types or none"
            )
    return found


# ---------------------------------------------------------------- Spark


@contextlib.contextmanager
def _spark(master: str) -> Generator[SparkSession]:
    """A session, stopped afterwards; one that this process has already is used and left."""
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    for name in _OTHER_VOICES:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    note("starting Spark …")
    with tempfile.TemporaryFile() as log:
        spark = _quietly(log.fileno(), lambda: _start(master), lambda: _tail(log))
        try:
            yield spark
        finally:
            spark.stop()


def _start(master: str) -> SparkSession:
    from danubius.spark.cluster.sessions import session

    os.environ["TZ"] = "UTC"  # PySpark hands out times without a zone, in that of the process
    time.tzset()
    return session("danubius sql", master=master, config={"spark.log.level": "ERROR"})


def _quietly(log: int, start: Callable[[], SparkSession], tail: Callable[[], str]) -> SparkSession:
    """Start the JVM with its standard error going to `log`: it keeps what it is born with."""
    from danubius.spark.sql.topics import FAILURES

    kept = os.dup(2)
    os.dup2(log, 2)
    try:
        return start()
    except FAILURES as error:
        raise InvalidArgument(f"Spark did not start: {tail() or error}") from None
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _tail(log: Any) -> str:
    """The last line that says something."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _LOG_TAIL_BYTES))
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("at ")), "")


@contextlib.contextmanager
def _in_words() -> Generator[None]:
    try:
        yield
    except ImportError as error:
        raise InvalidArgument(
            f"danubius sql needs Spark and Arrow ({error}): pip install 'danubius[spark]'"
        ) from error
