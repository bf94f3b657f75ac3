"""The port behind which objects are kept: whole, named, written once, read in ranges.

Invariants every driver keeps:
- An object is visible whole or not at all, whatever happens to the writer; `put` returns when it is stored.
- Methods may block, and are called by several threads at once. One that makes no progress ends within the driver's
  deadline; a `put` of many parts may take so long for each.
- A passing failure (the store is down, slow, or says so) is `StorageFailed`, after the driver's own retries; what will
  not pass by itself (wrong credentials, no such bucket) is `TierMisconfigured`. Neither says that nothing was stored.
- No secret is in a URL or a sentence that a driver gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from danubius.errors import InvalidArgument
from danubius.model.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from danubius.model.buffers import Buffer

NAME_BYTES_MAX: Final = 512
"""Half of what S3, GCS and Azure take, so that a prefix has room."""


class ObjectInfo(NamedTuple):
    """What a store says of an object."""

    name: str
    size: int
    modified_ms: int
    """When it was stored, by the store's clock; 0: it does not say."""


class ObjectLimits(NamedTuple):
    """Bounds of a driver that speaks to a server."""

    deadline_s: float = 30.0
    """A request that makes no progress, its retries included, has failed after this."""
    attempts: int = 3
    part_bytes: int = 8 * MIB
    """Larger objects are sent in such parts."""
    parts_at_once: int = 4
    """How many parts of one object are under way: memory for so many is taken."""
    whole_bytes_max: int = 512 * MIB
    """A store that takes no parts gets an object in one piece of at most this, which is then in memory."""


class ObjectStore(Protocol):
    """A place for objects. Names are relative, with `/` between their parts (see `check_name`)."""

    @property
    def url(self) -> str:
        """Where it is, for people: scheme, bucket and root, and nothing that is secret."""
        ...

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        """Store an object of these parts, back to back; returns False if there is one and it is not to be replaced.

        Parts may come from a generator that raises: then nothing is stored, and the error goes on to the caller.
        Where a store cannot refuse by itself, it is looked at before: names that two may write at once must differ.
        False may be said of an attempt of one's own whose answer was lost: look at what is there.
        """
        ...

    def refuses(self, name: str) -> bool:
        """Whether the store itself refuses to replace, so that of several who put one name at once one wins.

        Tried out with an object of this name, which should be nobody else's. Where it is so, `put` asks no more
        than that of a small object; True is remembered.
        """
        ...

    def get(self, name: str, at: int, count: int) -> bytes:
        """Read a range: fewer bytes at the object's end, none behind it. Raises ObjectNotFound."""
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


def check_name(name: str) -> str:
    """The name itself, if every store takes it; raises InvalidArgument."""
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts) or any(
        part.startswith(".") for part in parts
    ):
        raise InvalidArgument(
            f"{name!r} is no name of an object: its parts must be there and not start with a dot"
        )
    if not name.isascii() or not name.isprintable() or any(letter in name for letter in " \\%?#*"):
        raise InvalidArgument(f"{name!r} is no name of an object: some stores do not take it")
    if len(name) > NAME_BYTES_MAX:
        raise InvalidArgument(
            f"the name of an object has {len(name)} bytes, and {NAME_BYTES_MAX} at the most are taken"
        )
    return name


def check_prefix(prefix: str) -> str:
    """The prefix itself, if it is empty or the name of a folder with its slash; raises InvalidArgument."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidArgument(f"the prefix {prefix!r} does not end with a slash")
        check_name(prefix[:-1])
    return prefix
