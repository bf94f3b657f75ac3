"""The port behind which objects are kept: whole, named, written once, read in ranges.

Invariants every driver keeps:
- An object is visible whole or not at all, whatever happens to the writer; `put` returns when it is stored.
- Methods may block, are called by several threads at once, and end within the driver's deadline.
- A passing failure (the store is down, slow, or says so) is `StorageFailed`, after the driver's own retries; what will
  not pass by itself (wrong credentials, no such bucket) is `TierMisconfigured`. Neither says that nothing was stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from danubius.ledger.entry import Buffer


class ObjectInfo(NamedTuple):
    """What a store says of an object."""

    name: str
    size: int
    modified_ms: int
    """When it was stored, by the store's clock; 0: it does not say."""


class ObjectStore(Protocol):
    """A place for objects. Names are relative, with `/` between their parts."""

    @property
    def url(self) -> str:
        """Where it is, for people: scheme, bucket and root, and nothing that is secret."""
        ...

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        """Store an object of these parts, back to back; returns False if there is one and it is not to be replaced.

        Parts may come from a generator that raises: then nothing is stored, and the error goes on to the caller.
        Where a store cannot refuse by itself, it is looked at before: names that two may write at once must differ.
        """
        ...

    def get(self, name: str, at: int, count: int) -> bytes:
        """Read a range: fewer bytes at the object's end. Raises ObjectNotFound."""
        ...

    def stat(self, name: str) -> ObjectInfo | None:
        """None if there is no such object."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose names start with this, in any order; `prefix` ends with `/` or is empty."""
        ...

    def delete(self, name: str) -> None:
        """Absent is fine."""
        ...

    def close(self) -> None: ...
