# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""Tasks of Spark: what one does to read a range, and how errors reach people through Spark.

Everything here is pickled into tasks, so it holds plain values only: options, names, numbers.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql.datasource import InputPartition

from danubius.errors import (
    DanubiusError,
    OffsetOutOfRange,
    TopicDeleted,
    TopicNotFound,
)
from danubius.spark.connection.fetching import client_of
from danubius.spark.worker import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.spark.source.columns import Shape
    from danubius.spark.source.options import ReadOptions
    from danubius.spark.source.planning import Range
    from danubius.spark.source.tiered_fetch import Fetching

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

KEEP_GOING = "Set failOnDataLoss to false to go on without what is gone, or begin anew with another checkpointLocation"


class RangePartition(InputPartition):
    """One range for one task."""

    def __init__(self, range_: Range) -> None:
        super().__init__(range_)

    @property
    def range(self) -> Range:
        return self.value


def plainly(function: Callable[P, R]) -> Callable[P, R]:
    """Let an error of ours leave without the frames it came through: the sentence is enough, and Spark prints all."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except DanubiusError as error:
            raise error.with_traceback(None) from None

    return call


def read_partition(options: ReadOptions, shape: Shape, partition: InputPartition) -> Iterator[Any]:
    """Arrow record batches of one range."""
    if not isinstance(partition, RangePartition):
        return  # Spark asks for the one partition of an empty plan
    from danubius.spark.source.rows import read_rows

    settle()
    range_ = partition.range
    client = client_of(options.url, options.patience, is_known=True)
    client.may_point = options.read_from != "broker"
    source: Fetching = client
    if range_.segments:
        from danubius.spark.source.cold_stores import store_of
        from danubius.spark.source.tiered_fetch import TieredFetch

        opening = functools.partial(store_of, range_.tier_url, options)
        source = TieredFetch(client, range_, options.read_from, opening)
    batches = read_rows(
        source,
        range_,
        shape.stored,
        options.fetch_bytes,
        lossy=not options.fail_on_data_loss,
    )
    if shape.payload is not None:
        batches = _typed(batches, shape, options)
    try:
        yield from _as_told(batches, shape)
        if range_.segments:
            log.info("%s from %d to %d: %s", range_.name, range_.begin, range_.end, source)
    except (OffsetOutOfRange, TopicNotFound, TopicDeleted) as error:
        raise type(error)(f"{error.message}. {KEEP_GOING}") from None
    except DanubiusError as error:
        raise error.with_traceback(None) from None


def _as_told(batches: Iterator[Any], shape: Shape) -> Iterator[Any]:
    """With the fields that Spark was told, to the letter: it refuses rows of any other."""
    from pyarrow import RecordBatch, schema

    told: Any = None
    for batch in batches:
        if told is None:
            told = schema(
                [field.with_nullable(field.name not in shape.never_null) for field in batch.schema]
            )
        yield RecordBatch.from_arrays(batch.columns, schema=told)


def _typed(batches: Iterator[Any], shape: Shape, options: ReadOptions) -> Iterator[Any]:
    from danubius.spark.payloads.typed import typed

    assert shape.payload is not None
    deliver = None
    if shape.payload.mode == "deadletter":
        from danubius.spark.payloads.dead_letters import DeadLetters

        deliver = DeadLetters(options.url, shape.payload.dead_letter_topic).publish
    names = list(shape.names)
    for batch in batches:
        yield typed(batch, shape.payload, deliver).select(names)
