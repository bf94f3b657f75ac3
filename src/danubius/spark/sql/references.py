"""Topics in a SQL text: which ones it reads (danube.`/default/orders`), and which of its conditions bound what is read.

Tables that Spark alone does not read are found where a query names relations (delta.`tables/orders`). The text is split
into tokens as Spark's lexer splits it, so a topic in a string or a comment is none. A reference is replaced by the
quoted name of a view that is just as long: positions in Spark's error messages stay those of the text that was typed.

Bounds are taken only from a query whose shape leaves no doubt: one SELECT from one topic, conditions joined by AND. The
conditions stay in the query, so a bound has to be right, never tight; whatever is not understood gives none.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from danubius.errors import InvalidArgument, InvalidName
from danubius.model.ids import parse_topic_name
from danubius.spark.sql.relations import relations
from danubius.spark.sql_lexer import Token, place, split

CATALOG: Final = "danube"
TABLE_FORMATS: Final = ("delta", "iceberg")
"""Of tables that are folders; parquet.`folder` Spark knows itself."""


class Reference(NamedTuple):
    """A place that names a topic."""

    topic: str
    first: int
    """Of its three tokens."""
    start: int
    end: int


class TableReference(NamedTuple):
    """A place that names a table by its folder."""

    format: str
    folder: str
    start: int
    end: int

    @property
    def view(self) -> str:
        """Quoted, and as long as what it stands for."""
        return f"`{self.format}.{self.folder.replace('`', '``')}`"


class Bound(NamedTuple):
    """A condition that every row of the result meets: `column operator value`."""

    column: str
    operator: str
    value: str


class Query(NamedTuple):
    """A text with the topics it reads."""

    text: str
    tokens: list[Token]
    references: list[Reference]
    tables: tuple[TableReference, ...] = ()

    @property
    def topics(self) -> list[str]:
        return sorted({reference.topic for reference in self.references})

    def rewritten(self) -> str:
        """The text for Spark, each reference replaced by its view; no other character moves."""
        parts: list[str] = []
        done = 0
        places = [(each.start, each.end, view_of(each.topic)) for each in self.references]
        places += [(each.start, each.end, each.view) for each in self.tables]
        for start, end, view in sorted(places):
            shown = self.text[start:end]
            gap = "".join(character for character in shown.rstrip("`") if character in "\r\n")
            spaces = " " * max(0, len(shown) - len(view) - len(gap))
            parts += [self.text[done:start], view, spaces, gap]
            done = end
        return "".join([*parts, self.text[done:]])


def view_of(topic: str) -> str:
    """The view of a topic, quoted: as long as the reference it stands for."""
    return f"`{CATALOG}.{topic}`"


def as_typed(message: str) -> str:
    """A message of Spark about views, in terms of topics."""
    message = re.sub(rf"`({'|'.join(TABLE_FORMATS)})\.([^`]+)`", r"\1.`\2`", message)
    return re.sub(rf"`{CATALOG}\.(/[^`]*)`", rf"{CATALOG}.`\1`", message)


def parse_query(text: str) -> Query:
    """Find the topics; a name that cannot be one is InvalidArgument, with its place."""
    tokens = split(text)
    references: list[Reference] = []
    tables = [
        TableReference(found.parts[0].lower(), found.parts[1], found.start, found.end)
        for found in relations(text)
        if len(found.parts) == 2
        and found.parts[0].lower() in TABLE_FORMATS
        and text[found.end - 1] == "`"
    ]
    for at in range(len(tokens) - 2):
        catalog, dot, name = tokens[at : at + 3]
        is_catalog = catalog.text.strip("`").lower() == CATALOG and catalog.kind != "string"
        if not is_catalog or dot.text != "." or (at and tokens[at - 1].text == "."):
            continue
        topic = _topic(text, name)
        references.append(Reference(topic, at, catalog.start, name.end))
    return Query(text, tokens, references, tuple(tables))


def _topic(text: str, name: Token) -> str:
    if name.kind != "quoted":
        raise InvalidArgument(
            f"{place(text, name.start)}: a topic is written in backquotes, as {CATALOG}.`/default/orders`"
        )
    try:
        return parse_topic_name(name.text[1:-1].replace("``", "`"))
    except InvalidName as error:
        raise InvalidArgument(f"{place(text, name.start)}: {error.message}") from error


# ---------------------------------------------------------------- bounds

_AFTER_WHERE: Final = {
    "group", "order", "having", "limit", "sort", "cluster", "distribute", "window", "qualify",
}  # fmt: skip
_DOUBTFUL: Final = {
    "or", "xor", "case", "union", "intersect", "except", "minus", "join", "lateral", "pivot", "unpivot",
    "tablesample", "values", "table", "with", "recursive", "match_recognize",
}  # fmt: skip
"""Words after which conditions may hold for part of the rows only, or count rows."""
_CONSTANT: Final = {
    "now", "current_timestamp", "current_date", "timestamp", "timestamp_ltz", "date", "interval", "to_timestamp",
    "timestamp_millis", "timestamp_micros", "timestamp_seconds", "year", "years", "month", "months", "week", "weeks",
    "day", "days", "hour", "hours", "minute", "minutes", "second", "seconds", "millisecond", "milliseconds",
}  # fmt: skip
_SMALL: Final = re.compile(r"\d{1,18}\Z")
_COMPARISONS: Final = {">", ">=", "=", "==", "<", "<="}


def find_bounds(query: Query) -> list[Bound]:
    """Bounds of `offset` (a number) and lower bounds of `publish_time` (an expression without columns).

    No upper ones of `publish_time`: a producer's clock may have gone back, so rows behind a later one may be earlier.
    """
    condition = _condition(query)
    if condition is None:
        return []
    tokens, alias = condition
    bounds: list[Bound] = []
    for conjunct in _conjuncts(tokens):
        bound = _bound(query.text, conjunct, alias)
        if bound is not None:
            bounds.append(bound)
    return bounds


def _condition(query: Query) -> tuple[list[Token], str] | None:
    """What stands behind WHERE, and the topic's alias, if the query has the one simple shape."""
    tokens, references = query.tokens, query.references
    words = [token.word for token in tokens]
    depths = _depths(tokens)
    froms = [at for at, word in enumerate(words) if word == "from" and not depths[at]]
    if (
        len(references) != 1
        or not words
        or words[0] != "select"
        or words.count("select") != 1
        or _DOUBTFUL.intersection(words)
        or any(token.text in {"|", "|>", ";"} for token in tokens)
        or froms != [references[0].first - 1]
    ):
        return None
    at = references[0].first + 3
    alias = ""
    if at < len(tokens) and words[at] == "as":
        at += 1
    if at < len(tokens) and words[at] != "where" and tokens[at].kind in {"word", "quoted"}:
        alias = tokens[at].text.strip("`").lower()
        at += 1
    if at >= len(tokens) or words[at] != "where":
        return None
    stop = at + 1
    while stop < len(tokens) and (depths[stop] or words[stop] not in _AFTER_WHERE):
        stop += 1
    return tokens[at + 1 : stop], alias


def _depths(tokens: list[Token]) -> list[int]:
    depths: list[int] = []
    depth = 0
    for token in tokens:
        depth -= token.text in {")", "]"}
        depths.append(depth)
        depth += token.text in {"(", "["}
    return depths


def _conjuncts(tokens: list[Token]) -> list[list[Token]]:
    """Split at the ANDs, apart from those of BETWEEN."""
    parts: list[list[Token]] = [[]]
    between = 0
    for token, depth in zip(tokens, _depths(tokens), strict=True):
        between += token.word == "between" and not depth
        if token.word == "and" and not depth:
            if not between:
                parts.append([])
                continue
            between -= 1
        parts[-1].append(token)
    return parts


def _bound(text: str, conjunct: list[Token], alias: str) -> Bound | None:
    if len(conjunct) > 3 and alias and conjunct[1].text == ".":
        if conjunct[0].text.strip("`").lower() != alias:
            return None
        conjunct = conjunct[2:]
    if len(conjunct) < 3 or conjunct[0].kind not in {"word", "quoted"}:
        return None
    column = conjunct[0].text.strip("`").lower()
    operator = conjunct[1].text.replace("==", "=")
    if conjunct[1].text not in _COMPARISONS:
        return None
    value = conjunct[2:]
    if column == "offset" and len(value) == 1 and _SMALL.match(value[0].text):
        return Bound(column, operator, value[0].text)
    if column == "publish_time" and operator in {">", ">=", "="} and all(map(_is_constant, value)):
        return Bound(column, operator, text[value[0].start : value[-1].end])
    return None


def _is_constant(token: Token) -> bool:
    if token.kind == "word":
        return token.word in _CONSTANT or token.text.isdecimal()
    return token.kind == "string" or token.text in {"(", ")", "+", "-"}
