"""Peers: what a session needs of the connection it serves, whichever edge it came through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.model.buffers import Buffer
    from danubius.wire.commands import AnyCommand


class Peer(Protocol):
    """The other end of one connection."""

    @property
    def address(self) -> str: ...

    def send(
        self, command: AnyCommand, correlation_id: int = 0, payload: Sequence[Buffer] = ()
    ) -> None:
        """Queue a command; never blocks. After the connection is lost it does nothing."""
        ...

    def flush(self) -> None:
        """Let what was sent leave now, instead of with all else of this turn."""
        ...

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...

    def probe(self, on_result: Callable[[bool], None]) -> None:
        """Find out within a second whether the peer still answers."""
        ...
