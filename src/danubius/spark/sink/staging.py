# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Staging by an executor of Arrow batches: record batches for topics and partitions, into one stage of the broker.

Nothing here runs once a row: batches are gathered and cut by their sizes, sorted by topic and by partition with Arrow
and numpy, and encoded as the columns lie in memory.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from danubius.client.core.address import parse_urls
from danubius.client.core.retry import Backoff
from danubius.errors import BrokerUnavailable, InvalidArgument
from danubius.record.encode import from_arrow
from danubius.spark.sink.key_routes import partitions_of
from danubius.spark.sink.options import BATCH_BYTES_MAX
from danubius.spark.source.options import topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.blocking import Client
    from danubius.client.blocking.staging import BlockingStage
    from danubius.client.producing.staging import StageReceipt
    from danubius.spark.sink.options import WriteOptions

_COLUMNS: Final = ("payload", "key", "attributes")

_clients: dict[tuple[int, object], Client] = {}


def client_of(options: WriteOptions) -> Client:
    """This process's client for a broker: worker processes live long, and a fork shares nothing."""
    key = (os.getpid(), (parse_urls(options.url), options.patience))
    client = _clients.get(key)
    if client is None:
        for stale in [other for other in _clients if other[0] != key[0]]:
            del _clients[stale]
        client = _clients[key] = _dial(options)
    return client


def _dial(options: WriteOptions) -> Client:
    """Connect; the driver has spoken to the broker, so one that is away is waited for."""
    from danubius.blocking import connect

    patience = options.patience
    deadline = time.monotonic() + patience.reconnect_s
    waits = Backoff(random.random)
    while True:
        try:
            return connect(
                options.url,
                connect_timeout=patience.connect_s,
                request_timeout=patience.request_s,
                reconnect_timeout=patience.reconnect_s,
            )
        except BrokerUnavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(waits.next_delay_s())


def drop_client(options: WriteOptions) -> None:
    """After a failure of the connection: the next task dials anew."""
    client = _clients.pop((os.getpid(), (parse_urls(options.url), options.patience)), None)
    if client is not None:
        client.close()


def close_clients() -> None:
    """Hang up on every broker: for processes that are about to end, or whose brokers are."""
    for (pid, _), client in _clients.items():
        if pid == os.getpid():
            client.close()
    _clients.clear()


class StageWriter:
    """Writes the rows of one task."""

    def __init__(self, options: WriteOptions, stage: BlockingStage) -> None:
        self._options = options
        self._stage = stage
        self._gathered: list[Any] = []
        self._gathered_bytes = 0
        self._turn = 0

    def write(self, batches: Iterator[Any]) -> StageReceipt:
        """Stage everything. A batch that was committed before is only read to its end, as Spark wants it."""
        for batch in batches:
            if self._stage.is_over or not batch.num_rows:
                continue
            self._gathered.append(batch)
            self._gathered_bytes += batch.nbytes
            if self._gathered_bytes >= self._options.batch_bytes:
                self._ship()
        if self._gathered:
            self._ship()
        return self._stage.finish()

    def _ship(self) -> None:
        table = pa.Table.from_batches(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        if self._options.topic:
            self._spread(self._options.topic, table.select(_present(table)))
            return
        topics = table.column("topic").combine_chunks()
        if topics.null_count:
            raise InvalidArgument("the column topic has nulls: name a topic in every row")
        columns = table.select(_present(table))
        names = pc.unique(topics).to_pylist()  # pyright: ignore[reportAttributeAccessIssue] - made at import
        for name in names:
            part = columns if len(names) == 1 else columns.filter(pc.equal(topics, name))  # pyright: ignore[reportAttributeAccessIssue]
            self._spread(topic_name("topic", name), part)

    def _spread(self, topic: str, table: Any) -> None:
        """To each partition what belongs there: by key as producers do, without one in turn."""
        count = self._stage.partitions(topic)
        if not count:
            self._upload(topic, None, table)
            return
        keys = table.column("key").combine_chunks() if "key" in table.column_names else None
        homes, self._turn = partitions_of(keys, table.num_rows, count, self._turn)
        for home in range(count):
            rows = homes == home
            if rows.any():
                self._upload(topic, home, table.filter(pa.array(rows)))

    def _upload(self, topic: str, partition: int | None, table: Any) -> None:
        rows = table.num_rows
        if table.nbytes > BATCH_BYTES_MAX and rows > 1:
            self._upload(topic, partition, table.slice(0, rows // 2))
            self._upload(topic, partition, table.slice(rows // 2))
            return
        batch = from_arrow(table, publish_time_us=time.time_ns() // 1000, codec=self._options.codec)
        self._stage.upload(topic, batch, rows, partition=partition)


def _present(table: Any) -> list[str]:
    return [name for name in _COLUMNS if name in table.column_names]
