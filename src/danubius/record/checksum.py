"""crc32c (Castagnoli), the checksum of every format. The only place that chooses an implementation.

The C library reads `bytes` without a copy and refuses writable buffers. A small writable buffer is
copied (the copy costs less than any way around it); a large one is read in blocks through a view
that the library accepts, so that a batch of 16 MiB does not allocate another 16 MiB.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.model.buffers import Buffer

_BLOCK_BYTES: Final = 256 * 1024
_COPY_BYTES_MAX: Final = 128 * 1024

_library: Any = google_crc32c  # it has no types of its own
_extend: Callable[[int, bytes | ctypes.Array[ctypes.c_char]], int] = _library.extend
crc32c_bytes: Callable[[bytes], int] = _library.value
"""The checksum of `bytes` alone, without the choice between kinds of buffers: for use once per record."""

_Block = ctypes.c_char * _BLOCK_BYTES


def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """The checksum of a buffer; `crc` is the checksum of the bytes before it, to go on from there."""
    if type(buffer) is bytes:
        return _extend(crc, buffer)
    if len(buffer) <= _COPY_BYTES_MAX:
        return _extend(crc, bytes(buffer))
    return _crc32c_blocks(memoryview(buffer), crc)


def _crc32c_blocks(view: memoryview, crc: int) -> int:
    if view.itemsize != 1:
        view = view.cast("B")
    whole = len(view) - len(view) % _BLOCK_BYTES
    for at in range(0, whole, _BLOCK_BYTES):
        # ctypes takes no read-only memory: that one is copied, block by block.
        block = (
            bytes(view[at : at + _BLOCK_BYTES]) if view.readonly else _Block.from_buffer(view, at)
        )
        crc = _extend(crc, block)
    return _extend(crc, bytes(view[whole:]))
