"""A driver and a server with a bad network between: calls that never arrive, lost answers, calls that come late.

Whatever was answered holds, and what was given up does no harm when it arrives: in the end the store is as if every
call had been made once. The gRPC between the two is replaced by something worse; both sides are the real ones.
"""

from __future__ import annotations

import random
from typing import Any, Final

import grpc
import pytest

from danubius.errors import StorageFailed
from danubius.ledger.entry import LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.store import Append
from danubius.record.ledger_file import BlockRow, LedgerHeader, encode_row
from danubius.storage_service.calls import Calls
from danubius.storage_service.figures import Figures
from danubius.storage_service.messages import SERVICE
from danubius.storage_service.remote_ledgers import RemoteLedgerStore
from danubius.storage_service.server import status_of
from danubius.storage_service.stores import Stores

STEPS: Final = 150
LATE_MAX: Final = 8
REFS: Final = [LedgerRef(topic, number) for topic in range(3) for number in range(2)]


class Refusal(grpc.RpcError):
    """What a channel raises."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self._code, self._text = code, text

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text


class Network:
    """Carries calls from a driver to a server as dice will have it."""

    def __init__(self, dice: random.Random, kept: MemoryLedgerStore) -> None:
        self.dice = dice
        self.kept = kept
        self.is_good = False
        self.refused = self.lost = 0
        self._late: list[tuple[str, Any]] = []
        self.restart()

    def restart(self) -> None:
        """Another process; whatever was on its way to the old one is gone with its connections."""
        self._late.clear()
        self._calls: Any = Calls(Stores(lambda _: self.kept), Figures())

    def connect(self, epoch: int) -> RemoteLedgerStore:
        store = RemoteLedgerStore("grpc://nowhere:1", "b", epoch, retry_s=0.0)
        store._methods = {method.name: self._method(method) for method in SERVICE.methods}
        return store

    def _method(self, method: Any) -> Any:
        def call(request: Any, **_options: object) -> Any:
            if method.client_streaming:
                request = list(request)
            else:
                copied = type(request)()
                copied.CopyFrom(request)  # the driver stamps the same message again
                request = copied
            return self._carry(method.name, request)

        return call

    def _carry(self, name: str, request: Any) -> Any:
        chance = 1.0 if self.is_good else self.dice.random()
        if chance < 0.1 and len(self._late) < LATE_MAX:
            self._late.append((name, request))
        if chance < 0.2:
            self.lost += 1
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "it never arrived")
        if self._late and self.dice.random() < 0.2:
            self._deliver_late()
        answer = self._serve(name, request)
        if chance < 0.35:
            self.lost += 1
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        return answer

    def _deliver_late(self) -> None:
        name, request = self._late.pop(self.dice.randrange(len(self._late)))
        try:
            self._serve(name, request)
        except Refusal as refusal:
            self.refused += refusal.code() is grpc.StatusCode.ABORTED

    def _serve(self, name: str, request: Any) -> Any:
        try:
            answer = getattr(self._calls, name)(request, 5.0)
            if SERVICE.methods_by_name[name].server_streaming:
                return Stream(list(answer))
        except Exception as error:
            raise Refusal(status_of(error), str(error)) from error
        return answer


class Stream(list[Any]):
    def cancel(self) -> None:
        pass


class Twins:
    """The store under test, and one in memory to which the same is done, once."""

    def __init__(self, network: Network, dice: random.Random) -> None:
        self._network = network
        self._dice = dice
        self._epoch = 0
        self.model = MemoryLedgerStore()
        self._ends: dict[LedgerRef, int] = {}
        self._rows: dict[LedgerRef, int] = {}
        self.begin_life()

    def begin_life(self) -> None:
        if self._epoch:
            self.store.close()
        self._epoch += 1
        self.store = self._network.connect(self._epoch)
        self.repeat("claim")

    def repeat(self, name: str, *arguments: Any) -> None:
        """As the storage thread does: again, until it worked."""
        for _ in range(500):
            try:
                getattr(self.store, name)(*arguments)
            except StorageFailed:
                continue
            break
        else:
            raise AssertionError(f"{name} never worked")
        if name != "claim":
            getattr(self.model, name)(*arguments)

    def step(self) -> None:
        ref = self._dice.choice(REFS)
        if ref not in self._ends:
            self._create(ref)
            return
        action = self._dice.choice(["append"] * 5 + ["index", "create", "cut", "delete", "topic"])
        match action:
            case "append":
                data = self._dice.randbytes(self._dice.randrange(1, 50))
                self.repeat("append", ref, self._ends[ref], [data])
                self._ends[ref] += len(data)
            case "index":
                row = encode_row(BlockRow(self._rows[ref], 64, 1, 0, 0, 1))
                header = LedgerHeader(*ref, 0, self._epoch, 0)
                self.repeat("append_index", ref, header, self._rows[ref], row)
                self._rows[ref] += 1
            case "create":
                self._create(ref)
            case "cut":
                self._ends[ref] = self._dice.randrange(64, self._ends[ref] + 1)
                self.repeat("truncate", ref, self._ends[ref], self._rows[ref])
            case "delete":
                self.repeat("delete", ref)
                del self._ends[ref]
            case _:
                self.repeat("delete_topic", ref.topic_id)
                self._ends = {r: end for r, end in self._ends.items() if r.topic_id != ref.topic_id}

    def _create(self, ref: LedgerRef) -> None:
        data = self._dice.randbytes(self._dice.randrange(50))
        header = LedgerHeader(*ref, 0, self._epoch, 0)
        self.repeat("append_many", [Append(ref, header, 64, [data], len(data))])
        self._ends[ref] = 64 + len(data)
        self._rows[ref] = 0

    def compare(self) -> None:
        self._network.is_good = True
        assert self.store.list() == self.model.list()
        for ref in REFS:
            assert self.store.read(ref, 0, 1 << 20) == self.model.read(ref, 0, 1 << 20)
            assert self.store.read_index(ref, 0, 1000) == self.model.read_index(ref, 0, 1000)
        self._network.is_good = False


@pytest.mark.parametrize("seed", range(25))
def test_the_store_is_as_if_every_call_had_been_made_once(seed: int) -> None:
    dice = random.Random(seed)
    network = Network(dice, MemoryLedgerStore())
    twins = Twins(network, dice)
    for _ in range(STEPS):
        chance = dice.random()
        if chance < 0.02:
            network.restart()
        elif chance < 0.04:
            twins.begin_life()
        else:
            twins.step()
        if chance > 0.97:
            twins.compare()
    twins.compare()
    twins.store.close()
    assert network.lost > 20
    assert network.refused > 0, "nothing came late: this run shows little"
