"""Spark imports every installed package called `pyspark_*` and registers its `DefaultSource`: this one is `danube`."""

from __future__ import annotations

from danubius.spark.data_source import DanubeDataSource as DefaultSource

__all__ = ["DefaultSource"]
