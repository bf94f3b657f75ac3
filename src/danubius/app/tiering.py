"""Cold storage as the settings say: the object store, the ledgers on both tiers, the threads."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

from danubius.errors import BrokerReplaced, DanubiusError
from danubius.shard.features.offload.offloading import Tier
from danubius.tier.connect import open_objects
from danubius.tier.objects import ObjectLimits
from danubius.tier.offload import Owner, Place, TierThreads, TierWork, owner_name, read_owner
from danubius.tier.tiered_store import TieredLedgerStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.broker.data_directory import DataDirectory
    from danubius.ledger.config import LedgerConfig
    from danubius.ledger.store import LedgerStore
    from danubius.tier.config import TierConfig


LOOK_S: Final = 3.0
"""A start waits so long for cold storage to say whose it is."""

log = logging.getLogger(__name__)


def check_owner(config: TierConfig, directory: DataDirectory, highest_epoch: int) -> None:
    """Refuse a directory that is older than what is in cold storage. Blocks; raises BrokerReplaced, TierMisconfigured.

    A store that does not answer, or not legibly, refuses nothing: whose it is is found out before anything is stored.
    """
    if not config.url or not directory.store_id:
        return
    limits = ObjectLimits(deadline_s=min(config.deadline_ms / 1000, LOOK_S), attempts=1)
    objects = open_objects(config.url, config.options, limits)
    name = owner_name(directory.store_id)
    try:
        owner = read_owner(objects, name)
    except DanubiusError as error:
        log.warning("cold storage does not say whose it is yet", extra={"error": error.message})
        return
    finally:
        objects.close()
    known_epoch = max(directory.known_epoch, highest_epoch)
    if owner is not None and owner.epoch > known_epoch:
        raise BrokerReplaced(
            f"the cold storage {objects.url} belongs to a later start of the broker, with epoch {owner.epoch}, and "
            f"{directory.path} knows of {known_epoch}: the data directory is an old copy; use the newer one. Only if "
            f"that is lost, and with it what was published since, remove the object {name} and start again"
        )


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
