"""The data source `danube`: what Spark calls first, in all four directions.

    spark.read.format("danube").option("topic", "/default/orders").load()

Where this package is installed Spark finds it by itself (`pyspark_danube`). Everything is imported when it is
needed: registering costs every Spark session, whether it reads topics or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from danubius.spark.source.columns import schema_of
from danubius.spark.source.options import read_options
from danubius.spark.source.tasks import plainly

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from danubius.spark.source.batch_reader import DanubeBatchReader
    from danubius.spark.source.stream_reader import DanubeStreamReader

FORMAT = "danube"


class DanubeDataSource(DataSource):
    """Topics as DataFrames. The argument names are Spark's: it passes them by keyword."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @plainly
    def schema(self) -> StructType:
        return schema_of(read_options(self.options))

    @plainly
    def reader(self, schema: StructType) -> DanubeBatchReader:
        from danubius.spark.source.batch_reader import DanubeBatchReader

        return DanubeBatchReader(read_options(self.options, "batch"), schema)

    @plainly
    def streamReader(self, schema: StructType) -> DanubeStreamReader:  # noqa: N802  # Spark's name
        from danubius.spark.source.stream_reader import DanubeStreamReader

        return DanubeStreamReader(read_options(self.options, "stream"), schema)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from danubius.spark.sink.writer import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from danubius.spark.sink.writer import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)
