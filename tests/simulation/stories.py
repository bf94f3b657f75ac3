"""The story of a seed: what goes wrong in its world and when; that all heals then, comes to rest and is right."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import danubius
from danubius.errors import DanubiusError, StorageFailed, StorageFull
from simulation.books import Broken
from simulation.programs import EVER_S, MOVED, TOPIC, Programs
from simulation.world import HOST, URL, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from danubius.sim.trace import Trace

REST_S: Final = 120.0
"""After the last fault everything is sent, delivered and acknowledged within this, in virtual time."""
_LOOK_S: Final = 0.25


def run_seed(seed: int, trace: Trace | None = None) -> World:
    """Live through a seed's world. Raises what is wrong with it, with the story in its notes."""
    world = World(seed, trace)
    story = Story(world)
    try:
        world.run(story.tell())
    except BaseException as error:
        error.add_note("\n".join(world.story))
        error.add_note(f"make simulate SEED={seed}   repeats it exactly")
        raise
    return world


class Story:
    """One seed's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice
        self._programs = Programs(world)

    async def tell(self) -> None:
        world, dice = self._world, self._dice
        world.start_broker()
        self._programs.start()
        faults: list[Callable[[], Awaitable[None]]] = [
            self._power,
            self._power_inside,
            self._kill,
            self._restart,
            self._pause,
            self._cut,
            self._cut_one_way,
            self._reset,
            self._bad_link,
            self._failing_disk,
            self._full_disk,
            self._slow_disk,
            self._kill_client,
            self._power_off_client,
        ]
        await asyncio.sleep(dice.uniform(0.0, 0.5))
        for _ in range(dice.randint(3, 7)):
            await dice.choice(faults)()
            await asyncio.sleep(dice.uniform(0.0, 1.0))
        world.heal()
        self._programs.is_calm = True
        await self._rest()
        await self._settle_accounts()

    # ------------------------------------------------------------ what goes wrong

    async def _power(self) -> None:
        self._world.power_off(self._dice.uniform(0.1, 3.0))

    async def _power_inside(self) -> None:
        self._world.power_off_inside(self._dice.randrange(40))

    async def _kill(self) -> None:
        self._world.kill_broker(self._dice.uniform(0.05, 1.0))

    async def _restart(self) -> None:
        await self._world.restart_broker()

    async def _pause(self) -> None:
        await self._world.pause_broker(self._dice.choice([0.2, 1.5, 5.0]))

    async def _cut(self) -> None:
        """Both ways, longer than silence is borne or shorter."""
        host = self._dice.choice(self._world.hosts)
        await self._cut_for([(host, HOST), (HOST, host)])

    async def _cut_one_way(self) -> None:
        way = [self._dice.choice(self._world.hosts), HOST]
        self._dice.shuffle(way)
        await self._cut_for([(way[0], way[1])])

    async def _cut_for(self, ways: list[tuple[str, str]]) -> None:
        for_s = self._dice.choice([0.3, 1.0, 6.0])
        self._world.note("cut", *ways, "for", for_s)
        for source, target in ways:
            self._world.net.cut(source, target)
        await asyncio.sleep(for_s)
        for source, target in ways:
            self._world.net.mend(source, target)

    async def _reset(self) -> None:
        host = self._dice.choice(self._world.hosts)
        self._world.note("reset of", self._world.net.reset(host, HOST) // 2, "connections of", host)

    async def _bad_link(self) -> None:
        host = self._dice.choice(self._world.hosts)
        self._world.note("a bad link for", host)
        for link in self._world.net.links(host, HOST):
            link.loss = self._dice.choice([0.0, 0.1, 0.4])
            link.delay_s = self._dice.uniform(0.0, 0.2)
            link.pieces = self._dice.choice([0.1, 0.9])

    async def _failing_disk(self) -> None:
        self._world.fail_disk(
            self._dice.choice(["write", "sync"]),
            self._dice.choice([1, 3, 20]),
            self._dice.choice([StorageFailed, StorageFull]),
        )

    async def _full_disk(self) -> None:
        files = self._world.files
        room = self._dice.randrange(20_000)
        self._world.note("the disk has room for", room)
        self._world.trouble()
        files.capacity_bytes = files.used_bytes() + room
        await asyncio.sleep(self._dice.uniform(0.5, 3.0))
        files.capacity_bytes = None
        self._world.note("the disk has room again")

    async def _slow_disk(self) -> None:
        self._world.note("a slow disk")
        self._world.trouble()
        self._world.threads.slowness = self._dice.choice([0.2, 0.9])

    async def _kill_client(self) -> None:
        host = self._dice.choice(self._world.hosts)
        await self._world.kill_client(host, self._dice.uniform(0.0, 1.0))

    async def _power_off_client(self) -> None:
        host = self._dice.choice(self._world.hosts)
        await self._world.power_off_client(host, self._dice.choice([0.1, 1.0, 5.0]))

    # ------------------------------------------------------------ the end

    async def _rest(self) -> None:
        """Until all that was sent is delivered and acknowledged, and the broker believes in nobody who is gone."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + REST_S
        net = self._world.net
        while net.half_open(HOST) or not await self._is_at_rest():
            if loop.time() > until_s:
                raise Broken(f"no rest {REST_S:.0f} s after the last fault")
            await asyncio.sleep(_LOOK_S)
        self._world.note("at rest")
        self._programs.is_over = True

    async def _is_at_rest(self) -> bool:
        programs, book = self._programs, self._world.topic(TOPIC)
        if not (programs.loaded and programs.is_sent and book.scheduled <= {*book.log.values()}):
            return False
        return await self._audit(_has_no_backlog, TOPIC)

    async def _settle_accounts(self) -> None:
        """An orderly end, one more life, and everything is read."""
        world = self._world
        await world.restart_broker()
        content = {topic: await self._audit(_read_all, topic) for topic in world.topics}
        for name, book in world.topics.items():
            book.check(content[name])
        for book in world.subscriptions.values():
            book.check(len(content[book.topic.name]))
        given = {b"%d:%s" % line for line in content[TOPIC]}
        moved = {payload for _, payload in content[MOVED]}
        if given != moved:
            raise Broken(
                f"not moved: {sorted(given - moved)[:5]}; only moved: {sorted(moved - given)[:5]}"
            )
        if not await self._is_at_rest():
            raise Broken("a restart brought something back that was acknowledged")

    async def _audit(self, ask: Callable[..., Any], fact: object) -> Any:
        """What a client finds that is sure to have a good connection; it asks until it is answered."""
        auditor = self._world.loop.begin("auditor")
        return await self._world.loop.run_in(auditor, _asked(ask, fact), "audit")


async def _asked(ask: Callable[..., Any], fact: object) -> Any:
    while True:
        try:
            async with danubius.connect(URL, reconnect_timeout=EVER_S) as client:
                return await ask(client, fact)
        except DanubiusError as error:
            if not error.is_retryable:
                raise
        await asyncio.sleep(_LOOK_S)


async def _has_no_backlog(client: danubius.Client, topic: str) -> bool:
    described = await client.describe_topic(topic)
    return len(described.subscriptions) == 5 and not any(
        subscription.backlog for subscription in described.subscriptions
    )


async def _read_all(client: danubius.Client, topic: str) -> list[tuple[int, bytes]]:
    async with client.reader(topic, start=0, stop_at_end=True) as reader:
        return [(message.offset, message.payload) async for message in reader]
