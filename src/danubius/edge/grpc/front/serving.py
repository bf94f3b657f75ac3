"""The gRPC ports, in the front's process: every call is handed to the broker as the bytes it came in.

Nothing is parsed here but health and reflection, which need no broker. Invariants:
- A call that was handed over and whose client leaves before its end is cancelled at the broker.
- Of each stream at most a window and one message wait here for its reader; of requests at most RELAYED_BYTES_MAX wait
  for the broker, and more are refused as UNAVAILABLE.
- Of requests that are not complete, as many are read at once as `requests.py` allows, and each has REQUEST_BYTES_MAX;
  of the others a stream holds LOOKAHEAD_BYTES.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio

from danubius.edge.grpc import frames
from danubius.edge.grpc.addresses import bracketed
from danubius.edge.grpc.frames import Bound, header, peer_prefix
from danubius.edge.grpc.front.requests import Requests
from danubius.edge.grpc.window import Credit, cost_of
from danubius.runtime.listening import ipv4_alone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.edge.grpc.frames import Frame, Method, Open, Serve
    from danubius.edge.grpc.relay import Relay

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 10 * 1024 * 1024 + 64 * 1024
"""What is read of one request: Danube's own limit of messages, and what is around one. Messages above ours are refused
with a status on which its clients give up; what gRPC itself says of a larger one makes them try again for ever."""
LOOKAHEAD_BYTES: Final = 16 * 1024
"""Of a stream that nobody reads from yet."""
CONNECTIONS_MAX: Final = 5_000
"""On each port."""
HANDSHAKE_MS: Final = 10_000
"""For a connection to say that it is HTTP/2."""
IDLE_MS: Final = 300_000
"""A connection without a call for this long is ended in good order; its client connects again with its next call."""
RELAYED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of requests that the broker has not read yet."""
CALLS_MAX: Final = 10_000
"""Under way on one connection."""
ALL_CALLS_MAX: Final = 20_000
"""On all of them: a stream that is held costs 21 kB here, and 12 kB in the broker with its consumer."""
KEEPALIVE_MS: Final = 20_000
"""A connection silent for this long is asked whether it is alive, and ended without an answer in half the time."""
BIND_S: Final = 1.0
"""A port that is taken is tried for this long: the front of a broker that was just killed is about to let it go."""
_BIND_AGAIN_S: Final = 0.02

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_concurrent_streams", CALLS_MAX),
    # Calls that come in one burst wait for their turn: by default, of more than 1,000 some are cancelled at random.
    ("grpc.server.max_pending_requests", ALL_CALLS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", ALL_CALLS_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),  # clients may ask as often as they like
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    # Measuring the line would let windows grow to many times that, for every stream of the connection.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", IDLE_MS),
]
_STATUSES: Final = {code.value[0]: code for code in grpc.StatusCode}

Context = aio.ServicerContext[Any, Any]


class PortTaken(Exception):
    """A port cannot be had; the message is for whoever starts the broker."""


class _Reading:
    """A stream at the broker, as its reader here sees it."""

    __slots__ = ("_frames", "_waiter", "credit")

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.credit = Credit()

    @property
    def is_empty(self) -> bool:
        return not self._frames

    def put(self, frame: Frame) -> None:
        self._frames.append(frame)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def next(self) -> Frame:
        while not self._frames:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._frames.popleft()


class Ports:
    """Both ports, and the calls that are under way on them."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._loop = asyncio.get_running_loop()
        self._servers = [_server(), _server()]
        self._calls: dict[int, asyncio.Future[Frame] | _Reading] = {}
        self._last = 0
        self._requests = Requests()

    async def bind(self, asked: Open) -> Bound:
        """Take the ports; PortTaken if one of them is another's, and stays it."""
        data, admin = self._servers
        return Bound(
            await _bind(data, asked.host, asked.port, "--grpc-port"),
            await _bind(admin, asked.host, asked.admin_port, "--admin-port"),
        )

    async def serve(self, served: Serve) -> None:
        """Let clients in."""
        # Half of what there is to import: the broker has waited for the ports, and does not wait for this.
        from danubius.edge.grpc.front.standard import add_standard

        for server, methods in zip(self._servers, (served.data, served.admin), strict=True):
            names = self._add(server, methods)
            await add_standard(server, names, self._requests)
            await server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, and end those under way after `grace_s`."""
        async with asyncio.TaskGroup() as stopping:
            for server in self._servers:
                stopping.create_task(server.stop(grace_s))

    def hear(self, frame: Frame) -> None:
        """What the broker says about a call."""
        call = self._calls.get(frame.call)
        if isinstance(call, _Reading):
            call.put(frame)
        elif call is not None and not call.done():
            call.set_result(frame)

    # ------------------------------------------------------------ methods

    def _add(self, server: aio.Server, methods: Sequence[Method]) -> list[str]:
        """Serve these; returns the names of their services.

        A stream of requests is the same on the wire as one request, and is read when we say so and not before.
        """
        tables: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        for method in methods:
            table = tables.setdefault(method.service, {})
            if method.is_stream:
                table[method.name] = grpc.stream_stream_rpc_method_handler(self._stream(method))
            else:
                table[method.name] = grpc.stream_unary_rpc_method_handler(self._unary(method))
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(*item) for item in tables.items())
        )
        return list(tables)

    def _unary(self, method: Method) -> Any:
        async def call(_requests: Any, context: Context) -> bytes:
            await self._check(context)
            request = await self._requests.read(context)
            answered: asyncio.Future[Frame] = self._loop.create_future()
            number = self._hand_over(method, request, context, answered)
            try:
                frame = await answered
            except asyncio.CancelledError:
                self._relay.send(header(frames.CANCEL, 0, 0, number))
                raise
            finally:
                del self._calls[number]
            if frame.kind == frames.END:
                await _abort(context, frame)
            return frame.body

        return call

    def _stream(self, method: Method) -> Any:
        async def call(_requests: Any, context: Context) -> None:
            await self._check(context)
            request = await self._requests.read(context)
            reading = _Reading()
            number = self._hand_over(method, request, context, reading)
            try:
                last = await self._pass_on(number, reading, context)
            except BaseException as error:
                self._relay.send(header(frames.CANCEL, 0, 0, number))
                if not isinstance(error, aio.InternalError):
                    raise
                # Its client went while something was written to it: nobody is left to be answered.
                log.debug("a gRPC client left", extra={"method": method.name})
                return
            finally:
                del self._calls[number]
            if last.number:
                await _abort(context, last)

        return call

    async def _pass_on(self, number: int, reading: _Reading, context: Context) -> Frame:
        """Write what the broker writes; returns its last word."""
        while True:
            frame = await reading.next()
            if frame.kind != frames.WRITE:
                return frame
            await context.write(frame.body)
            credit = reading.credit.passed(cost_of(len(frame.body)), is_last=reading.is_empty)
            if credit:
                self._relay.send(header(frames.CREDIT, 0, credit, number))

    async def _check(self, context: Context) -> None:
        if self._relay.buffered_bytes > RELAYED_BYTES_MAX:
            sentence = "too much waits for the broker; try again in a second"
            await context.abort(grpc.StatusCode.UNAVAILABLE, sentence)

    def _hand_over(
        self,
        method: Method,
        request: bytes,
        context: Context,
        call: asyncio.Future[Frame] | _Reading,
    ) -> int:
        """Tell the broker of a call; returns its number."""
        self._last = number = self._last + 1
        self._calls[number] = call
        if method.wants_peer:
            request = peer_prefix(context.peer()) + request
        kind = frames.CALL_FROM if method.wants_peer else frames.CALL
        self._relay.send(header(kind, len(request), method.number, number), request)
        return number


def _server() -> aio.Server:
    return aio.server(options=_OPTIONS, maximum_concurrent_rpcs=ALL_CALLS_MAX)


async def _abort(context: Context, frame: Frame) -> None:
    code = _STATUSES.get(frame.number, grpc.StatusCode.UNKNOWN)
    await context.abort(code, frame.body.decode(errors="replace"))


async def _bind(server: aio.Server, host: str, port: int, option: str) -> int:
    """Take a port; returns the real one. `option` is how to choose another."""
    address = f"{bracketed(host)}:{port}"
    limit_s = time.monotonic() + BIND_S
    while True:
        try:
            with ipv4_alone(host, port) as free_port:
                bound = server.add_insecure_port(f"{bracketed(host)}:{free_port}")
        except RuntimeError:
            bound = 0
        if bound:
            return bound
        if time.monotonic() > limit_s:
            raise PortTaken(
                f"cannot listen on {address} for gRPC: choose another port with {option}"
            )
        await asyncio.sleep(_BIND_AGAIN_S)
