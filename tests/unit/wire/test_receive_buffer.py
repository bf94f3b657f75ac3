"""How much memory a connection holds: little when idle, a bounded window under load, a payload's own size."""

from __future__ import annotations

import tracemalloc

import pytest

from danubius.wire.connection import Connection
from danubius.wire.memory import unfilled
from danubius.wire.receive_buffer import (
    CAPACITY_MAX,
    CAPACITY_MIN,
    DIRECT_BYTES_MIN,
    ReceiveBuffer,
)
from danubius.wire.states import Role


def consume(buffer: ReceiveBuffer) -> None:
    buffer.start = buffer.end


def fill(buffer: ReceiveBuffer, count: int | None = None) -> int:
    window = buffer.get_buffer()
    count = len(window) if count is None else count
    buffer.updated(count)
    return count


def test_idle_connection_is_small() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        connections = [Connection(Role.BROKER) for _ in range(100)]
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / len(connections) < CAPACITY_MIN + 2048


def test_reads_that_fill_the_window_make_it_grow_up_to_its_bound() -> None:
    buffer = ReceiveBuffer()
    for _ in range(20):
        fill(buffer)
        consume(buffer)

    assert len(buffer.get_buffer()) == CAPACITY_MAX


def test_quiet_times_make_it_small_again() -> None:
    buffer = ReceiveBuffer()
    for _ in range(20):
        fill(buffer)
        consume(buffer)
    for _ in range(20):
        fill(buffer, 32)
        consume(buffer)

    assert len(buffer.get_buffer()) == CAPACITY_MIN


def test_one_quiet_read_does_not_make_it_small() -> None:
    buffer = ReceiveBuffer()
    for _ in range(20):
        fill(buffer)
        consume(buffer)
    for _ in range(50):
        fill(buffer, 32)
        consume(buffer)
        fill(buffer, CAPACITY_MAX // 2)
        consume(buffer)

    assert len(buffer.get_buffer()) == CAPACITY_MAX


def test_reserved_room_is_offered_and_given_back() -> None:
    buffer = ReceiveBuffer()
    fill(buffer, 100)
    buffer.reserve(1_000_000)
    assert len(buffer.get_buffer()) >= 1_000_000 - 100

    consume(buffer)
    for _ in range(20):
        fill(buffer, 32)
        consume(buffer)
    assert len(buffer.get_buffer()) == CAPACITY_MIN


def test_bytes_survive_moving_to_the_front() -> None:
    buffer = ReceiveBuffer()
    buffer.append(bytes(range(256)) * 30)
    buffer.start = 7000
    buffer.get_buffer()

    assert buffer.start == 0
    assert buffer.view[: buffer.end] == (bytes(range(256)) * 30)[7000:]


@pytest.mark.parametrize("size", [DIRECT_BYTES_MIN, 3_000_000])
def test_direct_payload_takes_its_own_size_and_a_little(size: int) -> None:
    buffer = ReceiveBuffer()
    buffer.append(b"head" + bytes(100))
    buffer.begin_direct(4, size)

    assert size - 100 <= len(buffer.get_buffer()) <= size + 1024
    assert buffer.take_direct() is None


def test_window_is_never_empty_even_if_nobody_consumes() -> None:
    buffer = ReceiveBuffer()
    received = sum(fill(buffer) for _ in range(10))

    assert buffer.end - buffer.start == received
    assert len(buffer.get_buffer()) > 0


@pytest.mark.parametrize("size", [0, 1, DIRECT_BYTES_MIN, 1 << 20])
def test_unfilled_memory_is_an_ordinary_bytearray(size: int) -> None:
    memory = unfilled(size)
    assert type(memory) is bytearray
    memory[:] = bytes(size)
    assert memory == bytes(size)
    memory.extend(b"more")
    assert memory[size:] == b"more"
