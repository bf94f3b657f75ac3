"""Sends a message that is too large for one batch in pieces: the last one when all others are stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from danubius.client.core.checks import checked_size, to_bytes
from danubius.client.core.chunks import Slicer, plan, write_offsets
from danubius.errors import DanubiusError, DeadlineExceeded, InvalidArgument
from danubius.runtime import ambient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from danubius.client.options import ProducerOptions


class PieceLane(Protocol):
    """The producer's lane."""

    @property
    def topic(self) -> str: ...
    @property
    def options(self) -> ProducerOptions: ...
    @property
    def message_bytes_max(self) -> int: ...
    async def put_piece(
        self, payload: bytes, key: bytes | None, attributes: Mapping[str, str], ttl_us: int
    ) -> asyncio.Future[int]: ...


async def send_pieces(
    lane: PieceLane,
    payload: bytes,
    key: bytes | None,
    attributes: Mapping[str, str] | None,
    ttl_us: int,
    *,
    is_later: bool,
) -> int | None:
    """Send a message in pieces and return the last one's offset; None: it fits into one, and nothing was sent."""
    pieces = slice_message(lane, payload, key, attributes, is_later=is_later)
    if pieces is None:
        return None
    timeout_ms = int(lane.options.send_timeout_s * 1000)
    futures: list[asyncio.Future[int]] = []
    try:
        until_ms = 0
        for index in range(len(pieces) - 1):
            # The next piece may wait as long for room, and then as long for its answer.
            until_ms = _next_until(lane, until_ms, timeout_ms)
            piece, told = pieces.piece(index, until_ms)
            futures.append(await lane.put_piece(piece, key, told, ttl_us))
            _raise_failed(futures)
        await asyncio.wait(futures)
        _raise_failed(futures)
        offsets = write_offsets([future.result() for future in futures])
        piece, told = pieces.last(_next_until(lane, until_ms, timeout_ms), offsets)
        futures.append(await lane.put_piece(piece, key, told, ttl_us))
        return await futures[-1]
    finally:
        for future in futures:
            future.cancel()  # nobody will ask how the others ended


def slice_message(
    lane: PieceLane,
    payload: bytes,
    key: bytes | None,
    attributes: Mapping[str, str] | None,
    *,
    is_later: bool = False,
) -> Slicer | None:
    """The pieces of a message that is larger than its producer sends at once; None if it is not."""
    assert lane.options.chunk_bytes is not None
    payload = payload if type(payload) is bytes else to_bytes(payload)
    size = checked_size(payload, key, attributes)
    piece_bytes = min(lane.options.chunk_bytes, lane.message_bytes_max)
    if size <= piece_bytes:
        return None
    if is_later:
        raise InvalidArgument(
            f"the message has {size} bytes and would be sent in pieces, which cannot be delivered later:"
            " leave out deliver_after and deliver_at, or send a reference to the data"
        )
    key_bytes = len(key) if key is not None else 0
    attribute_bytes = size - len(payload) - key_bytes
    cuts = plan(len(payload), piece_bytes, key_bytes, attribute_bytes)
    return Slicer(ambient.token(16).hex(), payload, attributes, cuts)


def _next_until(lane: PieceLane, promised_ms: int, timeout_ms: int) -> int:
    """Until when the piece after the next one will be stored; raises if the next one is too late to keep a promise."""
    now_ms = ambient.wall_ns() // 1_000_000
    if promised_ms and now_ms + timeout_ms > promised_ms:
        raise DeadlineExceeded(
            f"the pieces of a message to {lane.topic} did not get through within {lane.options.send_timeout_s:g} s"
        )
    return now_ms + 2 * timeout_ms


def _raise_failed(futures: list[asyncio.Future[int]]) -> None:
    for future in futures:
        if future.done() and not future.cancelled():
            error = future.exception()
            if isinstance(error, DanubiusError):
                raise error
