"""RecordBatch: a view of one encoded batch, and the check a broker makes of what producers send.

The view decodes nothing until asked, decodes whole columns, and keeps what it decoded. Hostile
bytes raise InvalidBatch, never anything else: `check_batch` and `parse` check what takes constant
time, each column the rest when it is decoded. A view assumes that nobody changes the bytes under
it, apart from `stamp` before it is made.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
from typing import TYPE_CHECKING, Any, Final

from danubius.errors import InvalidArgument, InvalidBatch, MessageTooLarge
from danubius.model.buffers import Buffer
from danubius.model.limits import MESSAGE_BYTES_MAX
from danubius.record.checksum import crc32c
from danubius.record.columns import (
    Columns,
    Values,
    find_columns,
    read_rising,
    read_value,
    read_values,
)
from danubius.record.compression import decompress
from danubius.record.cut import Rows, cut_rows, cut_run
from danubius.record.header import (
    CHECKED_FROM,
    CHUNK,
    CONTROL,
    EXPIRES,
    HEADER_BYTES,
    INT64_MAX,
    KEYS,
    SPARSE,
    Codec,
    Flag,
    Header,
    check_fields,
    read_expiry,
    read_header,
    stamp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "HEADER_BYTES",
    "Buffer",
    "Codec",
    "Flag",
    "Header",
    "RecordBatch",
    "check_batch",
    "read_header",
    "stamp",
]


_PLAIN_BYTES_MAX: Final = MESSAGE_BYTES_MAX
_PLAIN_RECORDS_MAX: Final = 4096
_PLAIN_NUMBER_MAX: Final = INT64_MAX - _PLAIN_RECORDS_MAX


def check_batch(buffer: Buffer) -> Header:
    """Check a produced batch: what a broker runs once before it stores and passes on the bytes.

    Costs the checksum and constant time. Raises InvalidBatch, UnsupportedVersion or
    MessageTooLarge. The columns of a compressed batch are not looked at: consumers check them when
    they decode.
    """
    header = read_header(buffer)
    return header if _is_sound_and_plain(header, buffer) else check_thoroughly(buffer)


def check_thoroughly(buffer: Buffer) -> Header:
    """`check_batch` for a batch of any kind."""
    header = _check_whole(buffer)
    if header.flags & (SPARSE | CONTROL):
        raise InvalidBatch("a producer may not send a batch with the flag SPARSE or CONTROL")
    if not header.codec:
        body = memoryview(buffer)[HEADER_BYTES:]
        columns = find_columns(body, header.count, header.flags)
        if header.count == 1 and columns.payload.data_bytes > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(
                f"the message has {columns.payload.data_bytes} bytes; "
                f"at most {MESSAGE_BYTES_MAX} are allowed"
            )
    return header


def _is_sound_and_plain(header: Header, buffer: Buffer) -> bool:
    """Whether this is a good batch of the most frequent kind: payloads alone, not compressed, small.

    Says the same as `check_thoroughly`, in one step; what it does not know or does not like is left to that one.
    """
    count = header.count
    length = header.length
    body_bytes = header.body_bytes
    if (
        header.flags
        or header.codec
        or length != len(buffer)
        or body_bytes != length - HEADER_BYTES
        or body_bytes != header.stored_bytes
        or length > _PLAIN_BYTES_MAX
        or not 1 <= count <= _PLAIN_RECORDS_MAX
        or header.first_time_us != header.last_time_us
        or header.base_sequence > _PLAIN_NUMBER_MAX
        or header.base_offset > _PLAIN_NUMBER_MAX
        or header.schema_id
        or header.schema_version
    ):
        return False
    data_at = 4 * count + 11 & -8  # behind count + 1 offsets of 4 bytes, padded to 8
    if data_at > body_bytes:
        return False
    first, last = _ends_of_offsets(count).unpack_from(buffer, HEADER_BYTES)
    return (
        first == 0
        and last >= 0
        and (data_at + last + 7 & -8) == body_bytes
        and crc32c(memoryview(buffer)[CHECKED_FROM:]) == header.crc
    )


@functools.lru_cache(maxsize=4096)
def _ends_of_offsets(count: int) -> struct.Struct:
    """Reads the first and the last of count + 1 offsets."""
    return struct.Struct(f"<i{4 * count - 4}xi")


def _check_whole(buffer: Buffer, *, verify: bool = True) -> Header:
    header = read_header(buffer)
    if header.length != len(buffer):
        raise InvalidBatch(
            f"the record batch states {header.length} bytes, but there are {len(buffer)}"
        )
    check_fields(header)
    if verify:
        crc = crc32c(memoryview(buffer)[CHECKED_FROM:])
        if crc != header.crc:
            raise InvalidBatch(
                f"the checksum of the record batch is {crc:#010x}, it states {header.crc:#010x}"
            )
    return header


class RecordBatch:
    """A view of one batch. Make it with `parse`."""

    __slots__ = ("_body", "_columns", "_key_values", "_keys", "_payloads", "buffer", "header")

    def __init__(self, header: Header, buffer: memoryview) -> None:
        self.header = header
        self.buffer = buffer
        self._body: memoryview | None = None
        self._columns: Columns | None = None
        self._payloads: list[bytes] | None = None
        self._key_values: list[bytes] | None = None
        self._keys: list[bytes | None] | None = None

    @classmethod
    def parse(cls, buffer: Buffer, *, verify: bool = True) -> RecordBatch:
        """View exactly one batch. `verify=False` leaves out the checksum, for bytes that were just checked."""
        header = _check_whole(buffer, verify=verify)
        return cls(header, memoryview(buffer))

    def __len__(self) -> int:
        return self.header.count

    def __repr__(self) -> str:
        header = self.header
        return f"<RecordBatch of {header.count} records from offset {header.base_offset}>"

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last record."""
        if self.is_sparse:
            return self.offsets()[-1] + 1
        return self.header.end_offset

    @property
    def is_sparse(self) -> bool:
        return self.header.is_sparse

    @property
    def has_keys(self) -> bool:
        return self.header.flags & KEYS != 0

    @property
    def has_attributes(self) -> bool:
        return self.header.flags & Flag.ATTRIBUTES != 0

    @property
    def is_chunk(self) -> bool:
        """Whether it is a piece of a larger message."""
        return self.header.flags & CHUNK != 0

    @property
    def expires_us(self) -> int | None:
        """When its messages expire, in microseconds since 1970; None: by their topic's rule only."""
        return read_expiry(self.buffer, self.header) if self.header.flags & EXPIRES else None

    def payloads(self) -> list[bytes]:
        """Every payload. The list is kept and handed out again: do not change it."""
        if self._payloads is None:
            self._payloads = read_values(self.body, self.columns.payload)
        return self._payloads

    def payload(self, index: int) -> bytes:
        """One payload, without decoding the others."""
        if self._payloads is not None:
            return self._payloads[index]
        return read_value(self.body, self.columns.payload, range(len(self))[index])

    def payload_data(self) -> tuple[memoryview, memoryview]:
        """The payload column as it is: int32 offsets (n + 1 of them, not checked in the middle) and data."""
        column = self.columns.payload
        offsets = self.body[column.offsets_at : column.offsets_at + 4 * (column.count + 1)]
        data = self.body[column.data_at : column.data_at + column.data_bytes]
        return offsets.cast("i"), data

    def keys(self) -> list[bytes | None]:
        """Every key, None where there is none. The list is kept: do not change it."""
        if self._keys is None:
            self._keys = self._read_keys()
        return self._keys

    def key_hashes(self) -> Sequence[int]:
        """The hash of every key, 0 where there is none. Taken from the batch, not computed."""
        at = self.columns.key_hash_at
        if at is None:
            return bytes(len(self))
        return self.body[at : at + 4 * len(self)].cast("I")

    def publish_times_us(self) -> Sequence[int]:
        """Microseconds since 1970 (UTC) of every record."""
        at = self.columns.times_at
        if at is None:
            return [self.header.first_time_us] * len(self)
        return self.body[at : at + 8 * len(self)].cast("q")

    def attributes(self) -> list[dict[str, str]]:
        """The attributes of every record, an empty dict where there are none. New dicts at every call."""
        columns = self.columns
        if columns.map_offsets_at is None or columns.names is None or columns.values is None:
            return [{} for _ in range(len(self))]
        ends = read_rising(self.body, columns.map_offsets_at, len(self))
        names = _read_texts(self.body, columns.names)
        values = _read_texts(self.body, columns.values)
        pairs = zip(names, values, strict=True)
        return [
            dict(itertools.islice(pairs, end - first)) if first < end else {}
            for first, end in itertools.pairwise(ends)
        ]

    def offsets(self) -> Sequence[int]:
        """The offset of every record: a range, unless the batch is sparse."""
        base = self.header.base_offset
        if not self.is_sparse:
            return range(base, base + len(self))
        deltas = self._deltas()
        return [base + delta for delta in deltas]

    def slice(self, start: int, stop: int) -> RecordBatch:
        """The records from index `start` to before `stop` as a batch of its own, uncompressed, with its own checksum.

        No record is decoded: the columns are cut and their offsets shifted, in C. It keeps the
        offsets, the ledger epoch and the producer's fields; sequence numbers move along.
        """
        if start == 0 and stop == len(self):
            return self
        if not 0 <= start < stop <= len(self):
            raise InvalidArgument(f"no records {start} to {stop} in a batch of {len(self)}")
        return self._cut(cut_run(self.header, self.body, self.columns, start, stop))

    def select(self, indexes: Sequence[int]) -> RecordBatch:
        """The records at these indexes (rising) as a SPARSE batch that keeps their offsets; a run gives a slice."""
        if not indexes:
            raise InvalidArgument("a batch holds at least one record, but no index was given")
        start, stop = indexes[0], indexes[-1] + 1
        if start < 0 or stop > len(self):
            raise InvalidArgument(f"no records {start} to {stop} in a batch of {len(self)}")
        if not all(map(operator.lt, indexes, itertools.islice(indexes, 1, None))):
            raise InvalidArgument("the indexes of the records to select must rise")
        if stop - start == len(indexes):
            return self.slice(start, stop)
        # Several consumers share a batch: decoding it once is then cheaper than finding single records.
        if len(indexes) * 8 >= len(self):
            self.payloads()
            self.key_values()
        rows = Rows(indexes, self._payloads, self._key_values)
        return self._cut(cut_rows(self.header, self.body, self.columns, rows))

    def to_arrow(
        self, topic: str = "", partition: int = 0, names: Sequence[str] | None = None
    ) -> Any:  # pyarrow comes without types
        """A `pyarrow.RecordBatch` with the columns of a topic's DataFrame, or only those of these names.

        Payload, key, publish time and attributes stay where they are: nothing is copied or parsed,
        only validated.
        """
        from danubius.record.arrow import NAMES, Place, to_arrow

        place = Place(topic, partition, self.offsets())
        return to_arrow(
            self.header, self.body, self.columns, place, NAMES if names is None else names
        )

    @property
    def body(self) -> memoryview:
        """The columns, decompressed."""
        if self._body is None:
            header = self.header
            stored = self.buffer[HEADER_BYTES : HEADER_BYTES + header.stored_bytes]
            if header.codec:
                stored = memoryview(decompress(header.codec, stored, header.body_bytes))
            self._body = stored
        return self._body

    @property
    def columns(self) -> Columns:
        """Where the columns lie in the body."""
        if self._columns is None:
            self._columns = find_columns(self.body, self.header.count, self.header.flags)
        return self._columns

    def key_values(self) -> list[bytes] | None:
        """Every key, empty where there is none; None without a key column. The list is kept: do not change it."""
        if self._key_values is None and self.columns.key is not None:
            self._key_values = read_values(self.body, self.columns.key)
        return self._key_values

    def _read_keys(self) -> list[bytes | None]:
        values = self.key_values()
        if values is None:
            return [None] * len(self)
        at = self.columns.key_validity_at
        if at is None:
            return [*values]
        bits = int.from_bytes(self.body[at : at + (len(self) + 7) // 8], "little")
        # Bit i of the bitmap is character i of the text.
        text = f"{bits:0{len(self)}b}"[::-1]
        return [value if bit == "1" else None for value, bit in zip(values, text, strict=False)]

    def _deltas(self) -> list[int]:
        at = self.columns.deltas_at
        assert at is not None
        deltas = self.body[at : at + 4 * len(self)].cast("i").tolist()
        if not all(map(operator.lt, deltas, itertools.islice(deltas, 1, None))):
            raise InvalidBatch("the offset deltas do not rise: the record batch is malformed")
        if self.header.base_offset + deltas[-1] >= INT64_MAX:
            raise InvalidBatch("the offsets of the records go beyond 2**63")
        return deltas

    def _cut(self, batch: bytearray) -> RecordBatch:
        return RecordBatch(read_header(batch), memoryview(batch))


def _read_texts(body: memoryview, column: Values) -> list[str]:
    try:
        return [value.decode() for value in read_values(body, column)]
    except UnicodeDecodeError as error:
        raise InvalidBatch(f"an attribute is not UTF-8: {error}") from error
