"""The body's codecs: lz4 blocks and zstd frames, bounded by the length that the header states.

The packages are imported when first used: a client that never compresses needs neither.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

from danubius.errors import InvalidArgument, InvalidBatch
from danubius.model.limits import BATCH_BYTES_MAX
from danubius.record.header import Codec

if TYPE_CHECKING:
    from danubius.model.buffers import Buffer

_ZSTD_LEVEL: Final = 3


def compress(codec: int, body: bytes) -> bytes:
    """Compress a body as one lz4 block without a size, or one zstd frame."""
    if codec == Codec.LZ4:
        return _package("lz4.block").compress(body, store_size=False)
    # A context of its own: they may not be shared between threads, and cost little beside the work.
    return _package("zstandard").ZstdCompressor(level=_ZSTD_LEVEL).compress(body)


def decompress(codec: int, stored: Buffer, body_bytes: int) -> bytes:
    """Decompress a body to exactly the stated length, never allocating much more than that."""
    decoder = _decompress_lz4 if codec == Codec.LZ4 else _decompress_zstd
    body = decoder(stored, body_bytes)
    if len(body) != body_bytes:
        raise InvalidBatch(
            f"the body decompresses to {len(body)} bytes, the header says {body_bytes}"
        )
    return body


def _decompress_lz4(stored: Buffer, body_bytes: int) -> bytes:
    lz4_block = _package("lz4.block")
    try:
        return lz4_block.decompress(stored, uncompressed_size=body_bytes)
    except (lz4_block.LZ4BlockError, ValueError) as error:
        raise InvalidBatch(f"the lz4 body does not decompress: {error}") from error


def _decompress_zstd(stored: Buffer, body_bytes: int) -> bytes:
    zstandard = _package("zstandard")
    try:
        # The library allocates what the frame says, so the frame may not say more than the header.
        stated: int = zstandard.frame_content_size(stored)
        if stated not in (-1, body_bytes):
            raise InvalidBatch(f"the zstd frame states {stated} bytes, the header {body_bytes}")
        context = zstandard.ZstdDecompressor(max_window_size=BATCH_BYTES_MAX)
        return context.decompress(stored, max_output_size=body_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidBatch(f"the zstd body does not decompress: {error}") from error


@functools.cache
def _package(name: str) -> Any:  # Any: neither package has types.
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidArgument(
            f"this batch needs the Python package {name.split('.')[0]}: "
            "pip install 'danubius[compression]'"
        ) from error
