"""The pipeline as a graph: cycles, the order of queries, and a drawing in text.

Queries depend on each other through what they share: a sink that writes the topic or the table that another's source
reads comes first. `after` adds what the file cannot show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danubius.pipeline.core.supervision import Until
    from danubius.pipeline.spec import Pipeline, Sink, Source


def find_cycle(pipeline: Pipeline) -> list[str]:
    """Steps that read each other in a circle, the first one again at the end; [] if there are none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done or name not in pipeline.steps:
            return []
        for each in pipeline.steps[name].inputs:
            if cycle := visit(each, [*path, name]):
                return cycle
        done.add(name)
        return []

    for step in pipeline.steps:
        if cycle := visit(step, []):
            return cycle
    return []


def in_order(pipeline: Pipeline) -> list[str]:
    """The steps, each after those it reads."""
    found: list[str] = []

    def visit(name: str) -> None:
        if name in pipeline.steps and name not in found:
            for each in pipeline.steps[name].inputs:
                visit(each)
            found.append(name)

    for step in pipeline.steps:
        visit(step)
    return found


def needs(pipeline: Pipeline, *, is_once: bool) -> dict[str, dict[str, Until]]:
    """What every query waits for before its first start.

    Run once, a query reads what the others have finished. Run on, a topic is there from the start, but a table that
    another query writes is only there after its first batch.
    """
    found: dict[str, dict[str, Until]] = {}
    for sink in pipeline.sinks.values():
        waits: dict[str, Until] = {}
        for other in pipeline.sinks.values():
            if other.name == sink.name or sink.name in found.get(other.name, {}):
                continue
            shared = _shared(pipeline, other, sink)
            if other.name in sink.after or shared:
                ends = is_once or not pipeline.is_stream(other)
                waits[other.name] = (
                    "finished" if ends else "started" if shared == "topic" else "progressed"
                )
        found[sink.name] = waits
    return found


def _shared(pipeline: Pipeline, writer: Sink, reader: Sink) -> str:
    for source in pipeline.sources_of(reader):
        if writer.topic is not None and writer.topic in _topics(source):
            return "topic"
        if (
            writer.table is not None
            and source.table is not None
            and writer.table.path == source.table.path
        ):
            return "table"
    return ""


def _topics(source: Source) -> list[str]:
    named = source.topics.get("topic") or source.topics.get("subscribe") or ""
    return [each.strip() for each in named.split(",")]


def draw(pipeline: Pipeline) -> str:
    """Every sink with what it rests on, as a tree; a view drawn before is only named again."""
    lines: list[str] = []
    drawn: set[str] = set()

    def branch(name: str, prefix: str, is_last: bool) -> None:
        again = name in drawn and name in pipeline.steps
        lines.append(
            f"{prefix}{'└─ ' if is_last else '├─ '}{_about(pipeline, name)}{'  (see above)' if again else ''}"
        )
        drawn.add(name)
        inputs = () if again else pipeline.inputs_of(name)
        for index, each in enumerate(inputs):
            branch(each, prefix + ("   " if is_last else "│  "), index == len(inputs) - 1)

    waits = needs(pipeline, is_once=False)
    for sink in pipeline.sinks.values():
        after = f"  after {', '.join(waits[sink.name])}" if waits[sink.name] else ""
        lines.append(f"sink {sink.name} -> {_target(sink)}{after}")
        branch(sink.input, "", True)
    return "\n".join(lines)


def _about(pipeline: Pipeline, name: str) -> str:
    if name in pipeline.sources:
        source = pipeline.sources[name]
        origin = (
            f"table {source.table.path} ({source.table.format})"
            if source.table
            else "topic " + next(iter(source.topics.values()), "?")
        )
        return f"source {name} <- {origin}, {'stream' if source.is_stream else 'batch'}"
    step = pipeline.steps[name]
    how = (
        "sql"
        if step.sql is not None
        else f"python {step.python}"
        if step.python
        else "rows as they are"
    )
    extras = [f"watermark {step.watermark.column} {step.watermark.delay}"] if step.watermark else []
    extras += (
        [f"without duplicates by {', '.join(step.deduplicate.columns)}"] if step.deduplicate else []
    )
    return f"step {name}: {', '.join([how, *extras])}"


def _target(sink: Sink) -> str:
    if sink.topic is not None:
        return f"topic {sink.topic} ({sink.mode})"
    if sink.table is not None:
        return f"table {sink.table.path} ({sink.table.format}, {sink.mode})"
    return f"console ({sink.mode})"
