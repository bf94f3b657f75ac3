"""The pages of long lists: one ends early, with `next` set, before it outgrows PAGE_BYTES_MAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from danubius.model.limits import FRAME_META_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAGE_BYTES_MAX: Final = FRAME_META_BYTES_MAX // 2
"""The lines of one page, encoded. A reply is the command part of a frame; the rest is room for a last large line."""

LineT = TypeVar("LineT", bound=msgspec.Struct)
_encoder: Final = msgspec.msgpack.Encoder()


def take_page(
    lines: Iterable[LineT], limit: int, key: Callable[[LineT], str]
) -> tuple[list[LineT], str]:
    """The first lines, as many as one page holds, and the `next` of that page.

    At most one line more than the page's is taken from `lines`, which may be made one by one. `key` says what to give
    as `after` to go on behind a line.
    """
    page: list[LineT] = []
    size = 0
    for line in lines:
        size += len(_encoder.encode(line))
        if page and (len(page) >= limit or size > PAGE_BYTES_MAX):
            return page, key(page[-1])
        page.append(line)
    return page, ""
