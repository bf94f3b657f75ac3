"""Options of writing, as people write them in `.option(...)`, checked; and the columns of what they write.

`WRITE_OPTIONS` is the whole list; docs/spark.md has its meaning in words.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danubius.client.core.address import parse_urls
from danubius.client.options import parse_codec
from danubius.errors import InvalidArgument
from danubius.model.limits import KIB, MIB
from danubius.record.header import Codec
from danubius.spark.connection.blocking_link import Patience
from danubius.spark.source.options import (
    DEFAULT_URL,
    URL_VARIABLE,
    duration,
    size,
    topic_name,
    unknown_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType

BATCH_BYTES_MAX: Final = 8 * MIB
IGNORED: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark's own, which it passes on."""
WRITTEN: Final = ("payload", "key", "attributes", "topic")
PASSED_OVER: Final = (
    "partition",
    "offset",
    "publish_time",
    "producer",
    "schema_id",
    "schema_version",
)
"""What reading a topic gives besides; the broker says it anew, so that one topic can be written to another."""
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "payload": ("binary", "string"),
    "key": ("binary", "string"),
    "attributes": ("map<string,string>",),
    "topic": ("string",),
}


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that shapes a write."""

    url: str
    topic: str = ""
    """Empty: a column says it."""
    codec: Codec = Codec.NONE
    batch_bytes: int = 1 * MIB
    """Rows are gathered up to about this size for one record batch."""
    patience: Patience = Patience()


def _codec(name: str, value: str) -> Codec:
    word = value.strip().lower()
    try:
        return parse_codec(None if word in {"none", "uncompressed"} else word)
    except InvalidArgument:
        raise InvalidArgument(f"option {name} is {value!r}: write none, lz4 or zstd") from None


def _batch_size(name: str, value: str) -> int:
    number = size(name, value)
    if not KIB <= number <= BATCH_BYTES_MAX:
        raise InvalidArgument(f"option {name} is {value!r}: write 1k to {BATCH_BYTES_MAX // MIB}m")
    return number


def _url(_name: str, value: str) -> str:
    parse_urls(value)
    return value


WRITE_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "url": ("url", _url),
    "topic": ("topic", topic_name),
    "path": ("topic", topic_name),
    "compression": ("codec", _codec),
    "batchBytes": ("batch_bytes", _batch_size),
    "connectTimeout": ("connect_s", duration),
    "requestTimeout": ("request_s", duration),
    "reconnectTimeout": ("reconnect_s", duration),
}
"""The field that an option sets, and how it is read."""
_BY_FOLD: Final = {name.lower(): name for name in WRITE_OPTIONS}


def write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Check all options."""
    fields: dict[str, Any] = {}
    for key, value in raw.items():
        if key.lower() in IGNORED:
            continue
        name = _BY_FOLD.get(key.lower())
        if name is None:
            raise unknown_option(key, WRITE_OPTIONS)
        field, read = WRITE_OPTIONS[name]
        if field in fields:
            raise InvalidArgument(f"options topic and {name} say the same thing: give one of them")
        fields[field] = read(name, value)
    waits = {name: fields.pop(name) for name in Patience.__struct_fields__ if name in fields}
    if "url" not in fields:
        fields["url"] = _url("url", os.environ.get(URL_VARIABLE, DEFAULT_URL))
    return WriteOptions(**fields, patience=Patience(**waits))


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Refuse a DataFrame that cannot be written, in words that name the column."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "payload" not in found:
        raise InvalidArgument(
            f"there is no column payload; the columns are {', '.join(found)}. Select one, for example"
            " to_json(struct(*)) AS payload"
        )
    unknown = [name for name in found if name not in WRITTEN and name not in PASSED_OVER]
    if unknown:
        raise InvalidArgument(
            f"columns {', '.join(unknown)} have no place in a topic, which takes {', '.join(WRITTEN)}: put them into"
            " the payload, for example by to_json(struct(*)), or drop them"
        )
    for name, allowed in _TYPES.items():
        if name in found and found[name] not in allowed:
            raise InvalidArgument(
                f"column {name} is {found[name]}; it must be {' or '.join(allowed)}: cast it, or write it as JSON by"
                " to_json"
            )
    if not options.topic and "topic" not in found:
        raise InvalidArgument(
            "say where to write: the option topic (/default/orders), or a column topic for each row"
        )
