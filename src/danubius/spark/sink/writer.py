"""The sinks: `df.write` all or nothing, `writeStream` exactly once.

Executors stage what their tasks write; nobody sees it. The driver's commit names the stages of the attempts that
count, under the query's id and the number of the micro-batch, which are the same again when a query restarts from its
checkpoint: the broker decides each such pair once. Attempts that failed, speculative ones and those of a driver that
died are dropped by the commit, or expire. See docs/decisions/0024-stages.md.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from danubius.errors import BrokerUnavailable, DanubiusError, DeadlineExceeded, InvalidArgument
from danubius.spark.connection.fetching import client_of as fetch_client_of
from danubius.spark.sink.options import check_columns, write_options
from danubius.spark.source.tasks import plainly
from danubius.wire.commands import Ping, Pong

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from danubius.client.producing.staging import StageReceipt
    from danubius.spark.sink.options import WriteOptions

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"

log = logging.getLogger(__name__)


class Staged(WriterCommitMessage):
    """What a task tells the driver: the stage that it wrote, and for what."""

    def __init__(self, job: str, receipt: StageReceipt) -> None:
        self.job = job
        self.receipt = receipt


def batch_writer(raw: dict[str, str], schema: StructType, overwrite: bool) -> DanubeBatchWriter:
    """The writer of `df.write`; called on the driver, once a job."""
    options = write_options(raw)
    check_columns(schema, options)
    if overwrite:
        raise InvalidArgument(
            "a topic is a log, and mode('overwrite') would have to delete what others read: use mode('append'), and"
            " `danubius topics delete` if the topic shall begin anew"
        )
    _greet(options)
    return DanubeBatchWriter(options, f"write-{uuid.uuid4().hex}")


def stream_writer(raw: dict[str, str], schema: StructType, overwrite: bool) -> DanubeStreamWriter:
    """The writer of `writeStream`. In the output mode complete every batch appends the whole result."""
    del overwrite
    options = write_options(raw)
    check_columns(schema, options)
    _greet(options)
    return DanubeStreamWriter(options)


def _greet(options: WriteOptions) -> None:
    """Find out within seconds if there is no broker; from here on it is known, and waited for if it restarts."""
    client = fetch_client_of(options.url, options.patience)
    client.is_known = False
    client.request(Ping(), Pong)


class DanubeBatchWriter(DataSourceArrowWriter):
    """All rows of a job, or none."""

    def __init__(self, options: WriteOptions, job: str) -> None:
        self._options = options
        self._job = job

    @plainly
    def write(self, iterator: Iterator[Any]) -> Staged:
        return _write_task(self._options, self._job, 0, iterator)

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, self._job, 0, _staged(messages))

    @plainly
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        del messages
        _abort(self._options, self._job, 0)


class DanubeStreamWriter(DataSourceStreamArrowWriter):
    """Every micro-batch of a query once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plainly
    def write(self, iterator: Iterator[Any]) -> Staged:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise InvalidArgument(
                f"Spark did not say which query and batch this is ({QUERY_ID}, {BATCH_ID}): this needs pyspark 4.2 or"
                " later"
            )
        return _write_task(self._options, f"query-{query}", int(batch), iterator)

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = _staged(messages)
        for job in sorted({one.job for one in staged}):
            _commit(self._options, job, batchId, [one for one in staged if one.job == job])

    @plainly
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for job in sorted({one.job for one in _staged(messages)}):
            _abort(self._options, job, batchId)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _write_task(options: WriteOptions, job: str, batch: int, rows: Iterator[Any]) -> Staged:
    from danubius.spark.sink.staging import StageWriter, client_of, drop_client
    from danubius.spark.worker import settle

    settle()
    context = TaskContext.get()
    place = "driver" if context is None else f"p{context.partitionId()}-a{context.attemptNumber()}"
    try:
        # Another name for every attempt: what two of them write must never get into one stage.
        stage = client_of(options).stage(job, batch, task=f"{place}-{uuid.uuid4().hex[:12]}")
        receipt = StageWriter(options, stage).write(rows)
    except (BrokerUnavailable, DeadlineExceeded):
        drop_client(options)
        raise
    return Staged(job, receipt)


def _commit(options: WriteOptions, job: str, batch: int, staged: list[Staged]) -> None:
    from danubius.spark.sink.staging import client_of, drop_client

    try:
        receipts = [one.receipt for one in staged]
        client_of(options).commit_stages(
            job, batch, receipts, patience=options.patience.reconnect_s
        )
    except (BrokerUnavailable, DeadlineExceeded):
        drop_client(options)
        raise


def _abort(options: WriteOptions, job: str, batch: int) -> None:
    """Free the broker's disk at once; if that fails, the stages expire."""
    from danubius.spark.sink.staging import client_of

    try:
        client_of(options).abort_stages(job, batch)
    except DanubiusError as error:
        log.warning("stages are left to expire: %s", error.message)
