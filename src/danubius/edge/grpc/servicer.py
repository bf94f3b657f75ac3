"""Services as tables of methods, and what a method sees of the call that it answers.

A method is `async (request, context) -> response`, a stream `async (request, context) -> None` that writes what it has
with `await context.write(response)`, so that it hears at once, as a CancelledError, that its reader is gone. A quick
method is `(request, call) -> response`: it answers before it returns, or returns None and answers later, with
`call.answer(response)` or `call.fail(error)`; so it costs no task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor


class Context(Protocol):
    """A call, as its method sees it."""

    def peer(self) -> str:
        """Who called, as gRPC writes it; empty unless the servicer asked for the peers of this method."""
        ...

    async def write(self, response: Any) -> None:
        """Send one message of a stream; waits while its reader does not keep up."""
        ...


class QuickCall(Protocol):
    """A call, as a quick method sees it."""

    def peer(self) -> str: ...

    def answer(self, response: Any) -> None: ...

    def fail(self, error: Exception) -> None: ...


Method = Callable[[Any, Context], Awaitable[Any]]
Stream = Callable[[Any, Context], Awaitable[None]]
Quick = Callable[[Any, QuickCall], Any]


class Servicer(NamedTuple):
    """The methods of one service."""

    service: ServiceDescriptor
    methods: Mapping[str, Method] = {}
    streams: Mapping[str, Stream] = {}
    quick: Mapping[str, Quick] = {}
    refusal: str = "this broker does not serve it"
    """Why the methods that are missing here are refused."""
    asking_peer: frozenset[str] = frozenset()
    """Methods that look at who called."""
