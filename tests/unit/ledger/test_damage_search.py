"""Which batches of damaged bytes have a witness for their offset, and which are given up."""

from __future__ import annotations

import pytest

from danubius.ledger.core.damage import find_batches, find_runs
from danubius.record.encode import encode
from danubius.record.header import stamp

FIRST = 1000
COUNTS = [1, 2, 3, 4, 1, 2, 3, 4]
BASES = [FIRST + sum(COUNTS[:number]) for number in range(len(COUNTS))]
END = FIRST + sum(COUNTS)
COUNT_AT = 28
PAYLOAD_AT = 120


def batch(base: int, payloads: list[bytes]) -> bytes:
    encoded = encode(payloads, publish_time_us=1)
    stamp(encoded, base, 7)
    return bytes(encoded)


class Block:
    """Eight batches, to be damaged."""

    def __init__(self) -> None:
        batches = [
            batch(base, [b"some payload"] * count)
            for base, count in zip(BASES, COUNTS, strict=True)
        ]
        self.positions = [sum(map(len, batches[:number])) for number in range(len(batches))]
        self.data = bytearray(b"".join(batches))
        self.size = len(self.data)

    def lose(self, *numbers: int) -> None:
        for number in numbers:
            self.data[self.positions[number]] ^= 0xFF

    def break_payload(self, *numbers: int) -> None:
        for number in numbers:
            self.data[self.positions[number] + PAYLOAD_AT] ^= 0xFF

    def restamp(self, number: int, base: int) -> None:
        at = self.positions[number] + 8
        self.data[at : at + 8] = base.to_bytes(8, "little")

    def served(self) -> list[int]:
        numbers: list[int] = []
        for run in find_runs(bytes(self.data), self.size, FIRST, END):
            inside = [n for n, base in enumerate(BASES) if run.first <= base < run.end]
            assert run.start == self.positions[inside[0]]
            assert (run.first, run.end - run.first) == (
                BASES[inside[0]],
                sum(COUNTS[n] for n in inside),
            )
            numbers += inside
        return numbers


def test_batches_before_and_behind_damage_are_counted_from_the_ends() -> None:
    block = Block()
    block.lose(3, 4)
    assert block.served() == [0, 1, 2, 5, 6, 7]


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("base", [0, FIRST, FIRST + 5, END, 2**63, 2**64 - 1])
def test_a_wrong_stamp_costs_its_own_batch_alone(number: int, base: int) -> None:
    block = Block()
    block.restamp(number, base)
    assert block.served() == [n for n in range(8) if n != number or base == BASES[number]]


def test_wrong_stamps_beside_lost_headers_cost_no_others() -> None:
    block = Block()
    block.restamp(1, BASES[1] + 1)
    block.lose(3)
    block.restamp(4, BASES[4] + 1)
    assert block.served() == [0, 2, 5, 6, 7]


def test_between_lost_headers_nothing_is_believed() -> None:
    block = Block()
    block.lose(1, 6)
    assert block.served() == [0, 7]
    # Stamps that were altered alike confirm each other: they are no witnesses.
    for number in range(2, 6):
        block.restamp(number, BASES[number] + 1)
    assert block.served() == [0, 7]


def test_damaged_headers_are_believed_if_they_add_up() -> None:
    block = Block()
    block.break_payload(1, 5)
    assert block.served() == [0, 2, 3, 4, 6, 7]
    block.restamp(3, BASES[3] + 1)
    assert block.served() == [0, 2, 4, 6, 7]
    block.data[block.positions[1] + COUNT_AT] += 1
    assert block.served() == [0, 6, 7]


def test_a_wrong_count_with_stamps_to_fit_it_is_not_believed() -> None:
    block = Block()
    block.data[block.positions[1] + COUNT_AT] += 1
    for number in range(2, 5):
        block.restamp(number, BASES[number] + 1)
    block.break_payload(5)
    assert block.served() == [0, 6, 7]


def test_bytes_that_are_cut_off_have_no_known_end() -> None:
    block = Block()
    block.lose(2)
    del block.data[block.positions[6] :]
    assert block.served() == [0, 1]


def test_a_batch_inside_a_lost_one_does_not_take_its_place() -> None:
    inner = batch(FIRST + 1, [b"fake"])
    parts = [batch(FIRST, [b"x"]), batch(FIRST + 1, [inner]), batch(FIRST + 2, [b"y"])]
    data = bytearray(b"".join(parts))
    data[len(parts[0])] ^= 0xFF
    runs = find_runs(bytes(data), len(data), FIRST, FIRST + 3)
    assert [(run.first, run.end) for run in runs] == [(FIRST, FIRST + 1), (FIRST + 2, FIRST + 3)]


def test_a_foreign_batch_spoils_only_its_own_place() -> None:
    block = Block()
    at = block.positions[2]
    size = block.positions[3] - at
    foreign = batch(5, [bytes(size - 96)])
    assert len(foreign) == size
    block.data[at : at + size] = foreign
    assert block.served() == [0, 1, 3, 4, 5, 6, 7]


def test_a_window_ends_before_a_batch_whose_successor_is_not_seen() -> None:
    block = Block()
    seen = list(find_batches(bytes(block.data[: block.positions[5] + 20]), goes_on=True))
    assert [found.position for found in seen] == block.positions[:4]
