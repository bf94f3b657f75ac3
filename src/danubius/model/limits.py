"""Every hard bound of the system, each with its reason. Soft bounds live in the configuration."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

NAME_LENGTH_MAX: Final = 200
"""A name becomes part of paths and metric labels; file systems stop at 255."""

MESSAGE_BYTES_MAX: Final = 8 * MIB
"""Payload, key and attributes of one message. Larger things belong in an object store, their address in a message."""

BATCH_BYTES_MAX: Final = 16 * MIB
"""One record batch with its header, compressed or not. Bounds what a peer can make us hold for one frame."""

BATCH_RECORDS_MAX: Final = 1_000_000
"""Bounds what a consumer decodes at once; at this count the offsets alone are 4 MB."""

FRAME_META_BYTES_MAX: Final = 1 * MIB
"""The command part of a frame: room for 60,000 ack ranges, far below what could hurt."""

FRAME_BYTES_MAX: Final = BATCH_BYTES_MAX + FRAME_META_BYTES_MAX + 64
"""One frame. Deliveries and fetches carry several batches but stay below this too."""

DELAY_MAX_MS: Final = 5 * 366 * 24 * 3600 * 1000
"""How far ahead a message may be scheduled: five years. What is due later than anybody will look is a mistake."""

FETCH_BYTES_MAX: Final = 8 * MIB
"""What one fetch or delivery carries at the most, unless its first batch alone is larger."""

assert MESSAGE_BYTES_MAX < BATCH_BYTES_MAX < FRAME_BYTES_MAX
assert FETCH_BYTES_MAX <= BATCH_BYTES_MAX
