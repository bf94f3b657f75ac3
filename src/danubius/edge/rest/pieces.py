"""Answers on their way out: in pieces, each of which the reader has to take in time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from danubius.edge.rest.bounds import PIECE_BYTES, SEND_S

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Scope, Send

ABORT_TURNS: Final = 5
"""Turns of the loop until the server has heard that the connection is gone, and does not miss the answer's end."""

log = logging.getLogger(__name__)


async def send_in_pieces(response: Response, scope: Scope, send: Send) -> None:
    """Send an answer; a reader that stops taking it is cut off."""
    body = memoryview(response.body)
    start = {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    try:
        async with asyncio.timeout(SEND_S):
            await send(start)
        for at in range(0, max(1, len(body)), PIECE_BYTES):
            piece = {
                "type": "http.response.body",
                "body": bytes(body[at : at + PIECE_BYTES]),
                "more_body": at + PIECE_BYTES < len(body),
            }
            async with asyncio.timeout(SEND_S):
                await send(piece)
    except TimeoutError:
        log.info("slow reader cut off", extra={"path": str(scope.get("path"))[:200]})
        await cut_off(scope)


async def cut_off(scope: Scope) -> None:
    """Close the connection without waiting for what the peer does not take."""
    state: dict[str, Any] = scope.get("state") or {}
    abort = state.get("abort")
    if abort is not None:
        abort()
    for _ in range(ABORT_TURNS):
        await asyncio.sleep(0)
