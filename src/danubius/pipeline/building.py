# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (pyspark's own types speak of pyarrow, which has none)
"""Spark's side of a pipeline: DataFrames of its sources and steps, queries of its sinks.

Views are made anew for every start of a query, so a table is read as it is then, and a batch reads what is there then.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.pandas.types import from_arrow_schema

from danubius.errors import DanubiusError, InvalidArgument
from danubius.pipeline.functions import resolve
from danubius.pipeline.graph import in_order
from danubius.pipeline.parquet_folder import check as check_parquet
from danubius.pipeline.problems import InvalidPipeline
from danubius.pipeline.progress import OBSERVATION, OBSERVED_ROWS
from danubius.pipeline.table_schema import UnfitRows
from danubius.pipeline.tables import FORMAT as TABLE_FORMAT
from danubius.pipeline.tables import Target
from danubius.spark.sink.options import check_columns, write_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from danubius.pipeline.spec import Pipeline, Sink, Source, Step, Table, Trigger, Watermark

TOPIC_FORMAT: Final = "danube"
REASON_MAX: Final = 600
"""Characters of an error that are told; Spark's plans can be pages."""


def frame_of(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> DataFrame:
    """The rows that a sink takes; InvalidPipeline names the source or step that cannot be made."""
    wanted = pipeline.upstream(sink.input)
    frames: dict[str, DataFrame] = {}
    for name in [*pipeline.sources, *in_order(pipeline)]:
        if name not in wanted:
            continue
        source, step = pipeline.sources.get(name), pipeline.steps.get(name)
        try:
            if source is not None:
                frame = _source_frame(spark, pipeline, source)
            else:
                frame = _step_frame(spark, cast("Step", step), frames)
            frame.createOrReplaceTempView(name)
            frame.schema  # noqa: B018 - Connect analyses only when it is asked
        except (PySparkException, DanubiusError, OSError) as error:
            node = source or cast("Step", step)
            raise InvalidPipeline(f"{node.line}: {name}: {reason_of(error)}") from error
        frames[name] = frame
    return frames[sink.input]


def check_target(frame: DataFrame, pipeline: Pipeline, sink: Sink) -> None:
    """Refuse rows that the sink's topic or table cannot take, before there is a checkpoint; UnfitRows says why."""
    try:
        if sink.topic is not None:
            check_columns(frame.schema, write_options(_target_options(pipeline, sink)))
        elif sink.table is None:
            return
        elif sink.table.format != "parquet":
            Target.of({k.lower(): v for k, v in _target_options(pipeline, sink).items()}).check(
                frame.schema
            )
        elif sink.mode != "overwrite":  # which leaves nothing of what is there
            check_parquet(Path(_absolute(sink.table.path)), frame.schema, sink.partition_by)
    except InvalidArgument as error:
        raise UnfitRows(f"{sink.line}: {sink.name}: {error.message}") from error


def start_stream(
    frame: DataFrame, pipeline: Pipeline, sink: Sink, *, is_once: bool
) -> StreamingQuery:
    counted = frame.observe(OBSERVATION, functions.count(functions.lit(1)).alias(OBSERVED_ROWS))
    mode = "update" if sink.mode == "upsert" else sink.mode
    writer: Any = counted.writeStream.queryName(f"{pipeline.name}.{sink.name}").outputMode(mode)
    writer = writer.option("checkpointLocation", _absolute(sink.checkpoint))
    writer = _with_trigger(writer, sink.trigger, is_once=is_once)
    if sink.mode == "upsert":
        # A sink in Python takes no rows that change. A batch write inside the query does, and its tasks still know
        # the query and the batch, so the table takes them once all the same.
        return cast("StreamingQuery", writer.foreachBatch(_upsert_into(pipeline, sink)).start())
    return cast("StreamingQuery", _with_target(writer, pipeline, sink).start())


def _upsert_into(pipeline: Pipeline, sink: Sink) -> Callable[[DataFrame, int], None]:
    def write(frame: DataFrame, batch: int) -> None:
        del batch
        write_batch(frame, pipeline, sink)

    return write


def write_batch(frame: DataFrame, pipeline: Pipeline, sink: Sink) -> None:
    if sink.is_console:
        frame.show(int(sink.options.get("numRows", "20")), truncate=False)
        return
    mode = "append" if sink.mode == "upsert" else sink.mode
    _with_target(frame.write.mode(mode), pipeline, sink).save()


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line: Spark's sentence without its plans and stacks."""
    text = str(error).strip() or type(error).__name__
    for mark in ("SQLSTATE:", "=== Streaming Query", "JVM stacktrace", "\n\tat "):
        text = text.partition(mark)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = [lines[1].removeprefix(": "), *lines[2:]]
    if not lines:
        return type(error).__name__
    # Below a Python traceback the last line is the error itself; otherwise the first one is the sentence.
    sentence = lines[-1] if "Traceback (most recent call last)" in text else lines[0]
    return sentence.split(";'")[0].rstrip("; ")[:REASON_MAX]


def _source_frame(spark: SparkSession, pipeline: Pipeline, source: Source) -> DataFrame:
    if source.table is not None:
        frame = _table_frame(spark, source, source.table)
    else:
        reader: Any = spark.readStream if source.is_stream else spark.read
        options = {"url": pipeline.url} | source.topics | source.options
        frame = cast("DataFrame", reader.format(TOPIC_FORMAT).options(**options).load())
    return _with_watermark(frame, source.watermark)


def _table_frame(spark: SparkSession, source: Source, table: Table) -> DataFrame:
    if table.format != "parquet":
        return read_table(spark, table)
    path = _absolute(table.path)
    if source.is_stream:
        reader = spark.readStream.schema(cast("str", source.schema))
        return reader.options(**source.options).parquet(path)
    return spark.read.options(**source.options).parquet(path)


def read_table(spark: SparkSession, table: Table) -> DataFrame:
    """A Delta or Iceberg table as it is now: Spark reads the files that its log names."""
    path = _absolute(table.path)
    if table.format == "delta":
        from danubius.pipeline.delta import data_files

        schema, files = data_files(Path(path))
    else:
        from danubius.pipeline.iceberg import data_files as iceberg_files

        schema, files = iceberg_files(Path(path), table.catalog)
    kind = from_arrow_schema(schema)
    if not files:
        return spark.createDataFrame([], kind)
    base = path if table.format == "delta" else f"{path}/data"
    return spark.read.schema(kind).option("basePath", base).parquet(*files)


def _step_frame(spark: SparkSession, step: Step, frames: dict[str, DataFrame]) -> DataFrame:
    if step.sql is not None:
        frame = spark.sql(step.sql)
    elif step.python is not None:
        frame = cast(
            "DataFrame", resolve(step)(*(frames[name] for name in step.inputs), **step.arguments)
        )
    else:
        frame = frames[step.inputs[0]]
    frame = _with_watermark(frame, step.watermark)
    if step.deduplicate is not None:
        columns = list(step.deduplicate.columns)
        is_bounded = frame.isStreaming and step.watermark is not None
        frame = (
            frame.dropDuplicatesWithinWatermark(columns)
            if is_bounded
            else frame.dropDuplicates(columns)
        )
    return frame


def _with_watermark(frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None or not frame.isStreaming:
        return frame
    return frame.withWatermark(watermark.column, watermark.delay)


def _with_trigger(writer: Any, trigger: Trigger, *, is_once: bool) -> Any:
    if is_once or trigger.every_ms is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{trigger.every_ms} milliseconds")


def _with_target(writer: Any, pipeline: Pipeline, sink: Sink) -> Any:
    if sink.topic is not None:
        return writer.format(TOPIC_FORMAT).options(**_target_options(pipeline, sink))
    if sink.table is None:
        return writer.format("console").options(**sink.options)
    if sink.table.format == "parquet":
        path = _absolute(sink.table.path)
        writer = writer.format("parquet").option("path", path).options(**sink.options)
        return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
    return writer.format(TABLE_FORMAT).options(**_target_options(pipeline, sink))


def _target_options(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    """Of a sink that is written in Python: a topic, a Delta or an Iceberg table."""
    if sink.topic is not None:
        return {"url": pipeline.url, "topic": sink.topic} | sink.options
    assert sink.table is not None
    options = {
        "path": _absolute(sink.table.path), "tableFormat": sink.table.format,
        "partitionBy": ",".join(sink.partition_by), "keys": ",".join(sink.keys),
        "compactEvery": str(sink.compact_every),
    }  # fmt: skip
    if sink.table.catalog:
        options["catalog"] = sink.table.catalog
    return options | sink.options


def _absolute(path: str) -> str:
    """Executors and Spark's server have other working directories."""
    return path if "://" in path else str(Path(path).absolute())
