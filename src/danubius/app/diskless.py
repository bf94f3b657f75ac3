"""A broker whose journal, snapshots and ledgers are objects: where it lives, and which settings go together.

Nothing of its topics is in the data directory, which another machine may begin with an empty one of. If clients of
Danube are served, the directory has the list of their consumers (edge/grpc/data/consumer_book.py), and is made for it.
"""

from __future__ import annotations

import secrets
import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.errors import BrokerReplaced, DataDirectoryDamaged, InvalidArgument
from danubius.ledger.config import LedgerConfig
from danubius.tier.connect import open_objects
from danubius.tier.diskless_config import DisklessConfig
from danubius.tier.object_home import ObjectHome
from danubius.tier.object_journal import ObjectJournal
from danubius.tier.objects import ObjectLimits

if TYPE_CHECKING:
    import asyncio

    from danubius.app.ledger_stores import LedgerStoreSettings
    from danubius.app.options import StandaloneOptions
    from danubius.runtime.files import Files
    from danubius.tier.config import TierConfig

START_DEADLINE_S: Final = 120.0
"""Taking the store over has failed after this."""
_HAND_OVER_AGE_MS: Final = 24 * 3600 * 1000
"""Entries of quiet topics wait for the checkpoint: every hand-over is an object of its own, and is paid for."""


def check_diskless(
    config: DisklessConfig, tier: TierConfig, ledger_store: LedgerStoreSettings
) -> None:
    """Raises InvalidArgument for settings that do not go together."""
    if not config.enabled:
        if config != DisklessConfig():
            raise InvalidArgument(
                "this is for a broker without a disk: give --diskless too (diskless.enabled), or leave it out"
            )
        return
    if not tier.url:
        raise InvalidArgument(
            "a broker without a disk keeps everything in an object store: give --tier-url, such as s3://bucket/prefix"
        )
    if ledger_store.kind != "local" or ledger_store.url:
        raise InvalidArgument(
            "a broker without a disk keeps its ledgers where --tier-url says: leave out --ledger-store and its options"
        )
    if tier.local_bytes_max:
        raise InvalidArgument(
            "a broker without a disk has no ledgers on it: leave out --tier-local-bytes-max"
        )


def ledger_config(config: LedgerConfig) -> LedgerConfig:
    """Hand batches over when they are much, or at the checkpoint; unless something else was asked for."""
    if config.flush_age_ms != LedgerConfig().flush_age_ms:
        return config
    return msgspec.structs.replace(config, flush_age_ms=_HAND_OVER_AGE_MS)


class DisklessHome:
    """In place of a data directory."""

    def __init__(self, options: StandaloneOptions, home: ObjectHome) -> None:
        self._config = options.diskless
        self._home = home
        self.path = options.data_dir
        self.broker_id = home.broker_id
        self.epoch = home.epoch
        self.url = home.url
        self.snapshots = home.snapshots
        self.ledgers = home.ledgers

    @classmethod
    def open(cls, options: StandaloneOptions, files: Files) -> DisklessHome:
        """Take the store from whoever has it. Blocks; raises DanubiusError."""
        if files.exists(options.data_dir / "danubius.json"):
            raise InvalidArgument(
                f"{options.data_dir} has the data of a broker with a disk, which --diskless would pass over: "
                "leave that out, or choose another --data-dir"
            )
        if options.grpc is not None:
            files.mkdir(options.data_dir, sync=True)
        limits = ObjectLimits(deadline_s=options.diskless.deadline_ms / 1000)
        objects = open_objects(options.tier.url, options.tier.options, limits)
        try:
            home = ObjectHome.open(
                objects,
                f"broker-{uuid.uuid4().hex[:12]}",
                secrets.randbits(63) | 1,
                START_DEADLINE_S,
            )
        except BaseException:
            objects.close()
            raise
        return cls(options, home)

    def make_journal(self, loop: asyncio.AbstractEventLoop) -> ObjectJournal:
        home = self._home
        return ObjectJournal(
            self._config,
            home.journal_objects,
            home.snapshots,
            home.author,
            home.found,
            loop.call_later,
        )

    def explain(self, damage: DataDirectoryDamaged) -> DataDirectoryDamaged | BrokerReplaced:
        """What a later start has deleted is not damage."""
        later = self._home.later_start()
        if later:
            return BrokerReplaced(
                f"start {later} of this broker has the store; this is start {self.epoch}"
            )
        return damage

    def release(self) -> None:
        self._home.close()
