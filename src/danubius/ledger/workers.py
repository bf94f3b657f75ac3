"""The threads of this package as it sees them: `runtime.threads.Worker`, or a twin that a test steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from danubius.runtime.threads import Handle, OnCrash

Item = TypeVar("Item")
Taken = TypeVar("Taken", contravariant=True)


class Inbox(Protocol[Taken]):
    """Where a worker takes its items from."""

    def start(self) -> None: ...
    def put(self, item: Taken) -> None: ...
    def stop(self) -> bool:
        """Handle what was put, then end; False if that took too long."""
        ...


class MakeWorker(Protocol):
    """Makes a worker, not started."""

    def __call__(
        self, name: str, handle: Handle[Item], *, on_crash: OnCrash[Item]
    ) -> Inbox[Item]: ...
