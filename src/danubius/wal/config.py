"""The journal's settings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from danubius.errors import InvalidArgument
from danubius.model.limits import KIB, MIB
from danubius.wal.core.format import FILE_HEADER_BYTES


class JournalConfig(msgspec.Struct, frozen=True):
    """How large, how often, how many. The defaults suit one broker on one disk."""

    file_bytes: Annotated[int, msgspec.Meta(ge=2 * FILE_HEADER_BYTES)] = 64 * MIB
    """Size of one file. Larger: fewer rolls; smaller: less read at recovery, finer trimming."""
    files_max: Annotated[int, msgspec.Meta(ge=2)] = 16
    """Bound of the journal's size in files; behind it, appends fail with StorageFull until trim."""
    group_bytes_max: Annotated[int, msgspec.Meta(ge=1)] = 8 * MIB
    """Bound of one write. Larger: fewer syncs under load; smaller: the first waits less."""
    fill_bytes: Annotated[int, msgspec.Meta(ge=0)] = 4 * MIB
    """A new file is filled with zeros this far ahead: a sync that allocates costs twice as much."""
    sync_interval_ms: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    """How long a record that did not ask for it may stay unsynced: what power loss can take."""
    queue_bytes_max: Annotated[int, msgspec.Meta(ge=64 * KIB)] = 64 * MIB
    """Where `is_congested` turns true and the publish path stops reading."""

    def check(self) -> None:
        if self.file_bytes < 2 * FILE_HEADER_BYTES or self.file_bytes % FILE_HEADER_BYTES:
            raise InvalidArgument(
                f"journal file_bytes is {self.file_bytes}; it must be a multiple of "
                f"{FILE_HEADER_BYTES} and at least {2 * FILE_HEADER_BYTES}"
            )
        if self.files_max < 2:
            raise InvalidArgument(f"journal files_max is {self.files_max}; it must be at least 2")
        if not 1 <= self.sync_interval_ms <= 1000:
            raise InvalidArgument(
                f"journal sync_interval_ms is {self.sync_interval_ms}; it must be 1 to 1000"
            )
