"""Checks of how the parts of a pipeline fit together: references, cycles, modes, what must be installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError
from danubius.pipeline.graph import find_cycle
from danubius.pipeline.problems import Problems, nearest
from danubius.pipeline.sql_names import names_read
from danubius.spark.sink.options import write_options
from danubius.spark.source.options import read_options

if TYPE_CHECKING:
    from danubius.pipeline.lines import Lines
    from danubius.pipeline.spec import Pipeline, Sink

_PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
_BATCH_MODES: Final = {"append", "overwrite"}


def check(pipeline: Pipeline, lines: Lines, problems: Problems) -> None:
    if not pipeline.sinks:
        problems.add(
            lines.name, "there is no sink: add [sink.NAME] with from and topic, table or console"
        )
    _check_views(pipeline, lines, problems)
    _check_sinks(pipeline, lines, problems)
    if problems.sentences:
        return
    if cycle := find_cycle(pipeline):
        problems.add(
            lines.at("step", cycle[0]),
            f"these steps read each other in a circle: {' -> '.join(cycle)}",
        )
        return
    for sink in pipeline.sinks.values():
        _check_mode(pipeline, sink, lines, problems)
    _check_installed(pipeline, lines, problems)
    _check_options(pipeline, lines, problems)


def _check_views(pipeline: Pipeline, lines: Lines, problems: Problems) -> None:
    views = [*pipeline.sources, *pipeline.steps]
    folded = {name.lower() for name in views}
    for step in pipeline.steps.values():
        if step.sql is not None:
            for name, line in names_read(step.sql):
                if name.lower() not in folded:
                    where = lines.inside(("step", step.name, "sql"), line)
                    problems.add(where, f"there is no source or step {name}{nearest(name, views)}")
            continue
        for name in step.inputs:
            if name not in views:
                where = lines.at("step", step.name, "from" if step.python is None else "inputs")
                problems.add(where, f"there is no source or step {name}{nearest(name, views)}")


def _check_sinks(pipeline: Pipeline, lines: Lines, problems: Problems) -> None:
    views = [*pipeline.sources, *pipeline.steps]
    checkpoints: dict[str, str] = {}
    for sink in pipeline.sinks.values():
        if sink.input and sink.input not in views:
            where = lines.at("sink", sink.name, "from")
            problems.add(
                where, f"there is no source or step {sink.input}{nearest(sink.input, views)}"
            )
        for name in sink.after:
            if name not in pipeline.sinks or name == sink.name:
                others = [each for each in pipeline.sinks if each != sink.name]
                where = lines.at("sink", sink.name, "after")
                problems.add(
                    where, f"after names {name}, which is no other sink{nearest(name, others)}"
                )
        if (other := checkpoints.setdefault(sink.checkpoint, sink.name)) != sink.name:
            problems.add(
                lines.at("sink", sink.name, "checkpoint"),
                f"the checkpoint {sink.checkpoint} is that of sink {other}; every sink needs its own",
            )


def _check_mode(pipeline: Pipeline, sink: Sink, lines: Lines, problems: Problems) -> None:
    where = lines.at("sink", sink.name, "mode")
    kind = sink.table.format if sink.table else ""
    if sink.mode == "upsert" and (kind not in _PACKAGES or not sink.keys):
        problems.add(
            where,
            'mode "upsert" is for delta and iceberg tables, with keys = ["…"] that name the row',
        )
    if sink.keys and sink.mode != "upsert":
        problems.add(lines.at("sink", sink.name, "keys"), 'keys are for mode = "upsert"')
    if sink.partition_by and not kind:
        problems.add(lines.at("sink", sink.name, "partition_by"), "partition_by is for tables")
    if sink.compact_every and kind not in _PACKAGES:
        problems.add(
            lines.at("sink", sink.name, "compact_every"),
            'compact_every is for format = "delta" and "iceberg"; Spark\'s log of a Parquet folder names its files',
        )
    if pipeline.is_stream(sink):
        if sink.mode == "overwrite":
            problems.add(
                where,
                'mode "overwrite" is for batch sinks; a stream takes append, update, complete or upsert',
            )
        elif sink.topic is not None and sink.mode != "append" and sink.mode != "upsert":
            problems.add(
                where,
                f'mode "{sink.mode}" is not for topics, which only grow; use "append", aggregations with a watermark',
            )
        elif kind and sink.mode in {"update", "complete"}:
            problems.add(
                where,
                f'mode "{sink.mode}" would add a row to the {kind} table for every change;'
                ' use "append" with a watermark, or "upsert" with keys',
            )
    elif sink.mode not in _BATCH_MODES | {"upsert"}:
        problems.add(
            where,
            f'mode "{sink.mode}" is for streams, and no source of this sink is one; use append',
        )


def _check_installed(pipeline: Pipeline, lines: Lines, problems: Problems) -> None:
    for kind, nodes in (("source", pipeline.sources.values()), ("sink", pipeline.sinks.values())):
        for node in nodes:
            package = _PACKAGES.get(node.table.format) if node.table else None
            if package and find_spec(package) is None:
                problems.add(
                    lines.at(kind, node.name, "format"),
                    f"tables of this format need the Python package {package}: pip install 'danubius[tables]'",
                )


def _check_options(pipeline: Pipeline, lines: Lines, problems: Problems) -> None:
    """The options of topics are checked as the source itself will, before Spark starts."""
    for source in pipeline.sources.values():
        if source.table is None:
            options = {"url": pipeline.url} | source.topics | source.options
            try:
                read_options(options, "stream" if source.is_stream else "batch")
            except DanubiusError as error:
                problems.add(lines.at("source", source.name, "options"), error.message)
    for sink in pipeline.sinks.values():
        if sink.topic is not None:
            try:
                write_options({"url": pipeline.url, "topic": sink.topic} | sink.options)
            except DanubiusError as error:
                problems.add(lines.at("sink", sink.name, "options"), error.message)
