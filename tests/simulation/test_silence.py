"""Peers that vanish or fall silent without a word, in virtual time: the other side notices in time and goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

import danubius
from danubius.runtime.net import dial
from simulation.calm import Calm
from simulation.world import BROKER, HOST, PORT, URL

if TYPE_CHECKING:
    from danubius.client.options import SubscriptionTypeName

TOPIC: Final = "/default/t"
COUNT: Final = 20
NOTICED_S: Final = 5 * BROKER.keepalive_ms / 1000
"""Three silences and one look, rounded up."""
SEND_S: Final = 4.0
DIAL_S: Final = 5.0
SOON_S: Final = 1.0
"""In virtual time: many turns of everything."""


async def _take(kind: SubscriptionTypeName, count: int, *, is_lost: bool) -> list[int]:
    """Offsets of so many messages; who is to be lost keeps them and never comes back."""
    async with (
        danubius.connect(URL) as client,
        client.consumer(TOPIC, subscription=kind, type=kind, start="earliest") as consumer,
    ):
        taken = [(await consumer.receive()).offset for _ in range(count)]
        if is_lost:
            await asyncio.Event().wait()
        return taken


@pytest.mark.parametrize("kind", ["failover", "shared", "exclusive"])
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "power loss"])
def test_whoever_is_half_open_gives_way(kind: SubscriptionTypeName, *, cut: bool) -> None:
    """Standby is promoted, messages are delivered again, an exclusive place is free, all within the keepalive."""
    calm = Calm()
    net = calm.world.net

    async def main(calm: Calm) -> None:
        async with danubius.connect(URL) as client, client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(COUNT)])
            calm.on("lost", _take(kind, COUNT, is_lost=True))
            await asyncio.sleep(SOON_S)
            before_s = calm.now_s
            if cut:
                net.cut("lost", HOST)
                net.cut(HOST, "lost")
            else:
                net.turn_off("lost")
            assert net.half_open(HOST) == (0 if cut else 1)
            while True:
                try:
                    taken = await calm.on("next", _take(kind, COUNT, is_lost=False))
                    break
                except danubius.SubscriptionBusy:
                    assert kind == "exclusive"
                    await asyncio.sleep(SOON_S / 10)
            assert sorted(taken) == list(range(COUNT))
            assert BROKER.keepalive_ms / 1000 < calm.now_s - before_s < NOTICED_S
            await asyncio.sleep(NOTICED_S)
            assert net.half_open(HOST) == 0, "whoever asks for a taken place is served before that"

    calm.run(main)


@pytest.mark.parametrize("ways", [[("client", HOST)], [(HOST, "client")]], ids=["there", "back"])
def test_a_send_over_a_line_that_fell_silent_fails_by_its_deadline(
    ways: list[tuple[str, str]],
) -> None:
    calm = Calm()

    async def main(calm: Calm) -> None:
        async with danubius.connect(URL) as client:
            producer = await client.producer(TOPIC, send_timeout=SEND_S)
            await producer.send(b"fine")
            for source, target in ways:
                calm.world.net.cut(source, target)
            before_s = calm.now_s
            with pytest.raises(danubius.DanubiusError) as caught:
                await producer.send(b"lost")
            assert caught.value.is_retryable
            assert calm.now_s - before_s == pytest.approx(SEND_S, abs=SOON_S / 10)

    calm.run(main)


class _Mute(asyncio.Protocol):
    """Connects and says nothing."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


def test_a_connection_that_says_nothing_is_closed() -> None:
    async def main(calm: Calm) -> None:
        before_s = calm.now_s
        mute = await dial(HOST, PORT, _Mute, timeout_s=DIAL_S)
        await mute.ended.wait()
        waited_s = calm.now_s - before_s
        assert 0 <= waited_s - BROKER.handshake_timeout_ms / 1000 < BROKER.keepalive_ms / 1000

    Calm().run(main)
