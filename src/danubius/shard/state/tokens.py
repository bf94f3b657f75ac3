"""Journal tokens of facts: once durable, made true by the one applier that each kind has, and then answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError
    from danubius.shard.state.facts import Event

OnDone: TypeAlias = "Callable[[DanubiusError | None], None]"
"""Hears that something is so, or why it never will be; exactly once, on the loop."""


class FactToken:
    """One fact on its way through the journal."""

    __slots__ = ("_apply", "_fact", "_on_done")

    def __init__(self, apply: Callable[[Event], None], fact: Event, on_done: OnDone) -> None:
        self._apply = apply
        self._fact = fact
        self._on_done = on_done

    def committed(self) -> None:
        self._apply(self._fact)
        self._on_done(None)

    def failed(self, error: DanubiusError) -> None:
        self._on_done(error)
