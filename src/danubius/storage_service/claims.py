"""Whose a store is: the highest epoch that claimed it, kept in the store itself.

A claim is a small ledger of a reserved topic, whose ledger id is the epoch. So it can be kept in every LedgerStore, and
taking it is one create and one sync: a crash in between leaves the older claim, and nobody was told of the newer one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.ledger.entry import LedgerRef
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import FILE_HEADER_BYTES, LedgerHeader

if TYPE_CHECKING:
    from danubius.ledger.store import LedgerStore

CLAIM_TOPIC: Final = (1 << 64) - 1
"""No topic of a broker has this id."""
_CLAIM: Final = struct.Struct("<QQQ")
_CRC: Final = struct.Struct("<I")


class Claim(NamedTuple):
    """Who may write: one process of a broker, until one with a higher epoch comes."""

    epoch: int
    process: int


class Held(NamedTuple):
    """A claim that holds, and the epoch of the one before it; 0: it was the first."""

    claim: Claim
    previous_epoch: int


def read_claim(store: LedgerStore) -> Held | None:
    """The claim that holds; None: nobody ever claimed this store. Lists all of it."""
    epochs = [ref.ledger_id for ref in store.list() if ref.topic_id == CLAIM_TOPIC]
    for epoch in sorted(epochs, reverse=True):
        data = store.read(LedgerRef(CLAIM_TOPIC, epoch), FILE_HEADER_BYTES, _CLAIM.size + _CRC.size)
        # One that is not whole was never synced: whoever made it got no answer.
        if len(data) == _CLAIM.size + _CRC.size:
            fields = data[: _CLAIM.size]
            found, process, previous = _CLAIM.unpack(fields)
            if found == epoch and crc32c(fields) == _CRC.unpack(data[_CLAIM.size :])[0]:
                return Held(Claim(epoch, process), previous)
    return None


def store_claim(store: LedgerStore, claim: Claim, older: Held | None) -> Held:
    """Claim a store durably, and forget the older claim."""
    previous_epoch = 0 if older is None else older.claim.epoch
    ref = LedgerRef(CLAIM_TOPIC, claim.epoch)
    fields = _CLAIM.pack(*claim, previous_epoch)
    header = LedgerHeader(CLAIM_TOPIC, claim.epoch, 0, claim.epoch, 0)
    store.create(ref, header, [fields, _CRC.pack(crc32c(fields))])
    store.sync([ref])
    store.seal(ref)
    if previous_epoch:
        store.delete(LedgerRef(CLAIM_TOPIC, previous_epoch))
    return Held(claim, previous_epoch)
