"""Ledgers of random blocks, with the rows that describe them, for what packs and proves objects."""

from __future__ import annotations

import random

from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import BlockRow, LedgerHeader

REF = LedgerRef(0x1234, 5)
EPOCH = 7
BASE = 100


class Made:
    """A store with one ledger in it."""

    def __init__(self, sizes: list[int], *, seed: int = 1) -> None:
        dice = random.Random(seed)
        self.store = MemoryLedgerStore()
        self.header = LedgerHeader(*REF, BASE, EPOCH, 1_700_000_000_000)
        self.store.create(REF, self.header)
        self.rows: list[BlockRow] = []
        offset, position = BASE, 64
        for size in sizes:
            data = dice.randbytes(size)
            self.rows.append(BlockRow(offset, position, size, crc32c(data), offset * 10, 3))
            self.store.append(REF, position, [data])
            offset, position = offset + 3, position + size
        self.meta = LedgerMeta(
            REF.ledger_id, EPOCH, BASE, offset, position, len(sizes), BASE * 10, offset * 10,
            self.header.created_ms, is_sealed=True,
        )  # fmt: skip
        self.data = self.store.read(REF, 0, position)
