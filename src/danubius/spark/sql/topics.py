"""SQL over topics: danube.`/default/orders` in a query is a view of that topic, its history and what comes.

    from danubius.spark import session
    from danubius.spark.sql import Topics

    topics = Topics(session(), "danube://127.0.0.1:6651")
    topics.query("SELECT count(*) FROM danube.`/default/orders`").show()

A view has the columns of the topic with `payload` as text; with a schema for its JSON, `payload` is a structure and its
fields stand beside the others (but never instead of them: a field named `offset` is `payload.offset`).

Invariant: what is left out by the options of a read is left out by the query too; see `sql.references` for how that is
made sure of.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from danubius.errors import DanubiusError, InvalidArgument
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.connection.fetching import client_of
from danubius.spark.payloads import inference
from danubius.spark.payloads.ddl import parse_ddl
from danubius.spark.payloads.typed import PAYLOAD
from danubius.spark.source.discovery import Extent, find_partitions, measure
from danubius.spark.source.options import read_options
from danubius.spark.source.planning import Range
from danubius.spark.source.rows import read_rows
from danubius.spark.sql.references import as_typed, find_bounds, parse_query, view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from danubius.spark.source.offsets import Slot
    from danubius.spark.sql.references import Bound, Query

ENVELOPE: Final = (
    "topic", "partition", "offset", "publish_time", "key", "payload", "attributes", "producer", "schema_id",
    "schema_version", "_corrupt", "_error",
)  # fmt: skip
READS: Final = (
    "select", "with", "from", "values", "table", "describe", "desc", "explain", "show",
)  # fmt: skip
SAMPLE_RECORDS: Final = 2_000
"""The newest of each partition that a schema is inferred from."""
FAILURES: Final = (PySparkException, Py4JError)
"""What Spark raises."""
_OURS: Final = re.compile(r"danubius\.errors\.\w+: (.+)")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
_CONDITION: Final = re.compile(r"^\[[A-Z_.0-9]+\] ")
_PLACE: Final = re.compile(r"[;.]* ?\(?line (\d+),? pos(?:ition)? (\d+)\)?;?$")
_LINES_MAX: Final = 2


class Topics:
    """Runs queries over the topics of a broker."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        *,
        schemas: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        tables: Callable[[str, str], DataFrame] | None = None,
    ) -> None:
        """`schemas`: DDL of JSON payloads by topic, "" for all others; `options`: of every read.

        `tables` reads a table by its format (delta, iceberg) and its folder.
        """
        self._spark = spark
        self._url = url
        self._schemas = dict(schemas or {})
        self._options = dict(options or {})
        self._tables = tables

    def query(self, text: str, *, is_stream: bool = False) -> DataFrame:
        """The result, not computed yet. Mistakes are InvalidArgument, with the place in the text."""
        query = check_query(text)
        bounds = self._bounds(query, is_stream=is_stream)
        try:
            for topic in query.topics:
                view = self._view(topic, bounds, is_stream=is_stream)
                view.createOrReplaceTempView(view_of(topic))
            if self._tables is not None:
                for table in query.tables:
                    frame = self._tables(table.format, table.folder)
                    frame.createOrReplaceTempView(table.view)
            return self._spark.sql(query.rewritten())
        except FAILURES as error:
            raise plain(error) from None

    def _view(self, topic: str, bounds: Mapping[str, str], *, is_stream: bool) -> DataFrame:
        schema = self._schemas.get(topic, self._schemas.get("", ""))
        options = (
            {"payloadFormat": "string"}
            if not schema
            else {"payloadFormat": "json", "payloadSchema": schema}
        )
        options |= {"url": self._url, "topic": topic, **bounds} | self._options
        reader = self._spark.readStream if is_stream else self._spark.read
        frame = reader.format("danube").options(**options).load()
        if not schema:
            return frame
        names = {name.lower() for name in ENVELOPE}
        fields = [
            field.name for field in parse_ddl(schema).fields if field.name.lower() not in names
        ]
        quoted = ["`" + name.replace("`", "``") + "`" for name in fields]
        return frame.selectExpr("*", *(f"{PAYLOAD}.{name} AS {name}" for name in quoted))

    def _bounds(self, query: Query, *, is_stream: bool) -> dict[str, str]:
        """Options that leave out what the query would leave out."""
        given = {name.lower() for name in self._options}
        if any(name.startswith(("starting", "ending")) for name in given):
            return {}
        bounds = find_bounds(query)
        options: dict[str, str] = {}
        times = [bound for bound in bounds if bound.column == "publish_time"]
        micros = [found for bound in times if (found := self._evaluate(bound)) is not None]
        if micros:
            options["startingTimestamp"] = str(max(micros) // 1000)
        offsets = [bound for bound in bounds if bound.column == "offset"]
        if offsets:
            extents = find_extents(self._url, query.topics[0])
            low, high = offset_range(offsets)
            if low:
                options.pop("startingTimestamp", None)
                options["startingOffsets"] = _to_json(extents, low)
            if high is not None and not is_stream:
                options["endingOffsets"] = _to_json(extents, high)
        return options

    def _evaluate(self, bound: Bound) -> int | None:
        """Microseconds since 1970, as Spark reads the expression; now() is a little earlier than in the query."""
        try:
            row = self._spark.sql(f"SELECT unix_micros(CAST(({bound.value}) AS TIMESTAMP))").first()
        except FAILURES:
            return None  # the query has the same expression, and will say what is wrong with it
        micros = row[0] if row else None
        return micros if isinstance(micros, int) and micros > 0 else None


def follow(frame: DataFrame, show: Callable[[DataFrame], None], checkpoint: str) -> StreamingQuery:
    """Start a streaming query whose new and changed rows go to `show`, batch by batch.

    Rows that a sort or a limit needs all of come whole each time.
    """

    def take(batch: DataFrame, _number: int) -> None:
        show(batch)

    refusal: Exception | None = None
    for mode in ("update", "complete"):
        writer = frame.writeStream.foreachBatch(take).outputMode(mode)
        try:
            return writer.option("checkpointLocation", f"{checkpoint}/{mode}").start()
        except FAILURES as error:
            refusal = refusal or error
    assert refusal is not None
    raise plain(refusal) from None


def check_query(text: str) -> Query:
    """Its topics; refuses what is not a question, before Spark is started."""
    query = parse_query(text)
    first = next((token.text.lower() for token in query.tokens if token.text != "("), "")
    if not first:
        raise InvalidArgument("the query is empty")
    if first not in READS:
        raise InvalidArgument(
            f"{first.upper()} is not a query: this runs SELECT and the like; to change data, use danubius pipeline"
        )
    return query


def check_topics(url: str, query: Query) -> None:
    """Whether the broker is there and has the topics, before Spark is started."""
    for topic in query.topics:
        find_extents(url, topic)


def find_extents(url: str, topic: str) -> dict[Slot, Extent]:
    """What the partitions of a topic hold now."""
    options = read_options({"url": url, "topic": topic})
    client = client_of(url, Patience())
    extents: dict[Slot, Extent] = {}
    for slot, extent in measure(client, find_partitions(client, options)).items():
        if isinstance(extent, DanubiusError):
            raise extent
        extents[slot] = extent
    return extents


def offset_range(bounds: list[Bound]) -> tuple[int, int | None]:
    """[low, high) that all bounds of `offset` allow; no high is None."""
    low, high = 0, None
    for _, operator, text in bounds:
        value = int(text)
        if operator in {">", ">=", "="}:
            low = max(low, value + (operator == ">"))
        if operator in {"<", "<=", "="}:
            end = value + (operator != "<")
            high = end if high is None else min(high, end)
    return low, None if high is None else max(low, high)


def _to_json(extents: Mapping[Slot, Extent], offset: int) -> str:
    """The same offset in every partition, within what is there."""
    places: dict[str, dict[str, int]] = {}
    for slot, extent in extents.items():
        at = min(max(offset, extent.start), extent.end)
        places.setdefault(slot.topic, {})[str(slot.partition)] = at
    return msgspec.json.encode(places).decode()


def infer_schema(url: str, topic: str) -> inference.Inferred:
    """Columns for a topic of JSON, from its newest records."""
    options = read_options({"url": url, "topic": topic})
    client = client_of(url, Patience())
    names = find_partitions(client, options)
    payloads: list[bytes] = []
    for slot, extent in find_extents(url, topic).items():
        begin = max(extent.start, extent.end - SAMPLE_RECORDS)
        range_ = Range(slot.topic, slot.partition, names[slot], begin, extent.end)
        for batch in read_rows(client, range_, [PAYLOAD], options.fetch_bytes, lossy=True):
            payloads += batch.column(PAYLOAD).to_pylist()
    inferred = inference.infer(payloads)
    if not inferred.fields.fields:
        raise InvalidArgument(
            f"no schema can be inferred for {topic}: of its newest {len(payloads)} records {inferred.objects} are JSON"
            " objects with fields; give one with --schema"
        )
    return inferred


def plain(error: Exception) -> DanubiusError:
    """What a person needs to know of an error that came through Spark: a sentence, without frames of two languages."""
    if isinstance(error, DanubiusError):
        return error
    text = str(error).strip()
    ours = _OURS.findall(text)
    if ours:
        return InvalidArgument(_STATE.sub("", ours[-1]).strip())
    lines = [line.strip() for line in text.splitlines()]
    lines = lines[: next((at for at, line in enumerate(lines) if _is_appendix(line)), len(lines))]
    sentence = _STATE.sub("", " ".join(lines[:_LINES_MAX]) or type(error).__name__)
    sentence = _CONDITION.sub("", _PLACE.sub(r" (line \1, position \2)", sentence.strip(" ;")))
    return InvalidArgument(as_typed(sentence))


def _is_appendix(line: str) -> bool:
    """Plans, stack traces and the text of the query."""
    return line.startswith(
        ("==", "'", "+-", "at ", "Traceback", "JVM stacktrace", "Search path:", "Py4JJava")
    )
