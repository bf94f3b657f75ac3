"""Spark's DDL for columns (`id BIGINT NOT NULL, at TIMESTAMP, tags ARRAY<STRING>`) read without Spark.

PySpark parses DDL in the JVM, which the processes that plan and read a data source cannot reach, and which is not there
yet when a pipeline file or an option is checked. So the words that can describe a payload are read here; an error names
the place. Invariant: whatever is accepted here means the same to Spark.
"""

from __future__ import annotations

import difflib
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from danubius.errors import InvalidArgument
from danubius.spark.sql_lexer import Token, split

_SIGNS: Final = "<>(),:"
_SIMPLE: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "byte": ByteType(),
    "smallint": ShortType(),
    "short": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_TYPES: Final = (*_SIMPLE, *_DECIMALS, "array", "map", "struct")
_DEPTH_MAX: Final = 64
"""Types within types: more than anybody writes, and less than Python's stack."""


def parse_ddl(text: str, what: str = "payloadSchema") -> StructType:
    """The columns that `text` declares. `what` is how errors call it."""
    reader = _Reader(text, what)
    fields = reader.columns(end="")
    if not fields:
        raise InvalidArgument(
            f"{what} declares no column: write for example 'id BIGINT, at TIMESTAMP'"
        )
    return StructType(fields)


def nullable(kind: DataType) -> DataType:
    """The same type in which everything may be null."""
    match kind:
        case StructType():
            return StructType([StructField(f.name, nullable(f.dataType)) for f in kind.fields])
        case ArrayType():
            return ArrayType(nullable(kind.elementType))
        case MapType():
            return MapType(nullable(kind.keyType), nullable(kind.valueType))
        case _:
            return kind


class _Reader:
    def __init__(self, text: str, what: str) -> None:
        self._text = text
        self._what = what
        self._tokens = self._split(text)
        self._at = 0
        self._depth = 0

    def columns(self, end: str) -> list[StructField]:
        """Up to `end`, which is left to the caller."""
        fields: list[StructField] = []
        seen: set[str] = set()
        while self._peek().text != end:
            if fields:
                self._expect(",")
            place = self._peek()
            field = self._column()
            if field.name.lower() in seen:
                raise self._error(f"the column {field.name} is declared twice", place)
            seen.add(field.name.lower())
            fields.append(field)
        return fields

    def _column(self) -> StructField:
        name = self._next()
        if name.kind not in {"word", "quoted"}:
            raise self._error("a column name is missing", name)
        if self._peek().text == ":":
            self._next()
        kind = self._type()
        is_required = self._word("not")
        if is_required and not self._word("null"):
            raise self._error("NULL is missing after NOT", self._peek())
        if self._word("comment") and self._next().kind != "string":
            raise self._error(
                "a text in quotes is missing after COMMENT", self._tokens[self._at - 1]
            )
        return StructField(name.name, kind, nullable=not is_required)

    def _type(self) -> DataType:
        self._depth += 1
        token = self._next()
        word = token.text.lower()
        if self._depth > _DEPTH_MAX:
            raise self._error(f"types are nested more than {_DEPTH_MAX} deep", token)
        kind: DataType
        if token.kind == "word" and word in _SIMPLE:
            kind = _SIMPLE[word]
        elif word in _DECIMALS:
            kind = self._decimal(token)
        elif word == "array":
            self._expect("<")
            kind = ArrayType(self._type())
            self._expect(">")
        elif word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            kind = MapType(key, self._type())
            self._expect(">")
        elif word == "struct":
            self._expect("<")
            kind = StructType(self.columns(end=">"))
            self._expect(">")
        else:
            raise self._unknown(token)
        self._depth -= 1
        return kind

    def _decimal(self, token: Token) -> DecimalType:
        precision, scale = "10", "0"
        if self._peek().text == "(":
            self._next()
            precision = self._next().text
            if self._peek().text == ",":
                self._next()
                scale = self._next().text
            self._expect(")")
        if not (precision.isdecimal() and scale.isdecimal()):
            raise self._error("DECIMAL takes two numbers, as in DECIMAL(10, 2)", token)
        if not 0 <= int(scale) <= int(precision) <= 38 or not int(precision):
            raise self._error(
                "DECIMAL has 1 to 38 digits, of which at most all are behind the point", token
            )
        return DecimalType(int(precision), int(scale))

    def _unknown(self, token: Token) -> InvalidArgument:
        if not token.text:
            return self._error("a type is missing", token)
        near = difflib.get_close_matches(token.text.lower(), _TYPES, 1)
        advice = f"did you mean {near[0].upper()}?" if near else "try STRING"
        return self._error(f"{token.text} is not a type that a payload can have: {advice}", token)

    # ------------------------------------------------------------ tokens

    def _split(self, text: str) -> list[Token]:
        tokens = split(text)
        for token in tokens:
            if token.kind == "unfinished" or (token.kind == "sign" and token.text not in _SIGNS):
                raise self._error("this cannot be read", token._replace(text=token.text[0]))
        return [*tokens, Token("end", "", len(text), len(text))]

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _word(self, word: str) -> bool:
        if self._peek().kind == "word" and self._peek().text.lower() == word:
            self._next()
            return True
        return False

    def _expect(self, sign: str) -> None:
        token = self._next()
        if token.text != sign or token.kind != "sign":
            raise self._error(f"{sign} is missing", token)

    def _error(self, problem: str, token: Token) -> InvalidArgument:
        where = f"at {token.text!r}, " if token.text else "at the end, "
        return InvalidArgument(f"{self._what}: {problem} ({where}character {token.start + 1})")
