"""Journal tokens for events: what to do once the fact is durable, or if it never will be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError


class EventToken:
    """Two callbacks, of which exactly one is called, once, on the loop."""

    __slots__ = ("_on_committed", "_on_failed")

    def __init__(
        self, on_committed: Callable[[], None], on_failed: Callable[[DanubiusError], None]
    ) -> None:
        self._on_committed = on_committed
        self._on_failed = on_failed

    def committed(self) -> None:
        self._on_committed()

    def failed(self, error: DanubiusError) -> None:
        self._on_failed(error)
