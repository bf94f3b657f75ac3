"""A part of an object store: everything below one prefix, as a store of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from danubius.ledger.entry import Buffer
    from danubius.tier.objects import ObjectInfo, ObjectStore


class PrefixedObjects:
    """Its owner closes the store that it is a part of; closing this does nothing."""

    def __init__(self, objects: ObjectStore, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix.strip("/") + "/"

    @property
    def url(self) -> str:
        return f"{self._objects.url}/{self._prefix.rstrip('/')}"

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        return self._objects.put(self._prefix + name, parts, replace=replace)

    def get(self, name: str, at: int, count: int) -> bytes:
        return self._objects.get(self._prefix + name, at, count)

    def stat(self, name: str) -> ObjectInfo | None:
        found = self._objects.stat(self._prefix + name)
        return None if found is None else found._replace(name=name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for found in self._objects.list(self._prefix + prefix):
            yield found._replace(name=found.name.removeprefix(self._prefix))

    def delete(self, name: str) -> None:
        self._objects.delete(self._prefix + name)

    def close(self) -> None:
        pass
