"""`spark.read.format("danube")`: what the topics hold between two boundaries, planned once, read by many tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from danubius.errors import DanubiusError, InvalidArgument
from danubius.spark.connection.fetching import client_of
from danubius.spark.source.columns import Shape, shape_of
from danubius.spark.source.discovery import find_partitions, measure, resolve
from danubius.spark.source.locating import locate
from danubius.spark.source.options import FROM_EARLIEST, FROM_LATEST
from danubius.spark.source.planning import Cutting, Range, plan
from danubius.spark.source.tasks import RangePartition, plainly, read_partition
from danubius.spark.worker import task_slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from danubius.spark.source.options import ReadOptions


class DanubeBatchReader(DataSourceReader):
    """Pickled into every task: holds values only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape: Shape = shape_of(options, schema)

    @plainly
    def partitions(self) -> list[InputPartition]:
        """Called once, on the driver's side; what is published later is not part of this DataFrame."""
        return [RangePartition(range_) for range_ in plan_batch(self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._shape, partition)


def plan_batch(options: ReadOptions) -> list[Range]:
    """The ranges of a batch read, one for each task."""
    client = client_of(options.url, options.patience)
    client.is_known = (
        False  # whoever waits here for an answer wants to know within seconds that there is none
    )
    names = find_partitions(client, options)
    if not names:
        raise InvalidArgument(f"no topic matches the pattern {options.pattern!r}")
    extents = measure(client, names, sizes=True)
    begin = resolve(client, options.starting or FROM_EARLIEST, names, "startingOffsets")
    end = resolve(client, options.ending or FROM_LATEST, names, "endingOffsets")
    ranges: list[Range] = []
    for slot, name in names.items():
        extent = extents[slot]
        if isinstance(extent, DanubiusError):
            raise extent
        ranges.append(
            Range(*slot, name, begin[slot], end[slot], extent.record_bytes, extent.incarnation)
        )
    return locate(client, plan(ranges, cutting_of(options)), options)


def cutting_of(options: ReadOptions) -> Cutting:
    """How finely the options want ranges cut."""
    least, most = options.min_partitions, options.max_records_per_partition
    return Cutting(least, most, slots=task_slots())
