"""A pipeline file as a `Pipeline`, or every mistake in it with its line and what would be right.

Pure but for `load`. What `read` returns can be built: names resolve, there is no cycle, modes fit their sinks.
What only Spark can know (a column that is not there) is told when the views are made, with the step's line.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast, get_args

import msgspec

from danubius.client.core.address import parse_urls
from danubius.errors import DanubiusError
from danubius.model.ids import parse_name, parse_topic_name
from danubius.pipeline.checking import check
from danubius.pipeline.lines import Lines, locate
from danubius.pipeline.problems import InvalidPipeline, Problems, nearest
from danubius.pipeline.spec import (
    Deduplicate,
    Mode,
    Pipeline,
    Restart,
    Sink,
    Source,
    Step,
    Table,
    TableFormat,
    Trigger,
    Watermark,
)
from danubius.pipeline.sql_names import names_read
from danubius.pipeline.values import Reading, Toml, as_text, duration_ms, substitute

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_URL: Final = "danube://127.0.0.1:6651"
FORMATS: Final[tuple[str, ...]] = get_args(TableFormat)
MODES: Final[tuple[str, ...]] = get_args(Mode)
_FASTEST: Final = "fastest"
_AVAILABLE_NOW: Final = "available-now"

_TOP: Final = {
    "name": str, "url": str, "checkpoint": str, "trigger": str, "parameters": dict, "spark": dict,
    "restart": dict, "source": dict, "step": dict, "sink": dict,
}  # fmt: skip
_TOPICS: Final = {
    "topic": "topic",
    "subscribe": "subscribe",
    "subscribe_pattern": "subscribePattern",
}
_SOURCE: Final = dict.fromkeys(_TOPICS, str) | {
    "table": str, "format": str, "catalog": str, "stream": bool, "schema": str, "watermark": dict,
    "options": dict,
}  # fmt: skip
_STEP: Final = {
    "sql": str, "python": str, "from": str, "inputs": list, "arguments": dict, "watermark": dict,
    "deduplicate": list,
}  # fmt: skip
_SINK: Final = {
    "from": str, "topic": str, "table": str, "console": bool, "format": str, "catalog": str,
    "mode": str, "keys": list, "partition_by": list, "compact_every": int, "trigger": str,
    "checkpoint": str, "after": list, "options": dict,
}  # fmt: skip
_RESTART: Final = {"attempts_max": int, "first_delay": str, "delay_max": str}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL: Final = re.compile(r"\d+\s+(milli)?(second|minute|hour|day|week)s?", re.IGNORECASE)


class Given(NamedTuple):
    """What the command line says beside the file; it wins."""

    url: str | None = None
    checkpoint: str | None = None
    parameters: Mapping[str, str] = {}


_NOTHING: Final = Given()


def load(file: Path, given: Given = _NOTHING) -> Pipeline:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
        raise InvalidPipeline(f"cannot read {file}: {reason}") from problem
    return read(text, str(file), given)


def read(text: str, file: str, given: Given = _NOTHING) -> Pipeline:
    """The pipeline; InvalidPipeline with a line for every mistake."""
    try:
        content: Toml = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        line = re.search(r"at line (\d+)", str(problem))
        where = f"{file}:{line[1]}" if line else file
        raise InvalidPipeline(f"{where}: this is not TOML: {problem}") from problem
    problems = Problems()
    lines = locate(text, file)
    content = _with_parameters(content, given.parameters, lines, problems)
    problems.raise_if_any()  # what a missing parameter leaves is no value to complain about
    top = Reading((), content, lines, problems)
    top.only(_TOP)
    pipeline = _pipeline(top, file, given)
    check(pipeline, lines, problems)
    problems.raise_if_any()
    return pipeline


def _with_parameters(
    content: Toml, given: Mapping[str, str], lines: Lines, problems: Problems
) -> Toml:
    table = content.get("parameters")
    parameters = (
        {name: as_text(value) for name, value in cast("Toml", table).items()}
        if isinstance(table, dict)
        else {}
    )
    for name in given:
        if name not in parameters:
            problems.add(
                f"--set {name}", f"the file has no parameter {name}{nearest(name, parameters)}"
            )
    parameters |= given

    def walk(value: object, path: tuple[str, ...]) -> object:
        if isinstance(value, dict):
            return {name: walk(each, (*path, name)) for name, each in cast("Toml", value).items()}
        return substitute(value, parameters, lines.at(*path), problems)

    return cast("Toml", walk({k: v for k, v in content.items() if k != "parameters"}, ()))


def _pipeline(top: Reading, file: str, given: Given) -> Pipeline:
    name = top.text("name") or Path(file).stem
    try:
        parse_name("pipeline", name)
    except DanubiusError as error:
        top.say(error.message, "name")
    url = given.url or top.text("url") or DEFAULT_URL
    try:
        parse_urls(url)
    except DanubiusError as error:
        top.say(error.message, "url")
    checkpoint = given.checkpoint or top.text("checkpoint")
    if checkpoint is None:
        top.say(
            'checkpoint is missing: say where progress is kept, such as checkpoint = "checkpoints/orders"'
        )
    trigger = _trigger(top, Trigger(1_000))
    sources = {name: _source(name, each) for name, each in top.below("source").items()}
    steps = {name: _step(name, each) for name, each in top.below("step").items()}
    seen: dict[str, str] = {}
    for kind, views in (("source", sources), ("step", steps)):
        for view in views:
            if _NAME.fullmatch(view) is None:
                top.say(
                    f"{view} cannot be the name of a view in SQL: use letters, digits and _",
                    kind,
                    view,
                )
            if kind == "step" and view in sources:
                top.say(f"{view} is a source and a step; give one of them another name", kind, view)
            elif (other := seen.setdefault(view.lower(), view)) != view:
                top.say(
                    f"{other} and {view} are one name for SQL; give one of them another", kind, view
                )
    steps = {name: _with_known_inputs(each, seen) for name, each in steps.items()}
    sinks = {
        name: _sink(name, each, trigger, checkpoint or "")
        for name, each in top.below("sink").items()
    }
    return Pipeline(
        name, file, url, checkpoint or "", _restart(top), _spark(top), sources, steps, sinks
    )


def _with_known_inputs(step: Step, views: Mapping[str, str]) -> Step:
    """What SQL reads, by the names that the file has: upper and lower case are the same there."""
    if step.sql is None:
        return step
    names = dict.fromkeys(views.get(name.lower(), name) for name in step.inputs)
    return msgspec.structs.replace(step, inputs=tuple(names))


def _spark(top: Reading) -> dict[str, str]:
    found: dict[str, str] = {}
    waiting: list[tuple[str, object]] = [("", top.table.get("spark", {}))]
    while waiting:
        prefix, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{prefix}.{k}".strip("."), v) for k, v in cast("Toml", value).items()]
        else:
            # [spark] followed by sql.shuffle.partitions = 2 says the same as the full name in quotes.
            name = prefix if prefix.startswith("spark.") else f"spark.{prefix}"
            found[name] = as_text(value)
    return dict(sorted(found.items()))


def _restart(top: Reading) -> Restart:
    table = top.table.get("restart")
    if not isinstance(table, dict):
        return Restart()
    each = Reading(("restart",), cast("Toml", table), top.lines, top.problems)
    each.only(_RESTART)
    usual = Restart()
    restart = Restart(
        max(1, each.number("attempts_max", usual.attempts_max)),
        each.duration("first_delay", usual.first_delay_ms),
        each.duration("delay_max", usual.delay_max_ms),
    )
    if restart.delay_max_ms < restart.first_delay_ms:
        each.say("delay_max is shorter than first_delay; it must be at least as long", "delay_max")
    return restart


def _trigger(each: Reading, default: Trigger) -> Trigger:
    given = each.text("trigger")
    if given is None:
        return default
    if given in {_FASTEST, _AVAILABLE_NOW}:
        return Trigger(0 if given == _FASTEST else None)
    parsed = duration_ms(given)
    if parsed is None:
        each.say(
            f'trigger is {given!r}; it must be "{_FASTEST}", "{_AVAILABLE_NOW}" or a time such as "1s"',
            "trigger",
        )
        return default
    return Trigger(parsed)


def _table(each: Reading) -> Table | None:
    path = each.text("table")
    if path is None:
        for key in ("format", "catalog"):
            if key in each.table:
                each.say(f'{key} is of a table: say which, such as table = "tables/orders"', key)
        return None
    if "://" in path and not path.startswith("file://"):
        each.say(f"table is {path}; it must be a folder that all executors see, as a path", "table")
    kind = each.choice("format", FORMATS, "parquet")
    catalog = each.text("catalog")
    if catalog is not None and kind != "iceberg":
        each.say(f"catalog is for Iceberg; a {kind} table has none", "catalog")
    return Table(path.removeprefix("file://"), cast("TableFormat", kind), catalog)


def _watermark(each: Reading) -> Watermark | None:
    table = each.table.get("watermark")
    if not isinstance(table, dict):
        return None
    inner = Reading((*each.path, "watermark"), cast("Toml", table), each.lines, each.problems)
    inner.only({"column": str, "delay": str})
    column, delay = inner.text("column"), inner.text("delay")
    if column is None or delay is None or _INTERVAL.fullmatch(delay) is None:
        each.say('watermark must be such as { column = "at", delay = "10 minutes" }', "watermark")
        return None
    return Watermark(column, delay)


def _source(name: str, each: Reading) -> Source:
    each.only(_SOURCE)
    topics = {
        option: value for key, option in _TOPICS.items() if (value := each.text(key)) is not None
    }
    table = _table(each)
    if len(topics) + (table is not None) != 1:
        each.say(f"source {name} must have exactly one of {', '.join(_TOPICS)} and table")
    for topic in _topic_names(topics):
        _check_topic(each, topic, "topic" if "topic" in topics else "subscribe")
    is_stream = each.flag("stream", table is None)
    schema = each.text("schema")
    if table is not None and is_stream and (table.format != "parquet" or schema is None):
        each.say(
            "a table can be followed (stream = true) if it is Parquet and its schema is given,"
            ' such as schema = "id STRING, at TIMESTAMP"; leave stream out to read it as it is',
            "stream",
        )
    if schema is not None and (table is None or table.format != "parquet"):
        each.say("schema is for Parquet tables that are followed; others know theirs", "schema")
    return Source(
        name, each.at(), topics, table, is_stream, schema, _watermark(each), each.strings("options")
    )


def _topic_names(topics: dict[str, str]) -> list[str]:
    if "topic" in topics:
        return [topics["topic"]]
    return [topic.strip() for topic in topics.get("subscribe", "").split(",") if topic.strip()]


def _check_topic(each: Reading, topic: str, key: str) -> None:
    try:
        parse_topic_name(topic)
    except DanubiusError as error:
        each.say(error.message, key)


def _step(name: str, each: Reading) -> Step:
    each.only(_STEP)
    sql, python, passed = each.text("sql"), each.text("python"), each.text("from")
    if (sql is not None) + (python is not None) + (passed is not None and python is None) != 1:
        each.say(f"step {name} must have exactly one of sql, python (with inputs) and from")
    if python is not None and re.fullmatch(r"[\w.]+:\w+", python) is None:
        each.say(f'python is {python!r}; it must be "package.module:function"', "python")
    inputs = each.texts("inputs") or ((passed,) if passed else ())
    if sql is not None:
        if inputs:
            each.say("inputs are for python; sql names what it reads itself", "inputs")
        inputs = tuple(dict.fromkeys(found.name for found in names_read(sql)))
    elif python is not None and not inputs:
        each.say(
            'inputs is missing: say which views the function is given, such as inputs = ["orders"]'
        )
    arguments = each.table.get("arguments")
    columns = each.texts("deduplicate")
    return Step(
        name, each.at(), sql, python, inputs,
        cast("Toml", arguments) if isinstance(arguments, dict) else {},
        _watermark(each), Deduplicate(columns) if columns else None,
    )  # fmt: skip


def _sink(name: str, each: Reading, trigger: Trigger, checkpoint: str) -> Sink:
    each.only(_SINK)
    topic, table = each.text("topic"), _table(each)
    if (topic is not None) + (table is not None) + each.flag("console", False) != 1:
        each.say(f"sink {name} must have exactly one of topic, table and console = true")
    if topic is not None:
        _check_topic(each, topic, "topic")
    view = each.text("from")
    if view is None:
        each.say(f'sink {name} does not say what it takes: from = "…" names a source or a step')
    return Sink(
        name, each.at(), view or "", topic, table,
        cast("Mode", each.choice("mode", MODES, "append")),
        each.texts("keys"), each.texts("partition_by"), each.number("compact_every", 0),
        _trigger(each, trigger),
        each.text("checkpoint") or f"{checkpoint.rstrip('/')}/{name}",
        each.texts("after"), each.strings("options"),
    )  # fmt: skip
