"""The last step of every encoder: the parts of a body and the client's fields become one batch with its checksum."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from danubius.errors import InvalidArgument
from danubius.record.checksum import crc32c
from danubius.record.columns import padded, padding
from danubius.record.compression import compress
from danubius.record.header import (
    CHECKED,
    CHECKED_FROM,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    check_size,
    write_crc,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from danubius.model.buffers import Buffer

Fields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""Flags, count, producer id, producer epoch, schema version, base sequence, first and last publish time, schema id:
the header's order. A plain tuple, because a batch of one message is made in 2 µs."""

UNCHECKED: Final = struct.Struct("<IIQII")
"""The header's fields before those that the checksum covers."""
SMALL_BYTES: Final = 128 * 1024
"""Up to here copying is cheaper than to go round it."""


def seal(parts: Iterable[Buffer], body_bytes: int, codec: int, fields: Fields) -> bytearray:
    """Join the parts of a body, compress it if that helps, and put the header before it.

    The stamped fields are 0. Raises InvalidArgument if the parts are not `body_bytes` long or a
    field is out of range.
    """
    check_size(body_bytes, fields[1], fields[0])
    stored_bytes = body_bytes
    if codec:
        body = b"".join(parts)
        stored = compress(codec, body)
        if padded(len(stored)) < len(body) == body_bytes:
            parts, stored_bytes = (stored, padding(len(stored))), len(stored)
        else:
            parts, codec = (body,), 0
    try:
        head = CHECKED.pack(VERSION, codec, *fields, body_bytes, stored_bytes)
    except struct.error as error:
        raise InvalidArgument(
            f"a field of the batch header is out of its range: {error}"
        ) from error
    length = HEADER_BYTES + padded(stored_bytes)
    batch = (
        _join_small(length, head, parts) if length <= SMALL_BYTES else _join(length, head, parts)
    )
    if len(batch) != length:
        raise InvalidArgument(
            f"the columns take {len(batch) - HEADER_BYTES} bytes where {body_bytes} were counted: "
            "payloads and keys must be bytes"
        )
    return batch


def _join_small(length: int, head: bytes, parts: Iterable[Buffer]) -> bytearray:
    """What the checksum covers, then all: two copies, and nothing else to be done."""
    checked = b"".join((head, *parts))
    batch = bytearray(UNCHECKED.pack(MAGIC, length, 0, 0, crc32c(checked)))
    batch += checked
    return batch


def _join(length: int, head: bytes, parts: Iterable[Buffer]) -> bytearray:
    """One copy, with the checksum's place left open: memory that is touched for the first time is dear."""
    batch = bytearray().join((UNCHECKED.pack(MAGIC, length, 0, 0, 0), head, *parts))
    write_crc(batch, crc32c(memoryview(batch)[CHECKED_FROM:]))
    return batch
