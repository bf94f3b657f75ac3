"""Going through many things without keeping the loop: some of them in each turn, in order, until all are done.

The first slice is done at once, so few things cost no turn. What an item names may be gone when its turn comes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")


class Turning(Protocol):
    """An event loop, as far as it is needed here."""

    def call_soon(self, callback: Callable[[], None], /) -> object: ...


def in_slices(
    loop: Turning,
    items: Sequence[Item],
    size: int,
    each: Callable[[Item], None],
    on_done: Callable[[], None],
    start: int = 0,
) -> None:
    """Call `each` for all items, `size` of them in a turn, then `on_done`. The sequence must not change meanwhile."""
    for item in items[start : start + size]:
        each(item)
    start += size
    if start < len(items):
        loop.call_soon(functools.partial(in_slices, loop, items, size, each, on_done, start))
    else:
        on_done()
