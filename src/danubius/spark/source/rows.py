# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""The records of an offset range as Arrow record batches, over the very buffers that arrived.

Invariants: exactly the offsets [begin, end) come out, each once, rising; no row is touched by Python (a message that
was sent in pieces is the exception: it is put together once); a batch that comes out has at most `ROWS_MAX` rows, and
small ones are joined to at least `ROWS_MIN`, because Spark pays for every batch.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from danubius.client.core.chunks import PieceStore, read_piece
from danubius.client.core.whole import WholeBatch
from danubius.errors import OffsetOutOfRange
from danubius.model.limits import MIB
from danubius.record.arrow_joined import Part, to_arrow_joined
from danubius.record.scan import iter_batches
from danubius.spark.connection.fetching import Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.record.batch import RecordBatch
    from danubius.spark.source.planning import Range
    from danubius.spark.source.tiered_fetch import Fetching

ROWS_MIN: Final = 20_000
ROWS_MAX: Final = 40_000
BYTES_MAX: Final = 8 * MIB
"""A batch is not joined beyond this; one that arrived larger is passed on in slices of its own."""


def read_rows(
    client: Fetching, range_: Range, names: Sequence[str], fetch_bytes: int, *, lossy: bool
) -> Iterator[Any]:
    """The rows of a range with the columns of these names, in their order. `lossy`: without those that are gone."""
    pieces = _Pieces(client, range_)
    waiting: list[Part] = []
    rows = size = 0
    at = range_.begin

    def joined() -> Iterator[Any]:
        if waiting:
            yield from _sliced(to_arrow_joined(waiting, range_.topic, range_.partition, names))

    wanted = Wanted(
        range_.name,
        range_.begin,
        range_.end,
        fetch_bytes,
        lossy,
        range_.incarnation,
        range_.record_bytes,
    )
    for payload in client.fetch(wanted):
        for batch in iter_batches(payload.data, verify=not payload.is_proven):
            part = None if batch.header.is_control else _within(batch, at, range_.end)
            # What came before may come again where a range goes from one source to another.
            at = max(at, batch.end_offset)
            if part is None:
                continue
            is_piece = batch.is_chunk
            if not is_piece:
                waiting.append(part)
                rows += part.rows
                size += batch.header.body_bytes
            if is_piece or rows >= ROWS_MIN or size >= BYTES_MAX:
                yield from joined()
                waiting, rows, size = [], 0, 0
            if is_piece and (whole := pieces.take(batch)) is not None:
                yield whole.to_arrow(range_.topic, range_.partition, names)
    yield from joined()


def _within(batch: RecordBatch, begin: int, end: int) -> Part | None:
    """The batch's records with offsets in [begin, end), or None."""
    count = batch.header.count
    if batch.base_offset >= end:
        return None
    if batch.base_offset >= begin and batch.end_offset <= end:
        return Part(batch, 0, count)
    offsets = batch.offsets()
    first = bisect_left(offsets, begin)
    stop = bisect_left(offsets, end)
    return Part(batch, first, stop) if first < stop else None


def _sliced(batch: Any) -> Iterator[Any]:
    count = batch.num_rows
    if count <= ROWS_MAX:
        yield batch
        return
    parts = -(-count // ROWS_MAX)
    cuts = [count * number // parts for number in range(parts + 1)]
    for first, stop in pairwise(cuts):
        yield batch.slice(first, stop - first)


class _Pieces:
    """Messages larger than a batch: shown where their last piece lies, whole."""

    def __init__(self, client: Fetching, range_: Range) -> None:
        self._client = client
        self._topic = range_.name
        self._incarnation = range_.incarnation
        self._store = PieceStore()

    def take(self, batch: RecordBatch) -> RecordBatch | None:
        """The message of this piece if it is the last one; None: it comes later, or never."""
        piece = read_piece(batch.attributes()[0])
        if piece is None:
            return batch
        whole = self._store.take(piece, batch.base_offset, batch.payload(0))
        if whole is None:
            return None
        while (missing := whole.missing) is not None:
            index, offset = missing
            whole.add(index, self._payload_at(offset))
        return WholeBatch(batch, whole.payload(), whole.ranges)

    def _payload_at(self, offset: int) -> bytes:
        wanted = Wanted(self._topic, offset, offset + 1, 1, incarnation=self._incarnation)
        for payload in self._client.fetch(wanted):
            for batch in iter_batches(payload.data, verify=not payload.is_proven):
                if batch.base_offset <= offset < batch.end_offset:
                    return batch.payload(offset - batch.base_offset)
        raise OffsetOutOfRange(
            f"{self._topic} has lost offset {offset}, a piece of a larger message"
        )
