"""The 88-byte header of a record batch: reading, checking and stamping it.

Every function here costs the same for one record and for a million. A header that `check_fields`
passed has sizes that agree with each other and with the limits, so that what follows may index by
them.
"""

from __future__ import annotations

import enum
import struct
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.errors import InvalidBatch, MessageTooLarge, UnsupportedVersion
from danubius.model.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX

if TYPE_CHECKING:
    from danubius.model.buffers import Buffer

# Columns are read in place by memoryview.cast, which knows native order only.
assert sys.byteorder == "little", "the record batch needs a little-endian machine"

HEADER_BYTES: Final = 88
MAGIC: Final = 0x42524E44
"""The bytes `DNRB`."""
VERSION: Final = 1
CRC_AT: Final = 20
CHECKED_FROM: Final = 24
"""The checksum covers the bytes from here to the end: everything the client wrote behind it."""
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1

HEADER: Final = struct.Struct("<IIQIIBBHIQIIQqqQII")
CHECKED: Final = struct.Struct("<BBHIQIIQqqQII")
"""The fields from `version` on."""
_STAMP: Final = struct.Struct("<QI")
_CRC: Final = struct.Struct("<I")
_PRODUCER: Final = struct.Struct("<QI")
_SEQUENCE: Final = struct.Struct("<Q")
_EXPIRY: Final = struct.Struct("<q")
_STAMP_AT: Final = 8
_PRODUCER_AT: Final = 32
_SEQUENCE_AT: Final = 48

assert HEADER.size == HEADER_BYTES
assert CHECKED.size == HEADER_BYTES - CHECKED_FROM


class Codec(enum.IntEnum):
    """How the body is compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class Flag(enum.IntFlag):
    """Which columns are there, and what kind of batch it is."""

    KEYS = 1
    KEY_NULLS = 2
    TIMES = 4
    ATTRIBUTES = 8
    SPARSE = 16
    EXPIRES = 32
    CHUNK = 64
    CONTROL = 1 << 15


KEYS: Final = int(Flag.KEYS)
KEY_NULLS: Final = int(Flag.KEY_NULLS)
TIMES: Final = int(Flag.TIMES)
ATTRIBUTES: Final = int(Flag.ATTRIBUTES)
SPARSE: Final = int(Flag.SPARSE)
EXPIRES: Final = int(Flag.EXPIRES)
CHUNK: Final = int(Flag.CHUNK)
CONTROL: Final = int(Flag.CONTROL)
_CODEC_LAST: Final = int(Codec.ZSTD)
_FLAGS_KNOWN: Final = KEYS | KEY_NULLS | TIMES | ATTRIBUTES | SPARSE | EXPIRES | CHUNK | CONTROL


class Header(msgspec.Struct, frozen=True, gc=False):
    """The fields of a header, in their order, without the magic."""

    length: int
    base_offset: int
    epoch: int
    crc: int
    version: int
    codec: int
    flags: int
    count: int
    producer_id: int
    producer_epoch: int
    schema_version: int
    base_sequence: int
    first_time_us: int
    last_time_us: int
    schema_id: int
    body_bytes: int
    stored_bytes: int

    @property
    def end_offset(self) -> int:
        """The offset behind the last record. Not for SPARSE batches: ask `RecordBatch.end_offset`."""
        return self.base_offset + self.count

    @property
    def is_sparse(self) -> bool:
        return self.flags & SPARSE != 0

    @property
    def is_control(self) -> bool:
        return self.flags & CONTROL != 0


def read_header(buffer: Buffer, at: int = 0) -> Header:
    """Read the header at a position, checking only magic, version and that `length` can be walked by.

    Raises InvalidBatch or UnsupportedVersion. The batch may be longer than the buffer.
    """
    if at < 0 or len(buffer) - at < HEADER_BYTES:
        raise InvalidBatch(
            f"{max(0, len(buffer) - at)} bytes at position {at} are too few for a record batch: "
            f"its header alone has {HEADER_BYTES}"
        )
    fields = HEADER.unpack_from(buffer, at)
    if fields[0] != MAGIC:
        raise InvalidBatch(
            f"no record batch at position {at}: it starts with {fields[0].to_bytes(4, 'little')!r}, "
            "not with b'DNRB'"
        )
    if fields[5] != VERSION:
        raise UnsupportedVersion(
            f"the record batch at position {at} has format version {fields[5]}; "
            f"this software reads version {VERSION}"
        )
    if fields[1] < HEADER_BYTES or fields[1] & 7:
        raise InvalidBatch(
            f"the record batch at position {at} states a length of {fields[1]} bytes; "
            f"it must be a multiple of 8 and at least {HEADER_BYTES}"
        )
    return Header(*fields[1:])


def check_fields(header: Header) -> None:
    """Check what can be known from the header alone: codec, flags, counts, sizes and limits."""
    problem = _size_problem(header) or _flag_problem(header) or _range_problem(header)
    if problem is not None:
        raise InvalidBatch(problem)


def check_size(body_bytes: int, count: int, flags: int) -> None:
    """Hold a batch to the limit, as it is before compression and with room for offset deltas.

    So everything that a broker cuts from it (uncompressed, and maybe SPARSE) stays within the limit
    too.
    """
    size = HEADER_BYTES + body_bytes + (0 if flags & SPARSE else 4 * count)
    if size > BATCH_BYTES_MAX:
        raise MessageTooLarge(
            f"the record batch takes {size} bytes before compression (4 a record added for offset "
            f"deltas); at most {BATCH_BYTES_MAX} are allowed: send fewer or smaller messages in one"
        )


def read_expiry(buffer: Buffer, header: Header, at: int = 0) -> int:
    """When the messages of a checked batch with the flag EXPIRES expire, in microseconds since 1970."""
    return _EXPIRY.unpack_from(buffer, at + header.length - _EXPIRY.size)[0]


def stamp(buffer: bytearray | memoryview, base_offset: int, epoch: int) -> None:
    """Write the two fields that belong to the broker, in place. The checksum does not cover them."""
    _STAMP.pack_into(buffer, _STAMP_AT, base_offset, epoch)


def write_crc(buffer: bytearray | memoryview, crc: int) -> None:
    _CRC.pack_into(buffer, CRC_AT, crc)


def write_producer(
    buffer: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Write the producer's fields in place. The checksum is stale afterwards.

    Raises struct.error before anything is written if one is out of range.
    """
    producer = _PRODUCER.pack(producer_id, producer_epoch)
    sequence = _SEQUENCE.pack(base_sequence)
    buffer[_PRODUCER_AT : _PRODUCER_AT + len(producer)] = producer
    buffer[_SEQUENCE_AT : _SEQUENCE_AT + len(sequence)] = sequence


def _size_problem(header: Header) -> str | None:
    check_size(max(header.body_bytes, header.stored_bytes), header.count, header.flags)
    room = header.length - HEADER_BYTES
    if header.body_bytes & 7:
        return f"the body length {header.body_bytes} is not a multiple of 8"
    if not 0 <= room - header.stored_bytes < 8:
        return (
            f"the batch length {header.length} does not fit its header and a stored body "
            f"of {header.stored_bytes} bytes"
        )
    if not header.codec and header.stored_bytes != header.body_bytes:
        return (
            f"the body is not compressed, but its stored length {header.stored_bytes} differs from "
            f"its length {header.body_bytes}"
        )
    if not 1 <= header.count <= BATCH_RECORDS_MAX:
        return f"the record count {header.count} is not between 1 and {BATCH_RECORDS_MAX}"
    if header.body_bytes < 4 * (header.count + 1):
        return f"{header.count} records do not fit into a body of {header.body_bytes} bytes"
    return None


def _flag_problem(header: Header) -> str | None:
    if header.codec > _CODEC_LAST:
        return f"the codec {header.codec} is not known: 0 is none, 1 lz4, 2 zstd"
    unknown = header.flags & ~_FLAGS_KNOWN
    if unknown:
        return f"the flags {unknown:#06x} are not known"
    if header.flags & (KEYS | KEY_NULLS) == KEY_NULLS:
        return "the flag KEY_NULLS is set without KEYS"
    if header.flags & EXPIRES and header.codec:
        return (
            "the flag EXPIRES is set on a compressed body, where its time cannot be read in place"
        )
    if header.flags & CHUNK and header.count != 1:
        return f"a batch with the flag CHUNK holds one record, this one holds {header.count}"
    return None


def _range_problem(header: Header) -> str | None:
    if header.last_time_us < header.first_time_us:
        return (
            f"the last publish time {header.last_time_us} lies before "
            f"the first one {header.first_time_us}"
        )
    if not header.flags & TIMES and header.last_time_us != header.first_time_us:
        return "first and last publish time differ, but there is no publish time column"
    # The limits of the signed columns these become in a DataFrame.
    if max(header.base_offset, header.base_sequence) > INT64_MAX - header.count:
        return "the base offset or base sequence is beyond 2**63"
    if header.schema_id > INT64_MAX or header.schema_version > INT32_MAX:
        return "the schema id is beyond 2**63 or the schema version beyond 2**31"
    return None
