"""Encoding: messages, or Arrow columns, become one record batch.

For payloads alone nothing runs once per message in Python: sizes, offsets and the join are single
calls. The result is the producer's: its stamped fields are 0 until the broker writes them.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any, Final

from danubius.errors import InvalidArgument, MessageTooLarge
from danubius.model.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, MESSAGE_BYTES_MAX
from danubius.record.checksum import crc32c, crc32c_bytes
from danubius.record.columns import PADDING, largest_message, pack_offsets, padded, padding
from danubius.record.header import (
    ATTRIBUTES,
    CHECKED,
    CHECKED_FROM,
    CHUNK,
    EXPIRES,
    HEADER_BYTES,
    INT32_MAX,
    INT64_MAX,
    KEY_NULLS,
    KEYS,
    MAGIC,
    TIMES,
    VERSION,
    Codec,
    read_header,
    write_crc,
    write_producer,
)
from danubius.record.key_hash import pack_key_hashes
from danubius.record.seal import UNCHECKED, seal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from danubius.model.buffers import Buffer
    from danubius.record.arrow import MapColumn, ValuesColumn
    from danubius.record.seal import Fields

_ONE: Final = struct.Struct(CHECKED.format + "ii")
"""The header from `version` on, and the payload offsets of a single message."""
_ONE_OFFSETS: Final = struct.Struct("<ii")
_ONE_HASH: Final = struct.Struct("<I4x")
_EXPIRY: Final = struct.Struct("<q")


def encode(  # noqa: PLR0913 - one keyword for each column and header field
    payloads: Sequence[bytes],
    *,
    publish_time_us: int | Sequence[int],
    keys: Sequence[bytes | None] | None = None,
    attributes: Sequence[Mapping[str, str] | None] | None = None,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    schema_id: int = 0,
    schema_version: int = 0,
    codec: Codec = Codec.NONE,
    expires_us: int | None = None,
    is_chunk: bool = False,
) -> bytearray:
    """Encode messages as one batch.

    With `expires_us` all of them expire then, and the body is not compressed: so a broker reads the time in place. With
    `is_chunk` the one message is a piece of a larger one. Raises InvalidArgument for arguments that do not fit each
    other and MessageTooLarge beyond the limits.

    >>> batch = encode([b"hello", b"world"], publish_time_us=1_700_000_000_000_000, keys=[b"a", None])
    """
    count = len(payloads)
    _check_header_fields(count, base_sequence, schema_id, schema_version)
    rest: list[bytes] = []
    flags = _add_keys(rest, keys, count) if keys is not None else 0
    first_time_us, last_time_us, flag = _add_times(rest, publish_time_us, count)
    flags |= flag
    if attributes is not None:
        flags |= _add_attributes(rest, attributes, count)
    if expires_us is not None:
        flags |= _add_expiry(rest, expires_us)
        codec = Codec.NONE
    if is_chunk:
        flags |= _chunk_flag(count)
    try:
        offsets = pack_offsets(list(map(len, payloads)))
        data_bytes = int.from_bytes(offsets[-4:], "little")
        body_bytes = padded(len(offsets)) + padded(data_bytes)
        if rest:
            body_bytes += sum(map(len, rest))
        return _seal_checked(
            (offsets, padding(len(offsets)), *payloads, padding(data_bytes), *rest),
            body_bytes,
            codec,
            (
                flags,
                count,
                producer_id,
                producer_epoch,
                schema_version,
                base_sequence,
                first_time_us,
                last_time_us,
                schema_id,
            ),
        )
    except TypeError as error:
        raise InvalidArgument(f"payloads must be a sequence of bytes: {error}") from error


def encode_one(
    payload: bytes,
    key: bytes | None,
    *,
    publish_time_us: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """What `encode` makes of one message without attributes, byte for byte, several times faster.

    For whoever sends a message, waits, and sends the next: most of the general way is then spent on
    columns that are not there. What may be beyond a limit is left to `encode` to judge.
    """
    data_bytes = len(payload)
    body_bytes = 8 + ((data_bytes + 7) & ~7)
    flags, rest = 0, b""
    if key is not None:
        flags, rest = KEYS, _key_of_one(key)
        body_bytes += len(rest)
    if body_bytes > MESSAGE_BYTES_MAX or not 0 <= base_sequence < INT64_MAX:
        return bytes(
            encode(
                (payload,),
                publish_time_us=publish_time_us,
                keys=(key,),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            )
        )
    try:
        head = _ONE.pack(
            VERSION,
            0,
            flags,
            1,
            producer_id,
            producer_epoch,
            0,
            base_sequence,
            publish_time_us,
            publish_time_us,
            0,
            body_bytes,
            body_bytes,
            0,
            data_bytes,
        )
    except struct.error as error:
        raise InvalidArgument(
            f"a field of the batch header is out of its range: {error}"
        ) from error
    checked = b"".join((head, payload, PADDING[data_bytes & 7], rest))
    return UNCHECKED.pack(MAGIC, HEADER_BYTES + body_bytes, 0, 0, crc32c_bytes(checked)) + checked


def _key_of_one(key: bytes) -> bytes:
    """The key columns of a single message: offsets, data, hash."""
    key_bytes = len(key)
    return b"".join(
        (
            _ONE_OFFSETS.pack(0, key_bytes),
            key,
            padding(key_bytes),
            _ONE_HASH.pack(crc32c_bytes(key)),
        )
    )


def from_arrow(  # noqa: PLR0913 - one keyword for each header field
    batch: Any,
    *,
    publish_time_us: int | Sequence[int],
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    schema_id: int = 0,
    schema_version: int = 0,
    codec: Codec = Codec.NONE,
) -> bytearray:
    """Encode a `pyarrow.RecordBatch` or `Table`: the column `payload`, and `key` and `attributes` if there.

    The columns are taken as they lie in memory, also from a slice. Other columns are ignored.
    """
    from danubius.record.arrow import map_column, values_column

    count: int = batch.num_rows
    names: list[str] = batch.schema.names
    if "payload" not in names:
        raise InvalidArgument(f"there is no column payload; the columns are {', '.join(names)}")
    _check_header_fields(count, base_sequence, schema_id, schema_version)
    payload = values_column("payload", batch.column("payload"))
    if payload.validity is not None:
        raise InvalidArgument(
            "the column payload has nulls: send b'' for a message without content"
        )
    parts: list[bytes] = []
    flags = 0
    _add_packed(parts, payload)
    if "key" in names:
        flags |= _add_key_column(parts, values_column("key", batch.column("key")), count)
    first_time_us, last_time_us, flag = _add_times(parts, publish_time_us, count)
    flags |= flag
    if "attributes" in names:
        flags |= _add_map_column(parts, map_column("attributes", batch.column("attributes")), count)
    return _seal_checked(
        parts,
        sum(map(len, parts)),
        codec,
        (
            flags,
            count,
            producer_id,
            producer_epoch,
            schema_version,
            base_sequence,
            first_time_us,
            last_time_us,
            schema_id,
        ),
    )


def rewrite_producer(
    buffer: bytearray, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Give a batch to another producer or epoch, in place, with a new checksum.

    A client does so with what it has not sent yet, or was refused, when its epoch goes up.
    """
    _check_header_fields(read_header(buffer).count, base_sequence)
    try:
        write_producer(buffer, producer_id, producer_epoch, base_sequence)
    except struct.error as error:
        raise InvalidArgument(f"a producer field is out of its range: {error}") from error
    write_crc(buffer, crc32c(memoryview(buffer)[CHECKED_FROM:]))


def _seal_checked(
    parts: Iterable[Buffer], body_bytes: int, codec: Codec, fields: Fields
) -> bytearray:
    # No message is larger than the whole: only a large body needs a look at its messages.
    if MESSAGE_BYTES_MAX < body_bytes <= BATCH_BYTES_MAX:
        body = b"".join(parts)
        parts = (body,)
        if len(body) == body_bytes:
            size = largest_message(memoryview(body), fields[1], fields[0])
            if size > MESSAGE_BYTES_MAX:
                raise MessageTooLarge(
                    f"a message has {size} bytes with its key and attributes; "
                    f"at most {MESSAGE_BYTES_MAX} are allowed"
                )
    return seal(parts, body_bytes, codec, fields)


def _check_header_fields(
    count: int, base_sequence: int, schema_id: int = 0, schema_version: int = 0
) -> None:
    if not 1 <= count <= BATCH_RECORDS_MAX:
        raise InvalidArgument(
            f"a batch holds 1 to {BATCH_RECORDS_MAX} messages; this one would hold {count}"
        )
    if not 0 <= base_sequence <= INT64_MAX - count:
        raise InvalidArgument(f"the base sequence {base_sequence} is out of its range")
    if not 0 <= schema_id <= INT64_MAX or not 0 <= schema_version <= INT32_MAX:
        raise InvalidArgument(
            f"the schema id {schema_id} or version {schema_version} is out of its range"
        )


def _check_count(name: str, found: int, count: int) -> None:
    if found != count:
        raise InvalidArgument(f"there are {count} payloads, but {found} {name}")


def _add_keys(rest: list[bytes], keys: Sequence[bytes | None], count: int) -> int:
    _check_count("keys", len(keys), count)
    flags = KEYS
    if None in keys:
        validity = _validity(keys)
        if not validity:
            return 0
        packed = validity.to_bytes((count + 7) // 8, "little")
        rest += (packed, padding(len(packed)))
        flags |= KEY_NULLS
    try:
        values = [key if key is not None else b"" for key in keys]
        hashes = pack_key_hashes(values)
        _add_values(rest, values)
    except TypeError as error:
        raise InvalidArgument(f"keys must be bytes or None: {error}") from error
    rest += (hashes, padding(len(hashes)))
    return flags


def _validity(keys: Sequence[bytes | None]) -> int:
    """The bitmap as a number: bit i is set when key i is there."""
    return int("".join(["0" if key is None else "1" for key in reversed(keys)]), 2)


def _add_times(
    rest: list[bytes], times_us: int | Sequence[int], count: int
) -> tuple[int, int, int]:
    """Returns the first and the last time, and the flag."""
    if isinstance(times_us, int):
        return times_us, times_us, 0
    _check_count("publish times", len(times_us), count)
    last = max(times_us)
    if min(times_us) == last:
        return last, last, 0
    try:
        rest.append(struct.pack(f"<{count}q", *times_us))
    except struct.error as error:
        raise InvalidArgument(f"a publish time is out of its range: {error}") from error
    return times_us[0], last, TIMES


def _add_attributes(
    rest: list[bytes], attributes: Sequence[Mapping[str, str] | None], count: int
) -> int:
    _check_count("attributes", len(attributes), count)
    if not any(attributes):
        return 0
    sizes = [len(each) if each else 0 for each in attributes]
    present = [each for each in attributes if each]
    try:
        names = [name.encode() for each in present for name in each]
        values = [value.encode() for each in present for value in each.values()]
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidArgument(
            f"attributes must map text to text that UTF-8 can encode: {error}"
        ) from error
    map_offsets = pack_offsets(sizes)
    rest += (map_offsets, padding(len(map_offsets)))
    _add_values(rest, names)
    _add_values(rest, values)
    return ATTRIBUTES


def _add_expiry(rest: list[bytes], expires_us: int) -> int:
    try:
        rest.append(_EXPIRY.pack(expires_us))
    except struct.error as error:
        raise InvalidArgument(f"the expiry time is out of its range: {error}") from error
    return EXPIRES


def _chunk_flag(count: int) -> int:
    if count != 1:
        raise InvalidArgument(f"a piece of a larger message is alone in its batch, not {count}")
    return CHUNK


def _add_values(rest: list[bytes], values: Sequence[bytes]) -> None:
    offsets = pack_offsets(list(map(len, values)))
    data = b"".join(values)
    rest += (offsets, padding(len(offsets)), data, padding(len(data)))


def _add_packed(rest: list[bytes], column: ValuesColumn) -> None:
    offsets, data = column.offsets, column.data
    rest += (offsets, padding(len(offsets)), data, padding(len(data)))


def _add_key_column(rest: list[bytes], column: ValuesColumn, count: int) -> int:
    ends = struct.unpack(f"<{count + 1}i", column.offsets)
    keys = [column.data[first:end] for first, end in itertools.pairwise(ends)]
    if column.validity is None:
        hashes = pack_key_hashes(keys)
        _add_packed(rest, column)
        rest += (hashes, padding(len(hashes)))
        return KEYS
    # Arrow allows bytes under a null; a record batch has none there.
    bits = column.validity
    present = [key if bits >> index & 1 else None for index, key in enumerate(keys)]
    return _add_keys(rest, present, count)


def _add_map_column(rest: list[bytes], column: MapColumn | list[dict[str, str]], count: int) -> int:
    if isinstance(column, list):
        return _add_attributes(rest, column, count)
    if not any(column.offsets):
        return 0
    rest += (column.offsets, padding(len(column.offsets)))
    _add_packed(rest, column.names)
    _add_packed(rest, column.values)
    return ATTRIBUTES
