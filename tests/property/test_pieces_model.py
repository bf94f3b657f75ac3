"""A ledger in pieces against a bytearray: any writes, repeats, cuts, joins and restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.record.ledger_file import LedgerHeader
from danubius.tier.core.pieces import DATA, Life, Piece, PieceMap, map_pieces, parse_piece
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.object_ledgers import ObjectLedgerStore

if TYPE_CHECKING:
    import random

REF = LedgerRef(1, 2)
HEADER = LedgerHeader(1, 2, 0, 3, 0)
META = LedgerMeta(2, 3, 0, 0, 0, 0, 0, 0, 0, is_sealed=True)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 60), st.binary(max_size=20)),
        st.tuples(st.just("cut"), st.integers(0, 80), st.just(b"")),
        st.tuples(st.sampled_from(["join", "restart", "create"]), st.just(0), st.just(b"")),
    ),
    max_size=30,
)


@given(steps)
def test_a_ledger_in_pieces_is_a_bytearray(steps: list[tuple[str, int, bytes]]) -> None:
    objects = MemoryObjects()
    store = ObjectLedgerStore(objects, join_bytes=30)
    store.create(REF, HEADER)
    model = bytearray()
    for verb, number, data in steps:
        if verb == "write":
            at = min(number, len(model))
            store.append(REF, 64 + at, [data])
            model[at : at + len(data)] = data
        elif verb == "cut":
            store.truncate(REF, 64 + number, 0)
            del model[number:]
        elif verb == "join":
            store.seal(REF)
            store.tidy()
        elif verb == "restart":
            store = ObjectLedgerStore(objects, join_bytes=30)
            store.recover({REF: META})
        else:
            store.create(REF, HEADER)
            model.clear()
        assert store.read(REF, 64, 1000) == model
        assert ObjectLedgerStore(objects).read(REF, 64, 1000) == model
        for at in range(0, len(model), 7):
            assert store.read(REF, 64 + at, 5) == model[at : at + 5]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=20), st.randoms())
def test_the_order_of_a_listing_does_not_matter(
    spans: list[tuple[int, int]], dice: random.Random
) -> None:
    pieces = [
        (Piece(1, 2, Life(3, 0), number, DATA, at), size) for number, (at, size) in enumerate(spans)
    ]
    wanted: dict[int, Piece] = {}
    for piece, size in pieces:
        wanted.update(dict.fromkeys(range(piece.position, piece.position + size), piece))
    dice.shuffle(pieces)
    found = map_pieces(pieces)
    seen: dict[int, Piece] = {}
    for start, end, piece, stop in found.extents:
        assert start < end <= stop
        seen.update(dict.fromkeys(range(start, end), piece))
    assert seen == wanted
    assert found.end == max(wanted, default=-1) + 1


@given(st.integers(0, 2**63), st.integers(0, 2**31), st.integers(0, 2**31), st.integers(0, 2**40))
def test_a_name_is_read_as_it_was_written(topic: int, ledger: int, number: int, at: int) -> None:
    piece = Piece(topic, ledger, Life(7, 1), number, "i", at)
    assert parse_piece(piece.name) == piece
    assert parse_piece(piece.name + "0") is None
    assert parse_piece("x" + piece.name) is None


def test_an_empty_map_has_nothing() -> None:
    assert list(PieceMap().find(0, 10)) == []
    assert PieceMap().joinable(10, 10) == []
