# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Batch reads of the Spark source, called as Spark calls it, without a Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from danubius.spark.data_source import DanubeDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from danubius.spark.source.planning import Range
    from e2e.broker_process import BrokerProcess


class Read:
    """A batch read, planned when it is made."""

    def __init__(self, broker: BrokerProcess, topic: str, **options: str) -> None:
        source = DanubeDataSource({"url": broker.url, "topic": topic, **options})
        self._reader = source.reader(source.schema())
        self._partitions: list[InputPartition] = self._reader.partitions()

    @property
    def ranges(self) -> list[Range]:
        return [partition.value for partition in self._partitions]

    def table(self) -> Any:
        batches = [b for partition in self._partitions for b in self._reader.read(partition)]
        return pa.Table.from_batches(batches) if batches else None

    def numbers(self) -> list[int]:
        table = self.table()
        if table is None:
            return []
        return [int(payload.partition(b"/")[0]) for payload in table.column("payload").to_pylist()]
