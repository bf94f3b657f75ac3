# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (pyarrow comes without types)
"""Typed payloads: what is in the column `payload`, and what becomes of records that do not fit.

`PayloadSpec` is what the options say, in plain strings, so that it travels to Spark's workers as it is.
`typed(batch, spec)` turns the payload column of an Arrow batch into the declared type; it decides by nothing but the
batch and the spec, so a task that is repeated gives the same rows.

Invariants: a batch of n rows gives n rows, except that mode=deadletter leaves out those that `deliver` has taken (it
returns when they are stored); a record is bad because of its own bytes, whatever batch it is in.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from danubius.errors import InvalidArgument, InvalidName
from danubius.model.ids import parse_topic_name
from danubius.spark.payloads.avro_decoder import AvroDecoder
from danubius.spark.payloads.ddl import nullable, parse_ddl
from danubius.spark.payloads.json_decoder import Decoded, JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OPTIONS: Final = ("payloadFormat", "payloadSchema", "mode", "deadLetterTopic")
FORMATS: Final = ("raw", "string", "json", "avro")
MODES: Final = ("permissive", "failfast", "deadletter")
PAYLOAD: Final = "payload"
CORRUPT: Final = "_corrupt"
"""The payload of a bad record, as it is."""
ERROR: Final = "_error"
"""What is wrong with it; null in good records."""


class PayloadSpec(msgspec.Struct, frozen=True):
    """How payloads are read. Made by `PayloadSpec.from_options`, which checks it."""

    format: str = "raw"
    schema: str = ""
    """Spark's DDL for json, an Avro schema for avro."""
    mode: str = "permissive"
    dead_letter_topic: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> PayloadSpec:
        """Take the options in `OPTIONS`, in any case; raises InvalidArgument with a sentence."""
        given = {name.lower(): value for name, value in options.items()}
        return cls(
            _one_of("payloadFormat", given.get("payloadformat", "raw"), FORMATS),
            given.get("payloadschema", "").strip(),
            _one_of("mode", given.get("mode", "permissive"), MODES),
            given.get("deadlettertopic", "").strip(),
        ).checked()

    def checked(self) -> PayloadSpec:
        """Itself, if its parts fit; else InvalidArgument with a sentence."""
        if self.format == "raw" and self.mode != "permissive":
            raise InvalidArgument(
                f"mode={self.mode} says what becomes of payloads that cannot be read, and"
                " payloadFormat=raw reads all: set payloadFormat to json, avro or string"
            )
        self._check_schema()
        self._check_topic()
        return self

    @property
    def is_raw(self) -> bool:
        return self.format == "raw"

    def columns(self, envelope: StructType) -> StructType:
        """The columns of a DataFrame: those of the topic, the payload as declared, and the two for bad records."""
        if self.is_raw:
            return envelope
        fields = [
            StructField(PAYLOAD, self.payload_type) if field.name == PAYLOAD else field
            for field in envelope.fields
        ]
        if self.mode == "permissive":
            fields += [StructField(CORRUPT, BinaryType()), StructField(ERROR, StringType())]
        return StructType(fields)

    @property
    def payload_type(self) -> Any:  # a DataType
        match self.format:
            case "json":
                return nullable(parse_ddl(self.schema))
            case "avro":
                return AvroDecoder(self.schema).fields
            case "string":
                return StringType()
            case _:
                return BinaryType()

    def _check_schema(self) -> None:
        needs = self.format in {"json", "avro"}
        if needs and not self.schema:
            example = (
                "'id BIGINT, at TIMESTAMP'" if self.format == "json" else "an Avro schema in JSON"
            )
            raise InvalidArgument(f"payloadFormat={self.format} needs payloadSchema: {example}")
        if self.schema and not needs:
            raise InvalidArgument(
                f"payloadSchema is given, but payloadFormat is {self.format}: set payloadFormat to json or avro"
            )
        if needs:
            _decoder(self)

    def _check_topic(self) -> None:
        if self.mode != "deadletter":
            if self.dead_letter_topic:
                raise InvalidArgument(
                    f"deadLetterTopic is used with mode=deadletter only, and mode is {self.mode}"
                )
            return
        if not self.dead_letter_topic:
            raise InvalidArgument(
                "mode=deadletter needs deadLetterTopic, for example /default/orders-dead-letters"
            )
        try:
            parse_topic_name(self.dead_letter_topic)
        except InvalidName as error:
            raise InvalidArgument(f"deadLetterTopic: {error.message}") from error


class BadRecords(NamedTuple):
    """Records that cannot be read, with all columns of the topic, and why: one reason a row."""

    batch: Any  # an Arrow record batch
    reasons: list[str]


def typed(
    batch: Any, spec: PayloadSpec, deliver: Callable[[BadRecords], None] | None = None
) -> Any:
    """`batch` with its payloads as `spec` declares them. `deliver` takes the bad ones of mode=deadletter."""
    at = batch.schema.get_field_index(PAYLOAD)
    if spec.is_raw or at < 0:
        return batch
    raw = batch.column(at)
    values, errors = _decoder(spec).decode(raw)
    columns, names = list(batch.columns), list(batch.schema.names)
    columns[at] = values
    if spec.mode == "permissive":
        columns += _error_columns(raw, errors)
        names += [CORRUPT, ERROR]
    elif errors and spec.mode == "failfast":
        raise _failure(batch, errors)
    done = pa.RecordBatch.from_arrays(columns, names=names)
    if not errors or spec.mode != "deadletter":
        return done
    assert deliver is not None, "mode=deadletter is used with somebody who takes the letters"
    rows = sorted(errors)
    deliver(BadRecords(batch.take(pa.array(rows)), [errors[row] for row in rows]))
    return done.filter(pa.array([row not in errors for row in range(len(done))]))


def _error_columns(raw: Any, errors: dict[int, str]) -> list[Any]:
    count = len(raw)
    if not errors:
        return [pa.nulls(count, pa.binary()), pa.nulls(count, pa.string())]
    rows = pa.array([row if row in errors else None for row in range(count)], pa.int64())
    return [raw.take(rows), pa.array([errors.get(row) for row in range(count)], pa.string())]


def _failure(batch: Any, errors: dict[int, str]) -> InvalidArgument:
    row = min(errors)
    places = {name: batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")}
    return InvalidArgument(
        "the payload at offset {offset} of partition {partition} of {topic} cannot be read: ".format(
            **places
        )
        + f"{errors[row]} (mode=failfast ends the query; mode=permissive puts such payloads into the column"
        f" {CORRUPT}, mode=deadletter into a topic)"
    )


class _Decoder(Protocol):
    def decode(self, column: Any) -> Decoded: ...


class _TextDecoder:
    """Payloads that are UTF-8."""

    def decode(self, column: Any) -> Decoded:
        try:
            return Decoded(column.cast(pa.string()), {})
        except pa.ArrowInvalid:
            pass
        errors: dict[int, str] = {}
        for row, payload in enumerate(column.to_pylist()):
            try:
                payload.decode()
            except UnicodeDecodeError as error:
                errors[row] = f"not UTF-8: {error.reason} at byte {error.start}"
        rows = pa.array([None if row in errors else row for row in range(len(column))], pa.int64())
        return Decoded(column.take(rows).cast(pa.string()), errors)


@functools.lru_cache(maxsize=16)
def _decoder(spec: PayloadSpec) -> _Decoder:
    """One for each spec and process: worker processes live long."""
    match spec.format:
        case "json":
            return JsonDecoder(parse_ddl(spec.schema))
        case "avro":
            return AvroDecoder(spec.schema)
        case _:
            return _TextDecoder()


def _one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    word = value.strip().lower()
    if word not in known:
        raise InvalidArgument(f"{option}={value} is not known: it is one of {', '.join(known)}")
    return word
