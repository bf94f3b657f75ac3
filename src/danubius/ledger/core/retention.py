"""Ledgers that may go: every cursor has passed them, and the topic's retention lets go of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.ledger.entry import LedgerMeta
    from danubius.model.topic import Retention

SEAL_AGE_MIN_MS: Final = 60_000
"""However soon messages are to go, the open ledger is sealed not before this age: a file a minute at the most."""


def plan_drop(ledgers: Sequence[LedgerMeta], floor: int, retention: Retention, now_ms: int) -> int:
    """How many of the oldest ledgers to drop. The open one stays, whatever its age.

    A ledger goes if all its messages are below `floor`, and it is older than the retention's
    age or the topic is larger than the retention's size. Without either bound nothing goes.
    """
    stored_bytes = sum(meta.data_bytes for meta in ledgers)
    for number, meta in enumerate(ledgers):
        if not meta.is_sealed or meta.end_offset > floor:
            return number
        following = ledgers[number + 1] if number + 1 < len(ledgers) else None
        is_old = retention.age_ms is not None and (
            now_ms - newest_ms(meta, following) >= retention.age_ms
        )
        is_large = retention.size_bytes is not None and stored_bytes > retention.size_bytes
        if not is_old and not is_large:
            return number
        stored_bytes -= meta.data_bytes
    return len(ledgers)


def newest_ms(meta: LedgerMeta, following: LedgerMeta | None) -> int:
    """When the ledger's last message came, for retention.

    Publish times come from producers, whose clocks may be wrong: they count only between the
    broker's own times, the making of this ledger and that of the next.
    """
    newest = max(meta.created_ms, meta.last_time_us // 1000)
    return newest if following is None else max(meta.created_ms, min(newest, following.created_ms))
