"""Servers listen exactly where they are told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from danubius.runtime.listening import ipv4_alone, is_exposed, open_socket
from danubius.runtime.net import listen
from patience import HANG_S


def reaches(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=HANG_S):
        return True
    return False


@pytest.fixture
def grpc_server() -> Any:
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    yield server
    server.stop(0)


def test_grpc_on_every_ipv4_address_is_not_on_ipv6(grpc_server: Any) -> None:
    with ipv4_alone("0.0.0.0", 0) as port:
        bound = grpc_server.add_insecure_port(f"0.0.0.0:{port}")
    grpc_server.start()
    assert reaches("127.0.0.1", bound)
    assert not reaches("::1", bound)


def test_nothing_is_held_for_other_addresses(grpc_server: Any) -> None:
    with ipv4_alone("127.0.0.1", 0) as port:
        assert port == 0
        assert grpc_server.add_insecure_port("127.0.0.1:0")


@pytest.mark.parametrize(("host", "families"), [("0.0.0.0", "ipv4"), ("::", "both")])
async def test_the_native_port_listens_where_it_is_told(host: str, families: str) -> None:
    listener = await listen(host, 0, asyncio.Protocol)
    found = [
        "ipv4"
        if one.family == socket.AF_INET
        else ("ipv6" if one.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) else "both")
        for one in listener._server.sockets
    ]
    listener.close()
    await listener._server.wait_closed()
    assert found == [families]


def test_only_every_address_needs_a_socket_of_its_own() -> None:
    assert open_socket("127.0.0.1", 0, 5) is None


@pytest.mark.parametrize(
    ("host", "exposed"),
    [
        ("127.0.0.1", False), ("127.8.8.8", False), ("localhost", False), ("::1", False), ("[::1]", False),
        ("0.0.0.0", True), ("::", True), ("192.168.1.5", True), ("fe80::1%eth0", True), ("db.example", True),
    ],
)  # fmt: skip
def test_only_loopback_is_this_machine_alone(host: str, exposed: bool) -> None:
    assert is_exposed(host) is exposed
