"""Running a coroutine from a command: on uvloop where it is installed, else on asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run_async(
    main: Coroutine[Any, Any, T],
) -> T:  # Any: what a coroutine yields is the loop's affair
    try:
        try:
            import uvloop
        except ModuleNotFoundError:
            return asyncio.run(main)
        return uvloop.run(main)
    finally:
        main.close()  # a signal may come before the loop has taken it; otherwise this does nothing
