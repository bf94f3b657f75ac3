"""Which names are taken, by namespace; which partitioned topics are being changed; and who watches them.

Invariants:
- The names of a namespace are sorted, so that a page is a slice, and `/default/foo` never meets `/default/foobar`.
- A partitioned topic is changed (made, grown, deleted) by one at a time; others wait until that is durable or failed,
  and look again.
- Nobody watches what is not there.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final, Protocol

from danubius.model.ids import namespace_of
from danubius.model.partitions import base_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.model.ids import TopicName
    from danubius.model.policy import Policies

BUILT_IN: Final = ("default", "system")
"""Namespaces that exist from the first start on and cannot be deleted."""


class Watcher(Protocol):
    """Someone who wants to know how many partitions a topic has."""

    def tell(self, partitions: int) -> None: ...

    def end(self) -> None:
        """The topic is gone; the watcher is already out of the list."""
        ...


class Spaces:
    """What is known of names, beside the topics themselves."""

    def __init__(self) -> None:
        self._names: dict[str, list[TopicName]] = {}
        self._changing: dict[TopicName, list[Callable[[], None]]] = {}
        """Partitioned topics under change, with what waits for the end of it."""
        self._watchers: dict[TopicName, dict[object, Watcher]] = {}
        self.leaving: set[str] = set()
        """Namespaces that are being deleted: nothing may be made in them."""
        self.planned: dict[str, Policies] = {}
        """Policies of namespaces and topics, by name, as of the last change that is on its way to the disk."""

    # ------------------------------------------------------------ names

    @property
    def namespaces(self) -> list[str]:
        """Those that have topics, in order."""
        return sorted(self._names)

    def add(self, name: TopicName) -> None:
        bisect.insort(self._names.setdefault(namespace_of(name), []), name)

    def remove(self, name: TopicName) -> None:
        space = namespace_of(name)
        names = self._names[space]
        at = bisect.bisect_left(names, name)
        assert names[at] == name
        del names[at]
        if not names:
            del self._names[space]

    def names(self, namespace: str) -> list[TopicName]:
        """In order; the list is this object's own."""
        return self._names.get(namespace, [])

    def partitions_named(self, base: TopicName) -> list[TopicName]:
        """The topics whose names make them partitions of `base`, whether it is partitioned or not."""
        prefix = f"{base}-part-"
        names = self.names(namespace_of(base))
        found: list[TopicName] = []
        for at in range(bisect.bisect_left(names, prefix), len(names)):
            if not names[at].startswith(prefix):
                break
            if (known := base_of(names[at])) and known[0] == base:
                found.append(names[at])
        return found

    # ------------------------------------------------------------ changes

    @property
    def changing(self) -> list[TopicName]:
        return list(self._changing)

    def changing_around(self, name: TopicName) -> TopicName | None:
        """The partitioned topic under change that this name is, or belongs to."""
        if name in self._changing:
            return name
        found = base_of(name)
        return found[0] if found and found[0] in self._changing else None

    def begin(self, base: TopicName) -> None:
        assert base not in self._changing
        self._changing[base] = []

    def wait(self, base: TopicName, action: Callable[[], None]) -> None:
        self._changing[base].append(action)

    def finish(self, base: TopicName) -> list[Callable[[], None]]:
        """The change is over. What is returned may now be done, in this order, but not from inside a failure."""
        return self._changing.pop(base)

    # ------------------------------------------------------------ watchers

    def watch(self, base: TopicName, owner: object, watcher: Watcher) -> None:
        self._watchers.setdefault(base, {})[owner] = watcher

    def is_watched(self, base: TopicName, owner: object) -> bool:
        return owner in self._watchers.get(base, ())

    def unwatch(self, base: TopicName, owner: object) -> None:
        watchers = self._watchers.get(base)
        if watchers is not None:
            watchers.pop(owner, None)
            if not watchers:
                del self._watchers[base]

    def tell(self, base: TopicName, partitions: int) -> None:
        for watcher in list(self._watchers.get(base, {}).values()):
            watcher.tell(partitions)

    def forget(self, base: TopicName) -> None:
        """The topic is gone."""
        for watcher in self._watchers.pop(base, {}).values():
            watcher.tell(0)
            watcher.end()
