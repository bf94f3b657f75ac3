"""`spark.readStream.format("danube")`: the face that Spark knows of a `Follower`.

Spark runs this in one process for each query, which lives as long as the query, and pickles another copy, unused till
then, into the tasks. So everything with state is made at the first call. `stop` may never be called: nothing on the
broker waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from danubius.spark.source.columns import shape_of
from danubius.spark.source.following import Follower
from danubius.spark.source.tasks import RangePartition, plainly, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from danubius.spark.source.options import ReadOptions


class DanubeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The names of methods and arguments are Spark's."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = shape_of(options, schema)
        self._made: Follower | None = None

    @property
    def _follower(self) -> Follower:
        if self._made is None:
            self._made = Follower(self._options)
        return self._made

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._follower.beginning()

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self._follower.advance(start, unlimited=isinstance(limit, ReadAllAvailable))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One limit is all Spark can be told; the others hold as well, wherever this one comes back."""
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._follower.newest()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._follower.hold()

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [RangePartition(range_) for range_ in self._follower.ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._shape, partition)

    @plainly
    def commit(self, end: dict[str, Any]) -> None:
        self._follower.committed(end)

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()
