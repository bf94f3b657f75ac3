"""Dialling and listening that cannot succeed say why, on both event loops."""

from __future__ import annotations

import asyncio
import socket

import pytest

from danubius.errors import BrokerUnavailable, InvalidArgument
from danubius.runtime.net import dial, listen
from patience import HANG_S


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


async def test_dial_where_nobody_listens_says_so() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        with pytest.raises(
            BrokerUnavailable, match=f"no broker at 127.0.0.1:{port}: Connection refused"
        ):
            await dial("127.0.0.1", port, asyncio.BufferedProtocol, timeout_s=HANG_S)


async def test_dial_gives_up_after_its_timeout() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(BrokerUnavailable, match=r"no broker answered at .* within 0 s"):
            await dial("127.0.0.1", port, asyncio.BufferedProtocol, timeout_s=0)


async def test_dial_of_an_impossible_name_says_so() -> None:
    with pytest.raises(BrokerUnavailable, match=r"no broker at no-such-host\.invalid:6651"):
        await dial("no-such-host.invalid", 6651, asyncio.BufferedProtocol, timeout_s=HANG_S)


async def test_listen_on_a_taken_port_says_so() -> None:
    listener = await listen("127.0.0.1", 0, asyncio.BufferedProtocol)
    try:
        port = listener.port
        with pytest.raises(
            InvalidArgument, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"
        ):
            await listen("127.0.0.1", port, asyncio.BufferedProtocol)
    finally:
        listener.close()
