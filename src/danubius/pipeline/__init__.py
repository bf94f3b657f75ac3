"""Pipelines: sources, steps and sinks declared in a file, run on Spark and supervised.

`reading` turns a file into a `spec.Pipeline` or into sentences about every mistake in it; `graph` draws and orders it;
`building` makes DataFrames of it; `run` keeps its queries alive as `core.supervision` decides. Only `building`,
`tables` and `run` need pyspark: a file is checked without it.
"""
