"""The form in which a staged batch waits: one record of a control batch whose header says for whom.

In the place of the sequence it has the number of the stage, in that of the schema the topic it is for, in that of the
schema version the number of messages inside. So what belongs to whom can be read off the headers alone.
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


def check_stageable(inner: Header) -> None:
    if inner.length > BATCH_BYTES_MAX - WRAPPER_BYTES:
        raise MessageTooLarge(
            f"the batch has {inner.length} bytes; one that is staged may have {BATCH_BYTES_MAX - WRAPPER_BYTES}: "
            "put fewer or smaller messages in one"
        )


def wrap_staged(
    batch: memoryview, inner: Header, stage: int, target: int, now_us: int
) -> bytearray:
    """Put a checked batch away for a topic."""
    fields = (CONTROL, 1, 0, 0, inner.count, stage, now_us, now_us, target)
    parts = (_OFFSETS.pack(0, inner.length), batch, padding(inner.length))
    return seal(parts, _OFFSETS.size + padded(inner.length), 0, fields)


def stage_of(wrapper: Header) -> int:
    return wrapper.base_sequence


def target_of(wrapper: Header) -> int:
    return wrapper.schema_id


def messages_of(wrapper: Header) -> int:
    return wrapper.schema_version


def unwrap_staged(buffer: memoryview, at: int) -> memoryview:
    """The batch in the wrapper at this position, in memory of its own."""
    _, length = _OFFSETS.unpack_from(buffer, at + HEADER_BYTES)
    return memoryview(bytearray(buffer[at + _INNER_AT : at + _INNER_AT + length]))
