"""Options of `danubius standalone`."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from danubius.app.ledger_stores import LedgerStoreSettings
from danubius.edge.core.hosts import AllowedHosts, parse_allowed
from danubius.ledger.config import LedgerConfig
from danubius.model.limits import MIB
from danubius.tier.config import TierConfig
from danubius.tier.diskless_config import DisklessConfig


class GrpcPorts(msgspec.Struct, frozen=True):
    """Where clients of Danube are served."""

    port: int = 6650
    """Producers and consumers; 0 picks a free port."""
    admin_port: int = 50051
    """Operators; 0 picks a free port."""
    advertised_host: str = ""
    """How clients reach this broker; empty: as it listens."""
    connect_url: str = ""
    """Of a proxy that they come through; empty: none."""


class StandaloneOptions(msgspec.Struct, frozen=True):
    """One broker with everything inside."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 6651
    """Native protocol; 0 picks a free port."""
    http_port: int | None = 6652
    """Health, metrics and REST; 0 picks a free port. None: HTTP is not served."""
    allowed_hosts: str = ""
    """Names that HTTP answers to beside this machine's own, separated by commas."""
    grpc: GrpcPorts | None = None
    """None: clients of Danube are not served."""
    log_level: str = "info"
    log_format: str = "text"
    cache_bytes: int = 128 * MIB
    """Tails of topics kept in memory."""
    ledger_store: LedgerStoreSettings = LedgerStoreSettings()
    tier: TierConfig = TierConfig()
    diskless: DisklessConfig = DisklessConfig()
    """Enabled: `tier` says where everything is kept, and nothing is offloaded."""


def ledger_config(cache_bytes: int) -> LedgerConfig:
    """Scale the write-behind bounds with a small cache, so that they stay below it."""
    return LedgerConfig(
        cache_bytes=cache_bytes,
        flush_bytes=max(MIB, min(32 * MIB, cache_bytes // 4)),
        dirty_bytes_max=max(MIB, min(64 * MIB, cache_bytes // 2)),
    )


def dialable(host: str) -> str:
    """What to dial for who listens on this address."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104  # a comparison, not a bind


def http_hosts(options: StandaloneOptions) -> AllowedHosts:
    """The names that the HTTP port answers to."""
    ports = options.grpc or GrpcPorts()
    own = (options.host, socket.gethostname(), ports.advertised_host, _host_of(ports.connect_url))
    return AllowedHosts(own, parse_allowed(options.allowed_hosts))


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
