"""Openings of clients, producers, consumers and readers: to be awaited, or entered with `async with`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType


class Closing(Protocol):
    """Something that is closed when its block ends."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


ThingT = TypeVar("ThingT", bound=Closing)


class Opening(Generic[ThingT]):
    """A thing that is not open yet. Nothing happens before it is awaited or entered.

    Example:
        async with client.producer("/default/orders") as producer: ...   # closed at the end of the block
        producer = await client.producer("/default/orders")              # to be closed by `await producer.close()`
    """

    __slots__ = ("_open", "_thing")

    def __init__(self, open_thing: Callable[[], Awaitable[ThingT]]) -> None:
        self._open = open_thing
        self._thing: ThingT | None = None

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{name!r} of what is not open yet: write `thing = await client.producer(...)` or"
            " `async with client.producer(...) as thing` (the same for connect, consumer and reader)",
            name=name,
            obj=self,
        )

    def __await__(self) -> Generator[Any, None, ThingT]:
        return self._open().__await__()

    async def __aenter__(self) -> ThingT:
        self._thing = await self._open()
        return self._thing

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._thing is not None
        await self._thing.__aexit__(kind, error, trace)
