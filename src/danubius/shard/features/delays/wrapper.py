"""The form in which a delayed batch waits: one record of a control batch, whose publish time is when it is due.

The wrapper carries the producer's id, epoch and sequence, so that the delay log recognises repeats like any log, and
the producer's batch byte for byte; in the place of a schema version it has the number of messages inside. What is due
when, and how much, can be read off the headers alone.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from danubius.errors import MessageTooLarge
from danubius.model.limits import BATCH_BYTES_MAX
from danubius.record.columns import padded, padding
from danubius.record.header import CONTROL, HEADER_BYTES
from danubius.record.seal import seal

if TYPE_CHECKING:
    from danubius.record.header import Header

WRAPPER_BYTES: Final = 256
"""What a wrapper adds at the most."""
_OFFSETS: Final = struct.Struct("<ii")
_INNER_AT: Final = HEADER_BYTES + _OFFSETS.size


def check_wrappable(inner: Header) -> None:
    if inner.length > BATCH_BYTES_MAX - WRAPPER_BYTES:
        raise MessageTooLarge(
            f"the batch has {inner.length} bytes; one that waits for its time may have "
            f"{BATCH_BYTES_MAX - WRAPPER_BYTES}: send fewer or smaller messages in one"
        )


def wrap(batch: memoryview, inner: Header, due_ms: int) -> bytearray:
    """Put a checked batch away until it is due."""
    due_us = due_ms * 1000
    fields = (
        CONTROL,
        1,
        inner.producer_id,
        inner.producer_epoch,
        inner.count,
        inner.base_sequence,
        due_us,
        due_us,
        0,
    )
    parts = (_OFFSETS.pack(0, inner.length), batch, padding(inner.length))
    return seal(parts, _OFFSETS.size + padded(inner.length), 0, fields)


def weigh(wrapper: Header) -> tuple[int, int]:
    """How many messages and bytes are in a wrapper."""
    return wrapper.schema_version, wrapper.length - _INNER_AT


def unwrap(buffer: memoryview, at: int) -> memoryview:
    """The batch in the wrapper at this position, in memory of its own."""
    _, length = _OFFSETS.unpack_from(buffer, at + HEADER_BYTES)
    return memoryview(bytearray(buffer[at + _INNER_AT : at + _INNER_AT + length]))
