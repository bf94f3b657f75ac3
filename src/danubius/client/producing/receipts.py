"""The receipts of a `send_many` over several partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.client.messages import Receipt, Receipts
from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class PartitionedReceipts(Receipts):
    """Receipts in the order of the messages; each names its partition. `parts` has them by partition."""

    __slots__ = ("_homes", "_parts", "_places")

    def __init__(
        self, topic: str, parts: Sequence[Receipts], homes: Sequence[int], places: Sequence[int]
    ) -> None:
        """Message i is number `places[i]` of `parts[homes[i]]`; within a part the order is that of the messages."""
        super().__init__(topic, ())
        self._parts = parts
        self._homes = homes
        self._places = places

    @property
    def parts(self) -> dict[str, Receipts]:
        return {part.topic: part for part in self._parts}

    @property
    def first_offset(self) -> int:
        raise self._no_one_offset()

    @property
    def last_offset(self) -> int:
        raise self._no_one_offset()

    def __len__(self) -> int:
        return len(self._homes)

    def __iter__(self) -> Iterator[Receipt]:
        parts = [iter(part) for part in self._parts]
        for home in self._homes:
            yield next(parts[home])

    def __repr__(self) -> str:
        return f"Receipts({self.topic!r}, {len(self)} in {len(self._parts)} partitions)"

    def _at(self, place: int) -> Receipt:
        return self._parts[self._homes[place]][self._places[place]]

    def _no_one_offset(self) -> InvalidArgument:
        return InvalidArgument(
            f"the messages went to {len(self._parts)} partitions of {self.topic}, each with offsets of"
            " its own: see receipts.parts"
        )
