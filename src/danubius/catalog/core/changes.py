"""Changes on their way to the disk, which others must know of before they are true.

A partitioned topic is changed (made, grown, deleted) by one at a time; others wait until that is durable or failed, and
look again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.model.partitions import base_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.model.ids import TopicName
    from danubius.model.policy import Policies


class PendingChanges:
    """What is being made, changed or deleted."""

    def __init__(self) -> None:
        self._changing: dict[TopicName, list[Callable[[], None]]] = {}
        """Partitioned topics under change, with what waits for the end of it."""
        self.leaving: set[str] = set()
        """Namespaces that are being deleted: nothing may be made in them."""
        self.planned: dict[str, Policies] = {}
        """Policies of namespaces and topics, by name, as of the last change that is on its way to the disk."""

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
