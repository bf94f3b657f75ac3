"""Walking bytes that hold one batch after the other: strictly, or as far as they are sound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from danubius.errors import DanubiusError, InvalidBatch
from danubius.record.batch import RecordBatch
from danubius.record.header import Header, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.model.buffers import Buffer


class Scan(msgspec.Struct, frozen=True):
    """The longest sound prefix of a buffer."""

    valid_bytes: int
    """The first `valid_bytes` bytes are whole batches with right checksums."""
    batches: list[tuple[int, Header]]
    """Where each of them starts, and its header."""
    problem: str | None
    """Why the scan stopped before the end of the buffer; None if it did not."""


def iter_batches(buffer: Buffer, *, verify: bool = True) -> Iterator[RecordBatch]:
    """Every batch of a buffer that holds nothing else. Raises InvalidBatch where it is damaged or cut off."""
    view = memoryview(buffer)
    at = 0
    while at < len(view):
        batch = _batch_at(view, at, verify=verify)
        yield batch
        at += batch.header.length


def scan(buffer: Buffer) -> Scan:
    """Find the longest prefix that is whole, sound batches. Never raises: what a crash or a bad disk left is a fact."""
    view = memoryview(buffer)
    batches: list[tuple[int, Header]] = []
    at = 0
    while at < len(view):
        try:
            header = _batch_at(view, at, verify=True).header
        except DanubiusError as error:
            return Scan(at, batches, f"at byte {at}: {error.message}")
        batches.append((at, header))
        at += header.length
    return Scan(at, batches, None)


def _batch_at(view: memoryview, at: int, *, verify: bool) -> RecordBatch:
    length = read_header(view, at).length
    if length > len(view) - at:
        raise InvalidBatch(f"the batch of {length} bytes is cut off: {len(view) - at} are there")
    return RecordBatch.parse(view[at : at + length], verify=verify)
