"""The bytes of pool files: what small ledgers share. See docs/internals/ledger.md.

    file header, frame header, bytes, zeros to a multiple of 8, frame header, ... and, once it is full: rows, trailer

A frame holds a run of one ledger's bytes. Its header proves itself; the bytes are proven by the checksums of the
blocks and batches that they consist of. A moved frame, whose bytes lie elsewhere too until it is synced, has a
checksum of its bytes beside that: a crash may have kept the header alone, and it must not hide the original. A footer
is written only to a file that was synced, so what it names needs no such proof.

All checksums but the file header's start from the file's salt, a number that nobody outside knows: so nothing that a
producer sends can pass for a frame, wherever a search starts.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DataDirectoryTooNew
from danubius.record.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.model.buffers import Buffer

POOL_HEADER_BYTES: Final = 64
FRAME_HEADER_BYTES: Final = 48
FOOTER_ROW_BYTES: Final = 40
TRAILER_BYTES: Final = 32
VERSION: Final = 1
SCAN_BYTES: Final = 1 << 20
"""A window of the scan of a file without a footer."""

_FILE_MAGIC: Final = b"DNPL"
_FRAME_MAGIC: Final = b"DNPF"
_TRAILER_MAGIC: Final = b"DNPT"
_FIRST: Final = 1
"""Flag: the ledger starts here, whatever was known under its name before."""
_MOVED: Final = 2
"""Flag: a copy of bytes that lay elsewhere, with a checksum of them."""
_FILE: Final = struct.Struct("<4sHxxIxxxxQ36x")
_FRAME: Final = struct.Struct("<4sHxxQQQIII")
_ROW: Final = struct.Struct("<QQQIIII")
_TRAILER: Final = struct.Struct("<4sHxxQIIxxxx")
_CRC: Final = struct.Struct("<I")

assert _FILE.size + _CRC.size == POOL_HEADER_BYTES
assert _FRAME.size + _CRC.size == FRAME_HEADER_BYTES
assert _ROW.size == FOOTER_ROW_BYTES
assert _TRAILER.size + _CRC.size == TRAILER_BYTES


class Frame(NamedTuple):
    """A run of a ledger's bytes and where it lies: `offset` is that of its first byte in the pool file."""

    topic_id: int
    ledger_id: int
    position: int
    length: int
    epoch: int
    offset: int
    is_first: bool = False
    moved_crc: int | None = None
    """The checksum of the bytes, of a moved frame alone."""

    @property
    def end(self) -> int:
        """Where the next frame starts."""
        return aligned(self.offset + self.length)


def aligned(at: int) -> int:
    return (at + 7) & ~7


def encode_pool_header(number: int, salt: int) -> bytes:
    fields = _FILE.pack(_FILE_MAGIC, VERSION, salt, number)
    return fields + _CRC.pack(crc32c(fields))


def is_pool_header(data: bytes) -> bool:
    """Whether the header is sound. Raises DataDirectoryTooNew for one of a later version."""
    if len(data) < POOL_HEADER_BYTES:
        return False
    fields = data[: _FILE.size]
    if crc32c(fields) != _CRC.unpack_from(data, _FILE.size)[0]:
        return False
    magic, version, _salt, number = _FILE.unpack(fields)
    if magic == _FILE_MAGIC and version > VERSION:
        raise DataDirectoryTooNew(
            f"pool file {number} has format version {version}, this software reads {VERSION}"
        )
    return magic == _FILE_MAGIC


def encode_frame(frame: Frame, salt: int) -> bytes:
    """The header of a frame; its bytes follow."""
    topic_id, ledger_id, position, length, epoch, _, is_first, crc = frame
    flags = (_FIRST if is_first else 0) | (0 if crc is None else _MOVED)
    fields = _FRAME.pack(
        _FRAME_MAGIC, flags, topic_id, ledger_id, position, length, epoch, crc or 0
    )
    return fields + _CRC.pack(crc32c(fields, salt))


def decode_frame(data: Buffer, at: int, offset: int, salt: int) -> Frame | None:
    """The frame whose header is at `at` of the data and at `offset` of its file; None if there is none."""
    fields = bytes(data[at : at + _FRAME.size])
    if fields[:4] != _FRAME_MAGIC or len(data) < at + FRAME_HEADER_BYTES:
        return None
    if crc32c(fields, salt) != _CRC.unpack_from(data, at + _FRAME.size)[0]:
        return None
    _, flags, topic_id, ledger_id, position, length, epoch, crc = _FRAME.unpack(fields)
    return Frame(
        topic_id,
        ledger_id,
        position,
        length,
        epoch,
        offset + FRAME_HEADER_BYTES,
        bool(flags & _FIRST),
        crc if flags & _MOVED else None,
    )


def scan_frames(read: Callable[[int, int], bytes], size: int, salt: int) -> Iterator[Frame]:
    """All whole frames of a file without a footer, in order; `read` takes an offset and a count.

    Behind bytes that are no frame header the search goes on at the next magic on a multiple of 8.
    """
    at = base = POOL_HEADER_BYTES
    window = b""
    while at + FRAME_HEADER_BYTES <= size:
        if not base <= at <= base + len(window) - FRAME_HEADER_BYTES:
            base, window = at, read(at, SCAN_BYTES)
            if len(window) < FRAME_HEADER_BYTES:
                return
        frame = decode_frame(window, at - base, at, salt)
        if frame is None:
            found = _next_magic(window, at - base)
            # Without one the last bytes are looked at again, as a magic may lie across the end.
            at = base + found if found >= 0 else max(at + 8, (base + len(window) - 4) & ~7)
        else:
            if frame.offset + frame.length > size:
                return
            if frame.moved_crc is None or _is_proven(frame, read):
                yield frame
            at = frame.end


def _is_proven(frame: Frame, read: Callable[[int, int], bytes]) -> bool:
    return crc32c(read(frame.offset, frame.length)) == frame.moved_crc


def _next_magic(data: bytes, at: int) -> int:
    # Windows start on multiples of 8, as frames do.
    at = data.find(_FRAME_MAGIC, at + 1)
    while at >= 0 and at % 8:
        at = data.find(_FRAME_MAGIC, at + 1)
    return at


def encode_row(frame: Frame) -> bytes:
    return _ROW.pack(*frame[:6], _FIRST if frame.is_first else 0)


def encode_trailer(rows: bytes | bytearray, at: int, salt: int) -> bytes:
    """The last bytes of a finished file whose rows start at `at`."""
    count = len(rows) // FOOTER_ROW_BYTES
    fields = _TRAILER.pack(_TRAILER_MAGIC, VERSION, at, count, crc32c(rows, salt))
    return fields + _CRC.pack(crc32c(fields, salt))


def read_footer(read: Callable[[int, int], bytes], size: int, salt: int) -> list[Frame] | None:
    """The frames of a finished file as its footer names them; None if there is no sound footer."""
    data = read(size - TRAILER_BYTES, TRAILER_BYTES) if size >= TRAILER_BYTES else b""
    if len(data) < TRAILER_BYTES:
        return None
    fields = data[: _TRAILER.size]
    if crc32c(fields, salt) != _CRC.unpack_from(data, _TRAILER.size)[0]:
        return None
    magic, _, at, count, crc = _TRAILER.unpack(fields)
    if magic != _TRAILER_MAGIC or at + count * FOOTER_ROW_BYTES + TRAILER_BYTES != size:
        return None
    rows = read(at, count * FOOTER_ROW_BYTES)
    if len(rows) != count * FOOTER_ROW_BYTES or crc32c(rows, salt) != crc:
        return None
    return [
        Frame(topic_id, ledger_id, position, length, epoch, offset, bool(flags & _FIRST))
        for topic_id, ledger_id, position, length, epoch, offset, flags in _ROW.iter_unpack(rows)
    ]
