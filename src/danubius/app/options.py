"""What `danubius standalone` is told."""

from __future__ import annotations

from pathlib import Path

import msgspec

from danubius.ledger.config import LedgerConfig
from danubius.model.limits import MIB


class StandaloneOptions(msgspec.Struct, frozen=True):
    """One broker with everything inside."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 6651
    """Native protocol; 0 picks a free port."""
    http_port: int = 6652
    """Health and metrics; 0 picks a free port."""
    log_level: str = "info"
    log_format: str = "text"
    cache_bytes: int = 128 * MIB
    """Tails of topics kept in memory."""


def ledger_config(cache_bytes: int) -> LedgerConfig:
    """Scale the write-behind bounds with a small cache, so that they stay below it."""
    return LedgerConfig(
        cache_bytes=cache_bytes,
        flush_bytes=max(MIB, min(32 * MIB, cache_bytes // 4)),
        dirty_bytes_max=max(MIB, min(64 * MIB, cache_bytes // 2)),
    )
