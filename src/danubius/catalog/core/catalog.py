"""The catalog: what exists, apart from what runs here. Namespaces, partitioned topics, and the names of all topics.

Invariants:
- `default` and `system` are always there; they are written down only when they are changed.
- Names of the form `/ns/t-part-N` belong to `/ns/t` from the moment it is partitioned, also those beyond its last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.catalog.core.changes import PendingChanges
from danubius.catalog.core.names import TopicNames
from danubius.catalog.core.states import NamespaceState, PartitionedState
from danubius.catalog.core.watchers import Watchers
from danubius.errors import NamespaceNotFound, TopicExists
from danubius.model.ids import TopicName
from danubius.model.partitions import base_of
from danubius.model.policy import Policies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from danubius.model.topic import TopicSpec

BUILT_IN: Final = ("default", "system")
"""Namespaces that exist from the first start on and cannot be deleted."""
_NO_POLICIES: Final = Policies()


class Catalog:
    """What exists. Facts change it, by the methods below the rule; whoever asks gets what is true and durable."""

    def __init__(self) -> None:
        self.namespaces: dict[str, NamespaceState] = {}
        self.partitioned: dict[TopicName, PartitionedState] = {}
        self.names = TopicNames()
        self.changes = PendingChanges()
        self.watchers = Watchers()

    def has_namespace(self, name: str) -> bool:
        return name in BUILT_IN or name in self.namespaces

    def namespace(self, name: str) -> NamespaceState:
        """What is known of it; NamespaceNotFound if it is not there."""
        if name in self.namespaces:
            return self.namespaces[name]
        if name in BUILT_IN:
            return NamespaceState(name, Policies(), 0)
        raise NamespaceNotFound(
            f"namespace {name!r} does not exist; `danubius namespaces create {name}` creates it"
        )

    def all_namespaces(self) -> list[str]:
        """In order."""
        return sorted({*BUILT_IN, *self.namespaces})

    def layer(self, name: str) -> Policies:
        """What a namespace says, whether or not it exists yet."""
        known = self.namespaces.get(name)
        return known.policies if known is not None else _NO_POLICIES

    def whole_of(self, name: TopicName) -> PartitionedState | None:
        """The partitioned topic that a topic is a part of."""
        found = base_of(name)
        known = self.partitioned.get(found[0]) if found is not None else None
        return known if found is not None and known and found[1] < known.partitions else None

    def check_free(self, name: TopicName) -> None:
        """Refuse a plain topic whose name belongs to a partitioned one."""
        found = base_of(name)
        known = self.partitioned.get(found[0]) if found is not None else None
        if known is not None:
            raise TopicExists(
                f"topic {name} cannot be created: the name belongs to {known.name}, which is partitioned into "
                f"{known.partitions}; to add partitions, `danubius topics update {known.name} --partitions N`"
            )

    # ------------------------------------------------------------ what facts say

    def restore(
        self, namespaces: Iterable[NamespaceState], partitioned: Iterable[PartitionedState]
    ) -> None:
        """As a snapshot has it."""
        self.namespaces = {state.name: state for state in namespaces}
        self.partitioned = {TopicName(state.name): state for state in partitioned}

    def adopt_namespaces(self) -> None:
        """When all is recovered: topics of older versions are in namespaces that nobody ever wrote down."""
        for name in self.names.namespaces:
            if name not in BUILT_IN:
                self.namespaces.setdefault(name, NamespaceState(name, Policies(), 0))

    def namespace_created(self, name: str, policies: Policies, created_ms: int) -> None:
        """The first fact stands: two first topics may have been made in it at once, or one while someone made it."""
        self.namespaces.setdefault(name, NamespaceState(name, policies, created_ms))

    def namespace_changed(self, name: str, policies: Policies) -> None:
        """Those that exist from the first start on are written down when they are first changed."""
        known = self.namespaces.get(name)
        self.namespaces[name] = NamespaceState(name, policies, known.created_ms if known else 0)

    def namespace_removed(self, name: str) -> None:
        self.namespaces.pop(name, None)

    def partitions_set(self, name: str, partitions: int, spec: TopicSpec, created_ms: int) -> None:
        self.partitioned[TopicName(name)] = PartitionedState(name, partitions, spec, created_ms)

    def partitions_removed(self, name: str) -> None:
        self.partitioned.pop(TopicName(name), None)
