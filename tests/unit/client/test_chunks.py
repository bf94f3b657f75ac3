"""Large messages in pieces: how they are cut, and put together from whatever comes, in whatever order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.client.core import chunks
from danubius.client.core.chunks import (
    BEFORE,
    PIECES_MAX,
    WHOLE_BYTES_MAX,
    Piece,
    PieceStore,
    Slicer,
    plan,
    read_offsets,
    read_piece,
    user_attributes,
    write_offsets,
)
from danubius.errors import InvalidBatch, MessageTooLarge

SIZES = st.integers(1, 5000)


def sliced(
    number: int, payload: bytes, piece_bytes: int, attributes: dict[str, str]
) -> list[tuple[bytes, dict[str, str]]]:
    """All pieces; the last one says that the others lie before it."""
    size = sum(len(name) + len(text) for name, text in attributes.items())
    slicer = Slicer(f"{number:032x}", payload, attributes, plan(len(payload), piece_bytes, 0, size))
    count = len(slicer)
    return [
        *(slicer.piece(index, 1000 + index) for index in range(count - 1)),
        slicer.last(2000, BEFORE),
    ]


@given(
    size=st.integers(1, 200_000), piece_bytes=st.integers(700, 5000), key_bytes=st.integers(0, 40)
)
def test_pieces_are_the_payload_and_keep_to_their_size(
    size: int, piece_bytes: int, key_bytes: int
) -> None:
    try:
        cuts = plan(size, piece_bytes, key_bytes, 30)
    except MessageTooLarge:
        assert size > 4 * piece_bytes
        return
    assert 2 <= len(cuts) <= PIECES_MAX
    assert (cuts[0][0], cuts[-1][1]) == (0, size)
    assert all(end == first for (_, end), (first, _) in itertools.pairwise(cuts))
    most = piece_bytes - key_bytes - chunks.ATTRIBUTES_BYTES
    assert all(0 <= end - first <= most for first, end in cuts)
    last = 30 + chunks.OFFSET_BYTES * (len(cuts) - 1)
    assert cuts[-1][1] - cuts[-1][0] + last <= most


def test_what_a_piece_says_of_itself_fits_into_its_room() -> None:
    slicer = Slicer("f" * 32, b"", None, plan(WHOLE_BYTES_MAX, 8 << 20, 0, 0))
    _, told = slicer.piece(len(slicer) - 1, 2**63 - 1)
    assert sum(len(name) + len(text) for name, text in told.items()) < chunks.ATTRIBUTES_BYTES
    assert len(write_offsets([2**63 - 1, 5])) <= 2 * chunks.OFFSET_BYTES


def test_a_message_has_a_bound() -> None:
    with pytest.raises(MessageTooLarge, match="at most 1073741824"):
        plan(WHOLE_BYTES_MAX + 1, 8 << 20, 0, 0)
    with pytest.raises(MessageTooLarge, match="larger pieces"):
        plan(2_000_000, 1024, 0, 0)
    with pytest.raises(MessageTooLarge, match="attributes"):
        plan(2000, 1024, 0, 1024)


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=30))
def test_offsets_are_read_as_they_were_written(offsets: list[int]) -> None:
    assert read_offsets(write_offsets(offsets), len(offsets), 2**63 - 1) == offsets


@given(st.text(max_size=30), st.integers(1, 50), st.integers(0, 100))
def test_any_text_is_offsets_or_none(text: str, count: int, last: int) -> None:
    found = read_offsets(text, count, last)
    assert found is None or (len(found) == count and min(found) >= 0)


@given(
    st.dictionaries(
        st.sampled_from(["x-chunk-id", "x-chunk-index", "x-chunk-count", "x-chunk-bytes"])
        | st.sampled_from(["x-chunk-until", "x-chunk-offsets", "other"]),
        st.text(max_size=5) | st.integers(-2, 2000).map(str),
    )
)
def test_any_attributes_are_a_piece_or_none(attributes: dict[str, str]) -> None:
    piece = read_piece(attributes)
    assert piece is None or 0 <= piece.index < piece.count <= PIECES_MAX


class Log:
    """Pieces of several messages as they lie in a topic."""

    def __init__(self) -> None:
        self.pieces: list[tuple[bytes, dict[str, str]]] = []

    def fetch(self, offset: int, piece: Piece, index: int) -> bytes:
        payload, attributes = self.pieces[offset]
        found = read_piece(attributes)
        assert found is not None
        assert (found.id, found.index) == (piece.id, index)
        return payload


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=5),
    store_bytes=st.integers(0, 8000),
    data=st.data(),
)
def test_whoever_gets_the_last_piece_has_the_message_whatever_else_came(
    sizes: list[int], store_bytes: int, data: st.DataObject
) -> None:
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    log = Log()
    places: list[list[int]] = []
    queues = [
        sliced(number, payload, 700, {"n": str(number)}) for number, payload in enumerate(messages)
    ]
    lasts: dict[int, int] = {}
    waiting = [list(queue) for queue in queues]
    places = [[] for _ in queues]
    while any(waiting):
        number = data.draw(st.sampled_from([n for n, rest in enumerate(waiting) if rest]))
        payload, attributes = waiting[number].pop(0)
        if not waiting[number]:
            attributes = attributes | {chunks.OFFSETS: write_offsets(places[number])}
            lasts[len(log.pieces)] = number
        places[number].append(len(log.pieces))
        log.pieces.append((payload, attributes))
    store = PieceStore(store_bytes)
    # Pieces come in any order, some twice, some never; but every last one comes.
    order = data.draw(
        st.lists(st.sampled_from(range(len(log.pieces))), max_size=2 * len(log.pieces))
    )
    for offset in [*order, *lasts]:
        payload, attributes = log.pieces[offset]
        piece = read_piece(attributes)
        assert piece is not None
        whole = store.take(piece, offset, payload)
        assert (whole is not None) == (offset in lasts)
        assert store.size <= store_bytes
        if whole is None:
            continue
        number = lasts[offset]
        while (missing := whole.missing) is not None:
            index, place = missing
            whole.add(index, log.fetch(place, piece, index))
        assert whole.payload() == messages[number]
        assert [o for first, end in whole.ranges for o in range(first, end)] == sorted(
            places[number]
        )
        assert user_attributes(attributes) == {"n": str(number)}
    store.clear()
    assert store.size == 0


@given(size=st.integers(2000, 20_000), data=st.data())
def test_a_moved_message_is_there_when_all_its_pieces_are(size: int, data: st.DataObject) -> None:
    payload = bytes(range(256)) * (size // 256)
    pieces = [
        (part, attributes | {"x-original-topic-offset": "7"})
        for part, attributes in sliced(1, payload, 1500, {})
    ]
    store = PieceStore()
    order = data.draw(st.permutations(range(len(pieces))))
    for count, index in enumerate(order, 1):
        part, attributes = pieces[index]
        piece = read_piece(attributes)
        assert piece is not None
        whole = store.take(piece, 100 + index, part)
        assert (whole is not None) == (count == len(pieces))
        if whole is not None:
            assert whole.payload() == payload
            assert whole.ranges == [(100, 100 + len(pieces))]


def test_what_is_not_complete_is_spared_by_whoever_acknowledges_all_before_something() -> None:
    store = PieceStore()
    for index, (part, attributes) in enumerate(sliced(1, bytes(3000), 1000, {})[:-1]):
        piece = read_piece(attributes)
        assert piece is not None
        assert store.take(piece, 10 * index, part) is None
    assert store.spared(15) == [(0, 1), (10, 11)]
    store.forget(f"{1:032x}")
    assert (store.spared(100), store.size) == ([], 0)


def test_a_last_piece_that_makes_no_sense_is_refused() -> None:
    *_, (part, attributes) = sliced(1, bytes(3000), 1000, {})
    piece = read_piece(attributes | {chunks.OFFSETS: "5-900"})
    assert piece is not None
    with pytest.raises(InvalidBatch, match="does not tell where"):
        PieceStore().take(piece, 50, part)
    piece = read_piece(attributes | {chunks.BYTES: "4000"})
    assert piece is not None
    whole = PieceStore().take(piece, 50, part)
    assert whole is not None
    while (missing := whole.missing) is not None:
        whole.add(missing[0], b"x")
    with pytest.raises(InvalidBatch, match="it was sent with 4000"):
        whole.payload()
