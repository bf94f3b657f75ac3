"""A simulated network: what TCP promises holds, and nobody is told what TCP does not tell."""

from __future__ import annotations

import asyncio
import errno
from typing import Final

import pytest
from sim_worlds import Ear, Small

from danubius.errors import BrokerUnavailable
from danubius.runtime.net import Listener, dial, listen
from danubius.sim.transport import GIVE_UP_S, WINDOW_BYTES

LONG_S: Final = 10 * GIVE_UP_S
MOMENT_S: Final = 2.0
BLINK_S: Final = 0.001
PATIENCE_S: Final = 5.0
CONTENT: Final = bytes(range(256)) * 40


@pytest.mark.parametrize("seed", range(5))
def test_bytes_come_whole_and_in_order_however_they_are_cut_and_lost(seed: int) -> None:
    small = Small(seed)

    async def main() -> None:
        for link in small.net.links("client", "server"):
            link.pieces, link.loss, link.jitter_s = 0.9, 0.3, 0.5
        near, far = await small.connect()
        for start in range(0, len(CONTENT), 512):
            near.transport.write(CONTENT[start : start + 512])
            await asyncio.sleep(BLINK_S)
        near.transport.write_eof()
        await far.ended.wait()
        await near.ended.wait()
        assert bytes(far.heard) == CONTENT
        assert len(far.calls) > len(CONTENT) // 512
        assert (near.lost, far.lost) == (None, None)

    small.run(main())


def test_a_peer_that_does_not_read_fills_the_window_and_then_the_buffer() -> None:
    small = Small()

    async def main() -> None:
        near, far = await small.connect()
        near.transport.set_write_buffer_limits(high=1000, low=0)
        far.transport.pause_reading()
        near.transport.write(bytes(WINDOW_BYTES))
        assert near.pauses == []
        near.transport.write(bytes(2000))
        assert near.pauses == ["pause"]
        assert near.transport.get_write_buffer_size() == 2000
        await asyncio.sleep(LONG_S)
        assert not far.heard
        far.transport.resume_reading()
        await asyncio.sleep(MOMENT_S)
        assert len(far.heard) == WINDOW_BYTES + 2000
        assert near.pauses == ["pause", "resume"]

    small.run(main())


def test_a_cut_tells_nobody_and_delays_what_is_sent() -> None:
    small = Small()

    async def main() -> None:
        near, far = await small.connect()
        small.net.cut("client", "server")
        near.transport.write(b"hello")
        far.transport.write(b"the other way")
        await asyncio.sleep(GIVE_UP_S / 2)
        assert (bytes(far.heard), bytes(near.heard)) == (b"", b"the other way")
        small.net.mend("client", "server")
        await far.news.wait()
        assert bytes(far.heard) == b"hello"

    small.run(main())


def test_who_sends_into_a_cut_is_told_after_long_and_who_listens_never() -> None:
    small = Small()

    async def main() -> None:
        near, far = await small.connect()
        small.net.cut("client", "server")
        near.transport.write(b"hello")
        await near.ended.wait()
        assert isinstance(near.lost, TimeoutError)
        await asyncio.sleep(LONG_S)
        assert far.calls == []
        assert small.net.half_open("server") == 1

    small.run(main())


def test_a_host_without_power_says_nothing_and_a_reset_when_it_is_back() -> None:
    small = Small()

    async def main() -> None:
        near, _ = await small.connect()
        small.net.turn_off("server")
        await asyncio.sleep(LONG_S)
        assert near.calls == []
        small.net.turn_on("server")
        near.transport.write(b"are you there")
        await near.ended.wait()
        assert isinstance(near.lost, ConnectionResetError)

    small.run(main())


def test_a_process_that_dies_is_hung_up_by_its_kernel() -> None:
    small = Small()

    async def main() -> None:
        near, far = await small.connect()
        far.transport.write(b"last words")
        small.net.hang_up("server")
        await near.ended.wait()
        assert bytes(near.heard) == b"last words"
        assert near.calls == ["data", "eof", "lost"]

    small.run(main())


def test_unread_bytes_make_a_reset_of_an_end() -> None:
    small = Small()

    async def main() -> None:
        near, far = await small.connect()
        far.transport.pause_reading()
        near.transport.write(b"nobody reads this")
        await asyncio.sleep(MOMENT_S)
        far.transport.abort()
        await near.ended.wait()
        assert isinstance(near.lost, ConnectionResetError)

    small.run(main())


def test_both_ends_hear_of_a_reset() -> None:
    small = Small()

    async def main() -> None:
        near, far = await small.connect()
        assert small.net.reset("client", "server") == 2
        await near.ended.wait()
        await far.ended.wait()
        assert isinstance(near.lost, OSError)
        assert near.lost.errno == errno.ECONNRESET

    small.run(main())


def test_dialling_is_refused_borne_out_or_given_up() -> None:
    small = Small()

    async def main() -> None:
        with pytest.raises(BrokerUnavailable, match="refused"):
            await dial("server", 1, Ear, timeout_s=PATIENCE_S)
        small.net.turn_off("server")
        with pytest.raises(BrokerUnavailable, match="no broker answered"):
            await dial("server", 1, Ear, timeout_s=PATIENCE_S)
        small.net.turn_on("server")
        assert isinstance(await listen("server", 0, Ear), Listener)
        listener = await listen("server", 7, Ear)
        assert listener.port == 7
        small.net.cut("client", "server")
        asyncio.get_running_loop().call_later(MOMENT_S, small.net.mend_all)
        await dial("server", 7, Ear, timeout_s=PATIENCE_S)
        listener.close()
        with pytest.raises(BrokerUnavailable, match="refused"):
            await dial("server", 7, Ear, timeout_s=PATIENCE_S)

    async def as_client() -> None:
        await small.loop.run_in(small.loop.begin("client"), main())

    small.run(as_client())
