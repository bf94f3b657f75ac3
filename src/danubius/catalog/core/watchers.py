"""Watchers of partitioned topics: they hear of every change of the number. Nobody watches what is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from danubius.model.ids import TopicName


class Watcher(Protocol):
    """Someone who wants to know how many partitions a topic has."""

    def tell(self, partitions: int) -> None: ...

    def end(self) -> None:
        """The topic is gone; the watcher is already out of the list."""
        ...


class Watchers:
    """Who watches which topic."""

    def __init__(self) -> None:
        self._watchers: dict[TopicName, dict[object, Watcher]] = {}

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
