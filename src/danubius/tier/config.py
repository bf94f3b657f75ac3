"""Settings of cold storage: how ledgers go to an object store and are read from there."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from danubius.model.limits import KIB, MIB
from danubius.model.setting_marks import Address, Options

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class TierConfig(msgspec.Struct, frozen=True):
    """Settings of cold storage. Which topics use it is their policies' affair."""

    url: Address = ""
    """Where objects are kept: s3://bucket/prefix, gcs://bucket/prefix, azblob://container/prefix, fs:///path, memory://name;
    empty: there is no cold storage."""
    options: Options = {}
    """Options of the store, such as endpoint, region, access_key_id; secrets are better given by the environment."""
    uploads_at_once: Annotated[int, msgspec.Meta(ge=1, le=32)] = 2
    """Ledgers on their way to the store at a time."""
    upload_bytes_per_s: NotNegative = 0
    """Of all uploads together; 0: as fast as it goes."""
    upload_share_percent: NotNegative = 10
    """While much is published, uploads go at this share of its pace until 1 GiB waits, then faster; 0: they never give
    way."""
    part_bytes: Annotated[int, msgspec.Meta(ge=5 * MIB, le=512 * MIB)] = 8 * MIB
    """An object larger than this is uploaded in parts of this size."""
    deadline_ms: Positive = 30_000
    """One call of the store takes no longer; then it counts as failed and is tried again."""
    verify: Literal["footer", "full"] = "footer"
    """What is read back of an object before it counts: its size and footer, or all of it."""
    cache_bytes: Annotated[int, msgspec.Meta(ge=1 * MIB)] = 64 * MIB
    """Memory for what was read from the store, of all readers together."""
    segment_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB, le=64 * MIB)] = 4 * MIB
    """What is read from the store at once."""
    read_ahead: Annotated[int, msgspec.Meta(ge=0, le=64)] = 4
    """Segments that are fetched ahead of a reader who reads on."""
    cycle_ms: Positive = 5000
    """How often topics are looked over for ledgers that are due."""
    retry_ms: Positive = 1000
    """Wait after the first failure of the store; doubled up to `retry_max_ms`."""
    retry_max_ms: Positive = 60_000
    orphan_age_ms: NotNegative = 3_600_000
    """Objects that belong to no ledger are removed when they are older than this."""
    orphan_cycle_ms: Positive = 6 * 3_600_000
    """How often such objects are looked for; also after every start."""
    local_bytes_max: NotNegative = 0
    """Bytes of ledgers on the broker's disk from which on publishing is refused until there is room; 0: no bound."""
