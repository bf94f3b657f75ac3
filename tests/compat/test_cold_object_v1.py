"""A frozen object of format version 1: it is proven, and the same ledger still becomes the same bytes."""

from __future__ import annotations

from pathlib import Path

from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.packing import LedgerPacker
from danubius.tier.unpacking import check_object, read_rows
from unit.tier.ledgers_made import REF, Made

FROZEN = (Path(__file__).parent / "cold-object-v1" / "00000005-00000007.ledger").read_bytes()
SIZES = [152, 248, 1000]


def test_the_frozen_object_is_sound() -> None:
    objects = MemoryObjects()
    objects.put("a", [FROZEN])
    footer = check_object(objects, "a")
    assert (footer.topic_id, footer.ledger_id, footer.epoch) == (0x1234, 5, 7)
    assert (footer.base_offset, footer.end_offset) == (100, 109)
    assert (footer.data_bytes, footer.index_rows) == (64 + sum(SIZES), 3)
    assert [row.size for row in read_rows(objects, "a", footer)] == SIZES


def test_the_same_ledger_becomes_the_same_object() -> None:
    made = Made(SIZES)
    parts = LedgerPacker(made.store, REF, made.meta, made.rows).parts()
    assert b"".join(parts) == FROZEN
