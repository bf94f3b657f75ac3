"""Names that are taken, by namespace.

Those of a namespace are sorted: a page is a slice, and `/default/foo` never meets `/default/foobar`.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from danubius.model.ids import namespace_of
from danubius.model.partitions import base_of

if TYPE_CHECKING:
    from danubius.model.ids import TopicName


class TopicNames:
    """Names of topics; partitions are topics."""

    def __init__(self) -> None:
        self._names: dict[str, list[TopicName]] = {}

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
