"""The object stores that a process of Spark reads from: opened once, and only to read.

Invariants: a fork never shares a store, because stores are found by process id (OpenDAL's threads do not survive a
fork); every request ends within the deadline; nothing is written, made or removed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from danubius.errors import TierMisconfigured
from danubius.tier.connect import open_objects
from danubius.tier.objects import ObjectLimits

if TYPE_CHECKING:
    from danubius.spark.source.options import ReadOptions
    from danubius.tier.objects import ObjectStore

_IN_PROCESS: Final = "memory://"

_Key = tuple[int, str, tuple[tuple[str, str], ...], float]

_stores: dict[_Key, ObjectStore] = {}


def store_of(url: str, options: ReadOptions) -> ObjectStore:
    """This process's way to the objects at an address. Raises TierMisconfigured."""
    if url.startswith(_IN_PROCESS):
        raise TierMisconfigured(
            f"the objects of {url} are in the memory of the broker's process, where nobody else can read them"
        )
    deadline_s = options.patience.request_s
    key = (os.getpid(), url, tuple(sorted(options.tier_options.items())), deadline_s)
    store = _stores.get(key)
    if store is None:
        for stale in [other for other in _stores if other[0] != key[0]]:
            del _stores[stale]  # a parent's: its threads are not here
        limits = ObjectLimits(deadline_s=deadline_s)
        store = open_objects(url, options.tier_options, limits, is_read_only=True)
        _stores[key] = store
    return store


def close_stores() -> None:
    """For processes that are about to end, or whose stores are."""
    for (pid, *_), store in _stores.items():
        if pid == os.getpid():
            store.close()
    _stores.clear()
