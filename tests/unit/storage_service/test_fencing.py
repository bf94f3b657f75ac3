"""Who may write to a store, and what a server vouches for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from danubius.errors import BrokerReplaced, StorageFailed
from danubius.ledger.entry import LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.record.ledger_file import LedgerHeader
from danubius.storage_service.backends import open_backend
from danubius.storage_service.claims import CLAIM_TOPIC, Claim, read_claim, store_claim
from danubius.storage_service.stores import Fenced, Stamp, Stores

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from danubius.ledger.store import LedgerStore
    from unit.storage_service.conftest import Serve

REF = LedgerRef(7, 1)
HEADER = LedgerHeader(7, 1, 0, 1, 0)


class Kept:
    """Stores in memory that outlive servers, and may be told to fail."""

    def __init__(self) -> None:
        self.stores: dict[str, FailingStore] = {}

    def __call__(self, name: str) -> FailingStore:
        return self.stores.setdefault(name, FailingStore())


class FailingStore(MemoryLedgerStore):
    def __init__(self) -> None:
        super().__init__()
        self.sync_fails = self.settle_fails = 0

    def sync(self, refs: Collection[LedgerRef]) -> None:
        super().sync(refs)
        if self.sync_fails:
            self.sync_fails -= 1
            raise StorageFailed("the disk is ill")

    def settle(self) -> None:
        if self.settle_fails:
            self.settle_fails -= 1
            raise StorageFailed("the disk is ill")


def held_by(store: LedgerStore) -> Claim | None:
    held = read_claim(store)
    return None if held is None else held.claim


def test_a_repeated_claim_gets_the_same_answer(serve: Serve) -> None:
    served = serve(Kept())
    first, second = served.connect("b", epoch=3), served.connect("b", epoch=5)
    assert [first.claim(), first.claim()] == [0, 0]
    assert [second.claim(), second.claim()] == [3, 3]
    served.restart()
    assert second.claim() == 3


def test_a_store_that_should_be_known_and_is_not_is_not_claimed(serve: Serve) -> None:
    kept = Kept()
    served = serve(kept)
    known = served.connect("b", epoch=3)
    for _ in range(2):
        assert known.claim(is_known=True) == 0
        assert held_by(kept("b")) is None
    assert served.connect("b", epoch=2).claim() == 0
    assert known.claim(is_known=True) == 2
    held = held_by(kept("b"))
    assert held is not None
    assert held.epoch == 3


def test_a_higher_epoch_shuts_out_the_lower_one(serve: Serve) -> None:
    served = serve(Kept())
    old, new = served.connect("b", epoch=1), served.connect("b", epoch=2)
    assert old.claim() == 0
    old.create(REF, HEADER, [b"old"])
    assert new.claim() == 1
    for write in (
        lambda: old.append(REF, 67, [b"late"]),
        lambda: old.create(REF, HEADER),
        lambda: old.append_index(REF, HEADER, 0, bytes(40)),
        lambda: old.sync([REF]),
        lambda: old.seal(REF),
        lambda: old.truncate(REF, 64, 0),
        lambda: old.recover({}),
        lambda: old.delete(REF),
        lambda: old.delete_topic(7),
    ):
        with pytest.raises(StorageFailed, match=r"fenced off.*epoch 2"):
            write()
    with pytest.raises(BrokerReplaced, match=r"later start.*epoch 2"):
        old.claim()
    assert new.read(REF, 64, 100) == old.read(REF, 64, 100) == b"old"
    assert new.list() == [REF]


def test_a_write_alone_is_a_claim(serve: Serve) -> None:
    served = serve(Kept())
    old, new = served.connect("b", epoch=1), served.connect("b", epoch=2)
    new.create(REF, HEADER)
    with pytest.raises(StorageFailed, match="fenced off"):
        old.delete(REF)


def test_a_copy_of_the_broker_with_the_same_epoch_is_shut_out(serve: Serve) -> None:
    served = serve(Kept())
    first, copy = served.connect("b", epoch=4), served.connect("b", epoch=4)
    first.create(REF, HEADER)
    with pytest.raises(StorageFailed, match=r"fenced off.*another process"):
        copy.delete(REF)
    first.append(REF, 64, [b"goes on"])


def test_a_claim_outlives_the_server(serve: Serve, tmp_path: Path) -> None:
    backend = open_backend("local", {"path": str(tmp_path)})
    served = serve(backend.open_store)
    old, new = served.connect("b", epoch=1), served.connect("b", epoch=9)
    old.claim()
    new.claim()
    served.restart()
    with pytest.raises(StorageFailed, match=r"fenced off.*epoch 9"):
        old.create(REF, HEADER)
    new.create(REF, HEADER)
    backend.close()


def test_stores_do_not_see_each_other(serve: Serve) -> None:
    served = serve(Kept())
    left, right = served.connect("left"), served.connect("right")
    left.create(REF, HEADER, [b"left"])
    right.create(REF, HEADER, [b"right"])
    right.delete_topic(7)
    assert left.read(REF, 64, 10) == b"left"
    assert (left.list(), right.list()) == ([REF], [])


def test_a_call_that_was_overtaken_is_refused() -> None:
    stores = Stores(Kept())
    claim = Claim(1, 5)
    stores.write(Stamp("b", claim, 1), lambda store: store.create(REF, HEADER), 1.0)
    stores.write(Stamp("b", claim, 3), lambda store: store.append(REF, 64, [b"new"]), 1.0)
    with pytest.raises(Fenced, match="overtaken"):
        stores.write(Stamp("b", claim, 2), lambda store: store.create(REF, HEADER), 1.0)
    store = stores.reading("b", 1.0)
    assert store is not None
    assert store.read(REF, 64, 10) == b"new"


def test_only_claimed_stores_are_kept_open(serve: Serve) -> None:
    served = serve(Kept())
    for number in range(200):
        assert served.connect(f"nobody-{number}").read(REF, 0, 10) == b""
        if number % 50 == 0:
            assert served.connect(f"nobody-{number}").list() == []
    assert len(served.stores) == 0


def test_a_server_has_a_bound_on_its_stores() -> None:
    stores = Stores(Kept(), stores_max=2)
    for name in ("a", "b"):
        stores.write(Stamp(name, Claim(1, 1), 1), lambda _: None, 1.0)
    with pytest.raises(Exception, match="opens no more"):
        stores.write(Stamp("c", Claim(1, 1), 1), lambda _: None, 1.0)


def test_many_writers_at_once_leave_one_owner() -> None:
    kept = Kept()
    stores = Stores(kept)
    outcomes: list[int] = []

    def claim(epoch: int) -> None:
        try:
            stores.write(Stamp("b", Claim(epoch, epoch), 1), lambda _: None, 10.0)
            outcomes.append(epoch)
        except Fenced:
            pass

    threads = [threading.Thread(target=claim, args=(epoch,)) for epoch in range(1, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == sorted(outcomes)
    assert outcomes[-1] == 39
    assert held_by(kept("b")) == Claim(39, 39)


def test_a_torn_claim_does_not_count() -> None:
    store = MemoryLedgerStore()
    store_claim(store, Claim(3, 33), None)
    store.create(LedgerRef(CLAIM_TOPIC, 4), LedgerHeader(CLAIM_TOPIC, 4, 0, 4, 0), [b"half of it"])
    assert held_by(store) == Claim(3, 33)
    store.create(LedgerRef(CLAIM_TOPIC, 5), LedgerHeader(CLAIM_TOPIC, 5, 0, 5, 0), [bytes(20)])
    assert held_by(store) == Claim(3, 33)


def test_a_sync_after_a_restart_fails_once(serve: Serve) -> None:
    served = serve(Kept())
    store = served.connect("b")
    store.create(REF, HEADER, [b"before"])
    served.restart()
    store.append(REF, 70, [b"after"])
    with pytest.raises(StorageFailed, match="written again"):
        store.sync([REF])
    store.append(REF, 64, [b"before" + b"after"])
    store.sync([REF])
    assert store.read(REF, 64, 100) == b"beforeafter"


def test_a_restart_between_two_good_syncs_is_nothing(serve: Serve) -> None:
    served = serve(Kept())
    store = served.connect("b")
    store.create(REF, HEADER, [b"before"])
    store.sync([REF])
    served.restart()
    store.append(REF, 70, [b"after"])
    store.sync([REF])


@pytest.mark.parametrize("kind", ["sync_fails", "settle_fails"])
def test_a_failure_of_the_backend_is_told_by_the_next_sync(serve: Serve, kind: str) -> None:
    kept = Kept()
    served = serve(kept)
    store = served.connect("b")
    store.create(REF, HEADER, [b"one"])
    setattr(kept("b"), kind, 1)
    store.append(REF, 67, [b"two"])
    with pytest.raises(StorageFailed):
        store.sync([REF])
    store.append(REF, 64, [b"onetwo"])
    store.sync([REF])
