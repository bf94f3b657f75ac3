"""The framing and the flow control between the broker and its gRPC front, without a socket."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.edge.grpc import frames
from danubius.edge.grpc.frames import Frame, FrameReader, encode, header, peer_prefix, split_peer
from danubius.edge.grpc.window import Credit, SendWindow, cost_of
from danubius.errors import ProtocolViolation

BODY_MAX = 5_000

some_frames = st.lists(
    st.builds(
        Frame,
        st.sampled_from(sorted(frames.KINDS)),
        st.integers(0, frames.NUMBER_MAX),
        st.integers(0, frames.CALL_MAX),
        st.binary(max_size=60) | st.integers(0, BODY_MAX).map(bytes),
    ),
    max_size=12,
)


@given(some_frames, st.lists(st.integers(1, 400), max_size=60))
def test_any_cutting_of_the_same_bytes_gives_the_same_frames(
    sent: list[Frame], sizes: list[int]
) -> None:
    data = b"".join(map(encode, sent))
    reader, found, at = FrameReader(BODY_MAX), list[Frame](), 0
    for size in [*sizes, len(data)]:
        piece = data[at : at + size]
        at += size
        if not piece:
            continue
        reader.feed(piece)
        while (frame := reader.take()) is not None:
            found.append(frame)
        assert reader.held_bytes < frames.HEADER_BYTES + BODY_MAX
    assert found == sent
    assert reader.held_bytes == 0


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=10))
def test_any_bytes_are_frames_or_refused(pieces: list[bytes]) -> None:
    reader = FrameReader(100)
    try:
        for piece in pieces:
            reader.feed(piece)
            while (frame := reader.take()) is not None:
                assert frame.kind in frames.KINDS
                assert len(frame.body) <= 100
    except ProtocolViolation:
        pass


def test_a_frame_that_is_too_large_is_refused_before_it_is_there() -> None:
    reader = FrameReader(100)
    reader.feed(header(frames.CALL, 101))
    with pytest.raises(ProtocolViolation):
        reader.take()


@given(st.text(max_size=300), st.binary(max_size=50))
def test_a_peer_and_its_request_are_told_apart(peer: str, request: bytes) -> None:
    found, rest = split_peer(peer_prefix(peer) + request)
    assert rest == request
    assert len(found.encode()) <= 3 * 255
    if len(peer.encode(errors="replace")) <= 255:
        assert found == peer.encode(errors="replace").decode()


@pytest.mark.parametrize("body", [b"", b"\x05abc", b"\x01"])
def test_a_call_without_its_peer_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        split_peer(body)


@given(
    st.lists(st.integers(0, 300), max_size=60),
    st.lists(st.booleans(), max_size=300),
    st.integers(1, 400),
)
def test_a_stream_is_bounded_and_never_stuck(
    sizes: list[int], moves: list[bool], room: int
) -> None:
    """The writer and the front take turns in any order: all messages pass, and few are under way at a time."""
    window, credit = SendWindow(room), Credit(room)
    left, under_way, passed = deque(sizes), deque[int](), list[int]()

    def write() -> bool:
        if not left or not window.is_open:
            return False
        size = left.popleft()
        before = sum(map(cost_of, under_way))
        assert before < room
        window.take(cost_of(size))
        under_way.append(size)
        return True

    def pass_on() -> bool:
        if not under_way:
            return False
        size = under_way.popleft()
        passed.append(size)
        given = credit.passed(cost_of(size), is_last=not under_way)
        if given:
            window.give(given)
        return True

    for is_write in moves:
        if is_write:
            write()
        else:
            pass_on()
    while write() or pass_on():
        pass
    assert passed == sizes
    assert window.is_open


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40))
def test_who_waits_is_woken_once_when_there_is_room_again(costs: list[int]) -> None:
    window = SendWindow(100)
    taken, opened = 0, 0
    for cost in costs:
        if window.is_open:
            window.take(cost)
            taken += cost
    was_closed = not window.is_open
    for _ in range(taken):
        opened += window.give(1)
    assert opened == int(was_closed)
