"""A simulated world in which nothing goes wrong by itself: for tests that wait long, which costs nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")


class Calm:
    """A broker that serves, and whoever the test starts."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.world.threads.slowness = 0.0

    def run(self, test: Callable[[Calm], Coroutine[object, object, None]]) -> None:
        """`test` runs as a client on a host of its own."""
        self.world.start_broker()
        self.world.run(self._main(test))

    async def _main(self, test: Callable[[Calm], Coroutine[object, object, None]]) -> None:
        await self.world.has_served.wait()
        await self.on("client", test(self))

    def on(self, host: str, work: Coroutine[object, object, T]) -> Awaitable[T]:
        """Run something on another host."""
        loop = self.world.loop
        return loop.run_in(loop.begin(host), work, host)

    @property
    def now_s(self) -> float:
        return self.world.loop.time()
