"""Who this broker is, as it tells operators; the process that runs it fills it in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class About:
    """What the broker's state does not know."""

    __slots__ = ("broker_id", "connections", "started_ms", "url", "version")

    def __init__(self) -> None:
        self.broker_id = ""
        self.version = ""
        self.url = ""
        self.started_ms = 0
        self.connections: Callable[[], int] = _none


def _none() -> int:
    return 0
