"""The record batches of a range from where they lie: objects, read here, and the broker for the rest.

A `TieredFetch` has the one method of a `FetchClient` that `read_rows` knows, so rows are made by the same code wherever
bytes come from. Requests to the object store are made ahead, a few at a time, by threads.

Invariants:
- Batches come in the order of their offsets, and none is left out: where an object fails, what is left of it is asked
  of the broker (`auto`), or the read ends with an error that names it (`tier`). A batch may come twice at a seam,
  whole: `read_rows` takes each offset once.
- Every block is proven by its checksum before it is handed out; one that fails is read once more.
- At most `AHEAD` pieces of `bytes_max` (or of one block, if that is larger) are on their way or wait.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import structs

from danubius.errors import (
    DanubiusError,
    LedgerDamaged,
    ObjectNotFound,
    OffsetOutOfRange,
    UnsupportedVersion,
)
from danubius.spark.connection.fetching import Payload
from danubius.spark.source.locating import list_ledgers
from danubius.spark.source.planning import Segment, seams
from danubius.tier.core.object_format import parse_name
from danubius.tier.unpacking import Tail, group_rows, read_blocks, read_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from danubius.record.ledger_file import BlockRow
    from danubius.spark.connection.fetching import FetchClient, Wanted
    from danubius.spark.source.options import ReadFrom
    from danubius.spark.source.planning import ColdObject, Range
    from danubius.tier.objects import ObjectStore

AHEAD: Final = 4
THREADS: Final = 3
_PIECE_BYTES_MIN: Final = 1 << 16
_OF_THE_OBJECT: Final = (LedgerDamaged, ObjectNotFound, UnsupportedVersion)
"""What is wrong with one object, and not with the way to all of them."""

log = logging.getLogger(__name__)


class Fetching(Protocol):
    """What gives record batches."""

    def fetch(self, wanted: Wanted) -> Iterator[Payload]:
        """Record batches that hold what is wanted, in order."""
        ...


class Piece(NamedTuple):
    """Blocks of one object, proven. The offset behind them is `end`."""

    segment: Segment
    end: int
    data: bytes


class Broken(NamedTuple):
    """From offset `at` on an object gives nothing."""

    segment: Segment
    at: int
    error: DanubiusError


class TieredFetch:
    """For one range, in one task."""

    def __init__(
        self,
        client: FetchClient,
        range_: Range,
        read_from: ReadFrom,
        open_store: Callable[[], ObjectStore],
    ) -> None:
        """`open_store` is asked when objects are to be read, and may say that they cannot be."""
        self._client = client
        self._range = range_
        self._read_from = read_from
        self._open_store = open_store
        self._is_down = False
        """The store failed: nobody waits for it again in this task."""
        self.object_segments = 0
        self.object_bytes = 0
        self.broker_reads = 0
        self.fallbacks = 0

    def __str__(self) -> str:
        return (
            f"{self.object_segments} segments ({self.object_bytes} bytes) from objects of {self._range.tier_url},"
            f" {self.broker_reads} from the broker, {self.fallbacks} of them because an object failed"
        )

    def fetch(self, wanted: Wanted) -> Iterator[Payload]:
        """As that of a FetchClient."""

        def ask(first: int, stop: int) -> Iterator[Payload]:
            self.broker_reads += 1
            return self._client.fetch(structs.replace(wanted, begin=first, end=stop))

        segments = deque(self._segments(wanted.begin, wanted.end))
        while segments:
            first = segments[0].begin
            if run := _take(segments, cold=not self._is_down):
                for found in self._read(run, wanted.bytes_max):
                    if isinstance(found, Piece):
                        yield Payload(memoryview(found.data), is_proven=True)
                        continue
                    self._give_up(found)
                    if self._is_down:
                        # What is left of the run is the broker's too.
                        behind = run[run.index(found.segment) + 1 :]
                        segments.extendleft(
                            reversed([Segment(found.at, found.segment.end), *behind])
                        )
                        break
                    yield from ask(found.at, found.segment.end)
                continue
            stop = first
            while segments and (segments[0].object is None or self._is_down):
                stop = segments.popleft().end
            yield from ask(first, stop)

    # ------------------------------------------------------------ where offsets lie

    def _segments(self, begin: int, end: int) -> tuple[Segment, ...]:
        range_ = self._range
        if range_.begin <= begin and end <= range_.end:
            objects = [segment.object for segment in range_.segments if segment.object is not None]
            return seams(begin, end, objects)
        # A piece of a large message that lies before the range. The plan does not know it.
        if self._read_from != "tier":
            return (Segment(begin, end),)
        listing = list_ledgers(self._client, [range_.name])
        segments = seams(begin, end, listing.objects_of(range_.name, range_.incarnation))
        for segment in segments:
            if segment.object is None:
                raise OffsetOutOfRange(
                    f"readFrom is tier, and offsets {segment.begin} to {segment.end - 1} of {range_.name} are not in"
                    " cold storage: set readFrom to auto"
                )
        return segments

    # ------------------------------------------------------------ objects

    def _read(self, run: Sequence[Segment], bytes_max: int) -> Iterator[Piece | Broken]:
        try:
            objects = self._open_store()
        except DanubiusError as error:
            yield from (Broken(segment, segment.begin, error) for segment in run)
            return
        for found in read_ahead(objects, run, max(bytes_max, _PIECE_BYTES_MIN)):
            if isinstance(found, Piece):
                self.object_bytes += len(found.data)
                self.object_segments += found.end >= found.segment.end
            yield found

    def _give_up(self, broken: Broken) -> None:
        """Let the broker give what an object does not, or say that it is not there."""
        segment, at, error = broken
        what = (
            f"offsets {at} to {segment.end - 1} of {self._range.name} could not be read from"
            f" {self._range.tier_url}: {error.message}"
        )
        if self._read_from == "tier":
            raise type(error)(f"{what}. With readFrom = auto the broker is asked for them")
        if not isinstance(error, _OF_THE_OBJECT):
            self._is_down = True
        self.fallbacks += 1
        log.warning("%s; the broker is asked for them", what)


def _take(segments: deque[Segment], *, cold: bool) -> list[Segment]:
    """The segments in objects that come next, none if those are not to be read."""
    run: list[Segment] = []
    while cold and segments and segments[0].object is not None:
        run.append(segments.popleft())
    return run


# ---------------------------------------------------------------- reading ahead


class _Ahead(NamedTuple):
    """Something that was asked for: blocks, or an object that turned out to be broken."""

    segment: Segment
    at: int
    end: int
    coming: Future[bytes] | DanubiusError

    @property
    def is_broken(self) -> bool:
        """Known to be: whoever reads hears of it before more is asked of a store that may be down."""
        return isinstance(self.coming, DanubiusError)


def read_ahead(
    objects: ObjectStore, run: Sequence[Segment], piece_bytes: int
) -> Generator[Piece | Broken]:
    """The blocks of segments that follow each other. Behind a `Broken` comes nothing more of its segment."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="danubius-cold")
    broken: set[Segment] = set()
    waiting: deque[_Ahead] = deque()
    asked = _ask(pool, objects, run, piece_bytes, broken)
    try:
        while True:
            while len(waiting) < AHEAD and not (waiting and waiting[-1].is_broken):
                more = next(asked, None)
                if more is None:
                    break
                waiting.append(more)
            if not waiting:
                return
            ahead = waiting.popleft()
            if ahead.segment in broken:
                continue
            got = _wait(ahead)
            if isinstance(got, bytes):
                yield Piece(ahead.segment, ahead.end, got)
            else:
                broken.add(ahead.segment)
                yield Broken(ahead.segment, ahead.at, got)
    finally:
        # What is under way ends within the store's deadline, and nobody has to wait for that.
        pool.shutdown(wait=False, cancel_futures=True)


def _wait(ahead: _Ahead) -> bytes | DanubiusError:
    if isinstance(ahead.coming, DanubiusError):
        return ahead.coming
    try:
        return ahead.coming.result()
    except DanubiusError as error:
        return error


def _ask(
    pool: ThreadPoolExecutor,
    objects: ObjectStore,
    run: Sequence[Segment],
    piece_bytes: int,
    broken: set[Segment],
) -> Iterator[_Ahead]:
    """Asks for one thing whenever it is asked for another; indexes one object ahead."""
    tails = deque(pool.submit(_open, objects, segment) for segment in run[:1])
    for number, segment in enumerate(run):
        tails.extend(pool.submit(_open, objects, other) for other in run[number + 1 : number + 2])
        try:
            rows = tails.popleft().result().rows_of(segment.begin, segment.end)
        except DanubiusError as error:
            yield _Ahead(segment, segment.begin, segment.end, error)
            continue
        at = segment.begin
        for group in group_rows(rows, piece_bytes):
            if segment in broken:
                break
            end = group[-1].end_offset
            yield _Ahead(segment, at, end, pool.submit(_read, objects, segment, group))
            at = end


def _open(objects: ObjectStore, segment: Segment) -> Tail:
    """How the blocks of a segment lie in its object, which must be the one that was planned with."""
    planned = _object_of(segment)
    tail = read_tail(objects, planned.name, planned.data_bytes, planned.object_bytes)
    footer = tail.footer
    named = parse_name(planned.name)
    if (
        named is None
        or named[1:] != (footer.topic_id, footer.ledger_id, footer.epoch)
        or (footer.base_offset, footer.end_offset) != (planned.base, planned.end)
    ):
        raise LedgerDamaged(f"the object {planned.name} is of another ledger")
    return tail


def _read(objects: ObjectStore, segment: Segment, rows: Sequence[BlockRow]) -> bytes:
    name = _object_of(segment).name
    try:
        return read_blocks(objects, name, rows)
    except LedgerDamaged as error:
        raise LedgerDamaged(
            f"in the object {name} {error.message}", error.first, error.end
        ) from None


def _object_of(segment: Segment) -> ColdObject:
    assert segment.object is not None
    return segment.object
