"""A network of simulated hosts: who listens where, who is connected to whom, and what may go wrong between them.

Each pair of hosts has a link in each direction (see `link`), so a cut may be one-way. A host that is off answers
nobody; its connections are gone when it is on again, and whoever still believes in them is told by a reset at the next
byte. A process that dies leaves its host on: the kernel ends its connections. Every wait has a bound: a dial ends
after `DIAL_S`, unsent bytes after `transport.GIVE_UP_S`.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from typing import TYPE_CHECKING, Any, Final

from danubius.sim.link import Link
from danubius.sim.processes import CURRENT
from danubius.sim.transport import SimTransport

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from danubius.sim.loop import SimLoop
    from danubius.sim.processes import Process

    Factory = Callable[[], asyncio.BaseProtocol]

FIRST_PORT: Final = 20_000
DIAL_S: Final = 127.0
"""As long as a kernel tries to connect."""
_RETRY_S: Final = 1.0
"""Until the first word of a connection is said again, and twice as long each time."""


class SimNet:
    """See the module."""

    def __init__(self, loop: SimLoop, dice: random.Random) -> None:
        self.loop = loop
        self.dice = dice
        self.context = contextvars.copy_context()
        """The network's own: nobody's process."""
        self.stuck: dict[SimTransport, None] = {}
        """Those with something under way that does not come through."""
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._transports: dict[SimTransport, None] = {}
        self._off: set[str] = set()
        self._next_port = FIRST_PORT

    # ------------------------------------------------------------ what tests do to a network

    def link(self, source: str, target: str) -> Link:
        """The way from one host to another; made when it is first asked for."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self.dice)
        return link

    def links(self, one: str, other: str) -> tuple[Link, Link]:
        """Both ways."""
        return self.link(one, other), self.link(other, one)

    def cut(self, source: str, target: str) -> None:
        """Nothing comes from one host to the other any more; nobody is told."""
        self.link(source, target).is_cut = True

    def mend(self, source: str, target: str) -> None:
        self.link(source, target).is_cut = False
        self._look_at_stuck()

    def mend_all(self) -> None:
        for link in self._links.values():
            link.is_cut = False
        self._look_at_stuck()

    def reset(self, one: str, other: str) -> int:
        """Something between two hosts resets all their connections; how many there were."""
        hosts = {one, other}
        found = [t for t in self._transports if {t.host, t.peer_host} == hosts]
        for transport in found:
            self.loop.call_soon(
                transport.reset,
                ConnectionResetError(errno.ECONNRESET, "reset"),
                context=self.context,
            )
        return len(found)

    def turn_off(self, host: str) -> None:
        """Power loss of a host: its connections vanish without a word. Its processes are the caller's to kill."""
        self._off.add(host)
        self._forget_host(host, SimTransport.vanish)

    def turn_on(self, host: str) -> None:
        self._off.discard(host)
        self._look_at_stuck()

    def hang_up(self, host: str) -> None:
        """The processes of a host are dead; the kernel ends their connections."""
        self._forget_host(host, SimTransport.hang_up)

    def half_open(self, host: str) -> int:
        """How many connections a host believes in of which the other end is gone."""
        return sum(
            transport.host == host and transport.other.is_gone for transport in self._transports
        )

    def is_up(self, host: str) -> bool:
        return host not in self._off

    # ------------------------------------------------------------ what the loop asks for

    def listen(self, factory: Factory, host: str, port: int) -> SimServer:
        if not port:
            port = self._draw_port()
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        server = SimServer(self, factory, host, port)
        self._listeners[host, port] = server
        return server

    async def dial(
        self, factory: Factory, host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        process = CURRENT.get()
        here = host if process is None else process.host
        near = SimTransport(self, process, here, host)
        near.port, near.peer_port = self._draw_port(), port
        answer: asyncio.Future[OSError | None] = self.loop.create_future()
        context = contextvars.copy_context()
        self._knock(near, answer, _RETRY_S)
        try:
            async with asyncio.timeout(DIAL_S):
                refusal = await answer
        except BaseException:
            if hasattr(near, "other"):
                near.hang_up()
            self.forget(near)
            raise
        if refusal is None and near.is_gone:
            refusal = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if refusal is not None:
            raise refusal
        protocol = factory()
        near.make(protocol, context)
        return near, protocol

    # ------------------------------------------------------------ inside

    def _knock(
        self, near: SimTransport, answer: asyncio.Future[OSError | None], retry_s: float
    ) -> None:
        """The first word of a connection; said again until there is an answer or nobody waits for one."""
        if answer.done():
            return
        there, back = self.links(near.host, near.peer_host)
        if there.is_cut or back.is_cut or not self.is_up(near.peer_host):
            self.loop.call_later(
                retry_s, self._knock, near, answer, 2 * retry_s, context=self.context
            )
            return
        self.loop.call_later(there.transit_s(0), self._knocked, near, answer, context=self.context)

    def _knocked(self, near: SimTransport, answer: asyncio.Future[OSError | None]) -> None:
        if answer.done():
            return
        back = self.link(near.peer_host, near.host)
        answered_s = self.loop.time() + back.transit_s(0)
        server = self._listeners.get((near.peer_host, near.peer_port))
        refusal: OSError | None = None
        if server is None:
            refusal = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        else:
            far = SimTransport(self, server.process, near.peer_host, near.host)
            far.port, far.peer_port = near.peer_port, near.port
            far.other, near.other = near, far
            far.hold_until(answered_s)
            self._transports[near] = self._transports[far] = None
            self.loop.call_soon(server.accept, far, context=server.context)
        self.loop.call_at(answered_s, _settle, answer, refusal, context=self.context)

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport, None)

    def unlisten(self, server: SimServer) -> None:
        if self._listeners.get((server.host, server.port)) is server:
            del self._listeners[server.host, server.port]

    def moved(self, source: SimTransport, data: bytes) -> None:
        """Bytes have arrived: for the trace."""
        if self.loop.trace is not None:
            ends = f"{source.host}:{source.port} {source.peer_host}:{source.peer_port}"
            self.loop.trace.add(ends, data.hex())

    def _forget_host(self, host: str, end: Callable[[SimTransport], None]) -> None:
        for server in [one for one in self._listeners.values() if one.host == host]:
            self.unlisten(server)
        for transport in [one for one in self._transports if one.host == host]:
            end(transport)
            self.forget(transport)

    def _look_at_stuck(self) -> None:
        for transport in list(self.stuck):
            if not transport.link.is_cut and self.is_up(transport.peer_host):
                del self.stuck[transport]
                transport.mended()

    def _draw_port(self) -> int:
        self._next_port += 1
        return self._next_port


class SimServer:
    """Stands for an asyncio.Server: who listens at one address."""

    def __init__(self, net: SimNet, factory: Factory, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.process: Process | None = CURRENT.get()
        self.context = contextvars.copy_context()
        self._net = net
        self._factory = factory

    @property
    def sockets(self) -> list[_Address]:
        return [_Address(self.host, self.port)]

    def close(self) -> None:
        self._net.unlisten(self)

    def accept(self, transport: SimTransport) -> None:
        if not transport.is_gone:
            transport.make(self._factory(), self.context)


class _Address:
    """Stands for a listening socket."""

    def __init__(self, host: str, port: int) -> None:
        self._name = host, port

    def getsockname(self) -> tuple[str, int]:
        return self._name


def _settle(answer: asyncio.Future[Any], refusal: OSError | None) -> None:
    if not answer.done():
        answer.set_result(refusal)
