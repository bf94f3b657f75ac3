"""Settings of ledgers: how they are cached, written and rolled."""

from __future__ import annotations

from typing import Annotated

import msgspec

from danubius.errors import InvalidArgument
from danubius.model.limits import BATCH_BYTES_MAX, KIB, MIB

Positive = Annotated[int, msgspec.Meta(ge=1)]


class LedgerConfig(msgspec.Struct, frozen=True):
    """Bounds in bytes count memory, so a batch weighs more than its length."""

    cache_bytes: Positive = 128 * MIB
    """The tails of all topics in memory: readers that keep up never touch the disk."""
    flush_bytes: Positive = 32 * MIB
    """Unwritten bytes that start a write of every topic with a block or more: larger means fewer, larger writes. With a
    thousand topics and more it is at least 16 KiB a topic, up to `cache_bytes`."""
    dirty_bytes_max: Positive = 64 * MIB
    """Unwritten bytes above which publishers must wait: the disk does not keep up. At least twice `flush_bytes` where
    many topics raise that."""
    flush_interval_ms: Positive = 1000
    """How often topics with a full block, or an old unwritten entry, are written."""
    flush_age_ms: Positive = 10_000
    """An entry is written at the latest after about this time: quiet topics cost few small writes."""
    block_bytes: Annotated[int, msgspec.Meta(ge=4 * KIB, le=BATCH_BYTES_MAX)] = 256 * KIB
    """What one index entry and one checksum cover; only a larger single batch makes a larger block."""
    ledger_bytes_max: Positive = 256 * MIB
    """A ledger is sealed before it grows beyond this: the unit of deletion."""
    ledger_age_max_ms: Positive = 4 * 3600 * 1000
    """A ledger is sealed at this age, so that retention by age reaches quiet topics too."""
    ledger_blocks_max: Positive = 4096
    """A ledger is sealed at this many index entries: bounds what an open ledger holds in memory."""
    index_cache_bytes: Positive = 16 * MIB
    """Indexes of sealed ledgers in memory; others are read again when needed."""
    read_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Reads from disk at once."""
    cold_read_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Reads from the object store at once, of ledgers that are not on the disk any more."""
    reads_queued_max: Positive = 65_536
    """Reads waiting for a thread; more are refused with Overloaded."""
    retry_ms: Positive = 100
    """Wait after the first failed write; doubled up to `retry_max_ms`."""
    retry_max_ms: Positive = 5000

    def check(self) -> None:
        if not self.flush_bytes <= self.dirty_bytes_max <= self.cache_bytes:
            raise InvalidArgument(
                f"flush_bytes ({self.flush_bytes}), dirty_bytes_max ({self.dirty_bytes_max}) and "
                f"cache_bytes ({self.cache_bytes}) must not fall in this order"
            )
        if self.retry_ms > self.retry_max_ms:
            raise InvalidArgument(
                f"retry_ms ({self.retry_ms}) is above retry_max_ms ({self.retry_max_ms})"
            )
