"""Puts the pieces of larger messages together for a lane, and fetches those that did not come its way.

Made when the first piece comes. A delivery with a last piece waits here until all of its pieces are there, and what is
behind it waits with it: so the order stays. Pieces whose last one never came are looked at after a while: if the log
goes on without it, their producer gave up or died, and they are given to the lane to be acknowledged; if it is there,
another consumer of the subscription has the message, and acknowledges all of it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from danubius.client.connection.session import expect
from danubius.client.core.chunks import Held, Piece, PieceStore, Whole, read_piece
from danubius.client.core.retry import Backoff
from danubius.client.core.whole import WholeBatch
from danubius.client.messages import ReceivedBatch, Segment, open_delivery
from danubius.errors import DanubiusError, InvalidBatch, Retry
from danubius.model.limits import MIB
from danubius.model.subscription import AtOffset
from danubius.record.scan import iter_batches
from danubius.runtime import ambient
from danubius.wire.commands import AnyCommand, Fetch, Fetched

if TYPE_CHECKING:
    from danubius.client.connection.route import Route
    from danubius.client.connection.session import Session
    from danubius.client.core.acks import Range
    from danubius.record.batch import RecordBatch

LOOK_BYTES: Final = 1 * MIB
"""Read at once when a last piece is looked for."""
LOOK_SLACK_MS: Final = 600_000
"""Clocks of producers differ: the last piece is looked for up to what was published so much later."""

log = logging.getLogger(__name__)


class GathererOwner(Protocol):
    """The lane."""

    def on_gathered(self, batch: ReceivedBatch, errors: list[DanubiusError]) -> None:
        """What `open` said would come. Errors are of messages whose pieces are not there any more."""
        ...

    def on_unwhole(self, ranges: list[Range], reason: str) -> None:
        """These pieces of a message cannot be put together now."""
        ...

    def on_left_behind(self, ranges: list[Range]) -> None:
        """Nobody will ever complete the message of these pieces."""
        ...


class _Waiting:
    """A delivery whose messages are being completed."""

    __slots__ = ("batch", "errors", "parts")

    def __init__(self, batch: ReceivedBatch) -> None:
        self.batch = batch
        self.parts: list[Segment | tuple[Whole, RecordBatch]] = []
        self.errors: list[DanubiusError] = []


class Gatherer:
    """The larger messages of one lane."""

    def __init__(
        self, route: Route, topic: str, owner: GathererOwner, patience_s: float | None
    ) -> None:
        """`patience_s`: after so long without its last piece a message is looked at; None: never."""
        self._route = route
        self._topic = topic
        self._owner = owner
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._store = PieceStore()
        self._waiting: _Waiting | None = None
        self._life = 0
        """Rises when everything is dropped: answers to older questions mean nothing."""
        self._backoff = Backoff(ambient.chance)
        self._timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._looking: tuple[str, Held] | None = None

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    def spared(self, below: int) -> list[Range]:
        """Pieces with lower offsets of messages that are not there yet."""
        return self._store.spared(below)

    def open(self, batch: ReceivedBatch) -> ReceivedBatch | None:
        """The batch with whole messages instead of pieces; None: `on_gathered` brings it later."""
        assert self._waiting is None
        waiting = _Waiting(batch)
        for segment in batch.segments:
            record = segment.batch
            piece = _piece_of(record) if record.is_chunk else None
            if piece is None:
                waiting.parts.append(segment)
                continue
            try:
                whole = self._store.take(piece, record.base_offset, record.payload(0))
            except InvalidBatch as error:
                waiting.errors.append(error)
                self._owner.on_unwhole([(record.base_offset, record.base_offset + 1)], str(error))
                continue
            if whole is not None:
                waiting.parts.append((whole, record))
        if self._store.held and self._look_timer is None and self._patience_s is not None:
            self._look_timer = self._loop.call_later(self._patience_s, self._look)
        if not waiting.errors and all(_missing(part) is None for part in waiting.parts):
            return self._build(waiting)
        self._waiting = waiting
        self._fetch_or_end()
        return None

    def resume(self) -> None:
        """There is a connection again."""
        if self._waiting is not None and self._timer is None:
            self._fetch_or_end()

    def clear(self) -> None:
        """Drop everything: it comes again, or nobody wants it."""
        self._life += 1
        self._store.clear()
        self._waiting = self._looking = None
        for timer in (self._timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._look_timer = None

    # ------------------------------------------------------------ fetching what did not come

    def _fetch_or_end(self) -> None:
        self._timer = None
        waiting = self._waiting
        assert waiting is not None
        for part in waiting.parts:
            missing = _missing(part)
            if missing is not None:
                assert not isinstance(part, Segment)
                self._fetch(part[0], *missing)
                return
        # Not from inside `open`: its caller does not know yet that it has to wait.
        self._timer = self._loop.call_later(0, self._end_waiting)

    def _end_waiting(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._owner.on_gathered(self._build(waiting), waiting.errors)

    def _build(self, waiting: _Waiting) -> ReceivedBatch:
        segments: list[Segment] = []
        for part in waiting.parts:
            if isinstance(part, Segment):
                segments.append(part)
                continue
            whole, record = part
            try:
                payload = whole.payload()
            except InvalidBatch as error:
                waiting.errors.append(error)
                self._owner.on_unwhole(whole.ranges, error.message)
                continue
            segments.append(Segment(WholeBatch(record, payload, whole.ranges), 0, 1))
        return ReceivedBatch(self._topic, segments, waiting.batch.redelivery_count)

    def _fetch(self, whole: Whole, index: int, offset: int) -> None:
        session = self._route.session_or_none
        if session is None:
            return  # the lane drops all of it, or resumes
        command = Fetch(self._topic, AtOffset(offset), 1)
        session.call(command, partial(self._on_fetched, session, self._life, whole, index, offset))

    def _on_fetched(  # noqa: PLR0913  # what was asked, and the answer
        self,
        session: Session,
        life: int,
        whole: Whole,
        index: int,
        offset: int,
        reply: AnyCommand | DanubiusError,
        data: memoryview,
    ) -> None:
        if life != self._life or self._waiting is None:
            return
        if type(reply) is not Fetched:
            error = reply if isinstance(reply, DanubiusError) else expect(reply, "FETCH")
            if error.retry is Retry.AFTER_LOOKUP:
                self._route.look_again(session)  # the lane drops all of it, or resumes
            elif error.is_retryable:
                delay_s = self._backoff.next_delay_s()
                self._timer = self._loop.call_later(delay_s, self._fetch_or_end)
            else:
                self._give_up(whole, error)
            return
        self._backoff.reset()
        try:
            payload = _piece_at(self._topic, data, offset, whole.piece, index)
        except InvalidBatch as error:
            self._give_up(whole, error)
            return
        whole.add(index, payload)
        self._fetch_or_end()

    def _give_up(self, whole: Whole, error: DanubiusError) -> None:
        """A piece is gone for good, or damaged: say so, and go on with what is behind it."""
        waiting = self._waiting
        assert waiting is not None
        words = (
            f"the message of {whole.piece.count} pieces at offset {whole.last_offset} of {self._topic}"
            f" cannot be put together: {error.message}"
        )
        waiting.parts = [part for part in waiting.parts if part[0] is not whole]
        waiting.errors.append(InvalidBatch(words))
        self._owner.on_unwhole(whole.ranges, words)
        self._fetch_or_end()

    # ------------------------------------------------------------ pieces that were left behind

    def _look(self) -> None:
        """Look after the first message that should have been there by now."""
        self._look_timer = None
        assert self._patience_s is not None
        if not self._store.held:
            return
        self._look_timer = self._loop.call_later(self._patience_s, self._look)
        if self._looking is not None and self._looking[0] in self._store.held:
            return
        late_ms = ambient.wall_ns() // 1_000_000 - int(self._patience_s * 1000)
        for message_id, held in self._store.held.items():
            if held.until_ms < late_ms and held.last is None:
                self._looking = message_id, held
                self._look_at(message_id, held, held.newest + 1)
                return

    def _look_at(self, message_id: str, held: Held, offset: int) -> None:
        session = self._route.session_or_none
        if session is None:
            self._looking = None
            return
        command = Fetch(self._topic, AtOffset(offset), LOOK_BYTES, skip_damaged=True)
        session.call(command, partial(self._on_looked, self._life, message_id, held))

    def _on_looked(
        self,
        life: int,
        message_id: str,
        held: Held,
        reply: AnyCommand | DanubiusError,
        data: memoryview,
    ) -> None:
        if life != self._life or self._store.held.get(message_id) is not held:
            return
        if type(reply) is not Fetched:
            self._looking = None  # and again at the next time
            return
        is_over = reply.next >= reply.end_offset
        for record in iter_batches(data, verify=False):
            if record.header.first_time_us // 1000 > held.until_ms + LOOK_SLACK_MS:
                is_over = True
                break
            piece = _piece_of(record) if record.is_chunk else None
            if piece is None or piece.id != message_id:
                continue
            if piece.is_last:
                # Another consumer has the message, or it is on its way here: these go with it.
                self._store.held.pop(message_id, None)
                self._looking = None
                return
            held.until_ms = max(held.until_ms, piece.until_ms)
        if not is_over:
            self._look_at(message_id, held, reply.next)
            return
        self._looking = None
        self._store.forget(message_id)
        log.warning(
            "pieces of a message that was never completed are acknowledged",
            extra={"topic": self._topic, "ranges": held.ranges},
        )
        self._owner.on_left_behind(held.ranges)


def _missing(part: Segment | tuple[Whole, RecordBatch]) -> tuple[int, int] | None:
    return None if isinstance(part, Segment) else part[0].missing


def _piece_of(record: RecordBatch) -> Piece | None:
    try:
        return read_piece(record.attributes()[0])
    except InvalidBatch:  # whoever takes it as a message hears of it
        return None


def _piece_at(topic: str, data: memoryview, offset: int, last: Piece, index: int) -> bytes:
    """The payload of the piece that was fetched, if it is the one."""
    found = open_delivery(topic, data, offset, offset + 1, 0).segments
    piece = _piece_of(found[0].batch) if len(found) == 1 and found[0].batch.is_chunk else None
    if piece is None or piece.id != last.id or piece.index != index:
        raise InvalidBatch(f"there is no piece {index} of it at offset {offset}")
    return found[0].batch.payload(0)
