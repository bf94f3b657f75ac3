"""The hash of a message key: what Key-Shared and partition routing go by, without decoding keys.

It is part of the record batch format (the key hash column) and never changes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from danubius.record.checksum import crc32c, crc32c_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


def key_hash(key: bytes) -> int:
    """crc32c of the key, an unsigned 32-bit number. A message without a key has hash 0."""
    return crc32c(key)


def pack_key_hashes(keys: Sequence[bytes]) -> bytes:
    """The key hash column; null keys come as empty ones, whose hash is 0 too."""
    return struct.pack(f"<{len(keys)}I", *map(crc32c_bytes, keys))
