"""Cold storage as the settings say: the object store, the ledgers on both tiers, the threads."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from danubius.broker.offloading import Tier
from danubius.tier.connect import open_objects
from danubius.tier.objects import ObjectLimits
from danubius.tier.offload import Owner, Place, TierThreads, TierWork
from danubius.tier.tiered_store import TieredLedgerStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.broker.data_directory import DataDirectory
    from danubius.ledger.config import LedgerConfig
    from danubius.ledger.store import LedgerStore
    from danubius.tier.config import TierConfig


def open_tier(
    config: TierConfig,
    ledgers: LedgerConfig,
    directory: DataDirectory,
    local: LedgerStore,
    post: Callable[[Callable[[], None]], object],
) -> Tier | None:
    """None if there is no address. Raises TierMisconfigured where the settings alone show that it cannot work.

    The store itself is not asked yet: it may be down, and the broker starts all the same.
    """
    if not config.url:
        return None
    limits = ObjectLimits(deadline_s=config.deadline_ms / 1000, part_bytes=config.part_bytes)
    objects = open_objects(config.url, config.options, limits)
    store_id = directory.use_tier(uuid.uuid4().hex)
    place = Place(store_id, Owner(directory.epoch, uuid.uuid4().hex))
    work = TierWork(config, local, objects, place, ledgers.block_bytes)
    store = TieredLedgerStore(config, local, objects)
    return Tier(config, store, TierThreads(config, work, post), objects.url)
