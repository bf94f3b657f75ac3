"""Pieces of larger messages, as a consumer has them: they are put together, acknowledged, or given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from danubius.client.consuming.gathering import Gatherer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.client.connection.route import Route
    from danubius.client.core.acks import Range
    from danubius.client.messages import ReceivedBatch
    from danubius.errors import DanubiusError

UNWHOLE_DELAY_MS: Final = 60_000
"""A message whose pieces cannot be found comes again after this, or goes the failure policy's way."""


class PiecesOwner(Protocol):
    """The consumer's lane."""

    def put_first(self, items: Sequence[ReceivedBatch | DanubiusError]) -> None:
        """Hand these out before all that waits."""
        ...

    def ack_ranges(self, ranges: Sequence[Range]) -> None: ...

    def nack_ranges(self, ranges: Sequence[Range], delay_ms: int, reason: str) -> None: ...


class ConsumerPieces:
    """The larger messages of one lane."""

    __slots__ = ("_gatherer", "_owner")

    def __init__(self, route: Route, topic: str, owner: PiecesOwner, patience_s: float) -> None:
        self._owner = owner
        self._gatherer = Gatherer(route, topic, self, patience_s)

    @property
    def is_waiting(self) -> bool:
        return self._gatherer.is_waiting

    def open(self, batch: ReceivedBatch) -> ReceivedBatch | None:
        """The batch with whole messages instead of pieces; None: it is put first when they are there."""
        return self._gatherer.open(batch)

    def clear(self) -> None:
        self._gatherer.clear()

    def all_below(self, end: int) -> list[Range]:
        """Everything below an offset, without the pieces of messages that are not there yet."""
        ranges: list[Range] = []
        first = 0
        for spared, behind in sorted(self._gatherer.spared(end)):
            if first < spared:
                ranges.append((first, spared))
            first = behind
        if first < end:
            ranges.append((first, end))
        return ranges

    # ------------------------------------------------------------ the gatherer calls these

    def on_gathered(self, batch: ReceivedBatch, errors: list[DanubiusError]) -> None:
        self._owner.put_first([*errors, batch])

    def on_unwhole(self, ranges: list[Range], reason: str) -> None:
        self._owner.nack_ranges(ranges, UNWHOLE_DELAY_MS, reason)

    def on_left_behind(self, ranges: list[Range]) -> None:
        self._owner.ack_ranges(ranges)
