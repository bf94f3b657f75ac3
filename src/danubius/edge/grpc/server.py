"""A listening gRPC server made of servicers: one table of methods for each service.

A method is `async (request, context) -> response`, a stream `async (request, context) -> None` that writes what it has
with `await context.write(response)`, so that it hears at once, as a CancelledError, that its reader is gone. A
DanubiusError or Refused that it raises becomes the status of the answer, a request that is no message of its type is
INVALID_ARGUMENT, and a method that a servicer does not have is FAILED_PRECONDITION with the servicer's sentence:
nothing is UNIMPLEMENTED without one. An exception that is none of ours is a bug: it is logged and answered INTERNAL.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from danubius.edge.grpc.addresses import bracketed
from danubius.edge.grpc.standard import add_standard
from danubius.edge.grpc.status import Refused, status_of
from danubius.errors import DanubiusError, InvalidArgument, ShuttingDown

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

log = logging.getLogger(__name__)

Context = aio.ServicerContext[Any, Any]
Method = Callable[[Any, Context], Awaitable[Any]]
Stream = Callable[[Any, Context], Awaitable[None]]

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is read of one request: above every limit of messages, so that those are refused with a sentence of ours, and
not far above, as requests are read whole, however many come at once."""
CALLS_MAX: Final = 10_000
"""Under way on one connection."""
ALL_CALLS_MAX: Final = 20_000
"""On all of them: a stream that is held costs 18 kB."""
KEEPALIVE_MS: Final = 20_000
"""A connection silent for this long is asked whether it is alive, and ended without an answer in half the time."""

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_concurrent_streams", CALLS_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),  # clients may ask as often as they like
]


class Servicer(NamedTuple):
    """The methods of one service."""

    service: ServiceDescriptor
    methods: Mapping[str, Method]
    streams: Mapping[str, Stream] = {}
    refusal: str = "this broker does not serve it"
    """Why the methods that are missing here are refused."""


class _Malformed:
    """In the place of a request that is not one."""

    __slots__ = ("problem",)

    def __init__(self, problem: str) -> None:
        self.problem = problem


class _Door:
    """Whether new calls are let in."""

    __slots__ = ("is_closed",)

    def __init__(self) -> None:
        self.is_closed = False

    def check(self) -> None:
        if self.is_closed:
            raise ShuttingDown("the broker is stopping; try again")


def make_handlers(servicer: Servicer, door: _Door) -> grpc.GenericRpcHandler:
    """What grpc asks for the methods of a service."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for descriptor in servicer.service.methods:
        name = descriptor.name
        read = _reader(descriptor)
        write = GetMessageClass(descriptor.output_type).SerializeToString
        if name in servicer.streams:
            handlers[name] = grpc.unary_stream_rpc_method_handler(
                _guard(servicer.streams[name], descriptor, door), read, write
            )
        else:
            method = servicer.methods.get(name) or _refuse(servicer, name)
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                _guard(method, descriptor, door), read, write
            )
    return grpc.method_handlers_generic_handler(servicer.service.full_name, handlers)


def _reader(descriptor: MethodDescriptor) -> Callable[[bytes], Any]:
    parse = GetMessageClass(descriptor.input_type).FromString

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return _Malformed(str(error))

    return read


def _refuse(servicer: Servicer, name: str) -> Method:
    async def refuse(request: Any, context: Context) -> Any:
        del request, context
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"{name}: {servicer.refusal}")

    return refuse


def _check(request: Any, descriptor: MethodDescriptor) -> None:
    if isinstance(request, _Malformed):
        raise InvalidArgument(
            f"the request is not a {descriptor.input_type.full_name}: {request.problem}"
        )


def _guard(method: Method | Stream, descriptor: MethodDescriptor, door: _Door) -> Any:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            door.check()
            _check(request, descriptor)
            return await method(request, context)
        except DanubiusError as error:
            problem = Refused(status_of(error), error.message)
        except Refused as refused:
            problem = refused
        except aio.InternalError:
            # Its client went while something was written to it: nobody is left to be answered.
            log.debug("a gRPC client left", extra={"method": descriptor.full_name})
            return None
        except Exception:
            log.exception("a gRPC request failed", extra={"method": descriptor.full_name})
            problem = _BUG
        return await context.abort(problem.code, problem.message)

    return guarded


_BUG: Final = Refused(grpc.StatusCode.INTERNAL, "the broker failed; its log says how")


class GrpcServer:
    """One port and what is served on it: bind it, then tell it what to serve."""

    def __init__(self) -> None:
        self._server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=ALL_CALLS_MAX)
        self._door = _Door()

    def bind(self, host: str, port: int, option: str) -> int:
        """Take the port; returns the real one. `option` is how to choose another."""
        address = f"{bracketed(host)}:{port}"
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError:
            bound = 0
        if not bound:
            raise InvalidArgument(
                f"cannot listen on {address} for gRPC: choose another port with {option}"
            )
        return bound

    async def serve(self, servicers: Sequence[Servicer]) -> None:
        """Serve these, and the standard services about them, from now on."""
        self._server.add_generic_rpc_handlers(
            tuple(make_handlers(one, self._door) for one in servicers)
        )
        await add_standard(self._server, [one.service.full_name for one in servicers])
        await self._server.start()

    def refuse(self) -> None:
        """Answer new calls with UNAVAILABLE, and those under way as ever: clients begin to wait.

        For what comes in while the server closes is CANCELLED, which clients hand to their applications.
        """
        self._door.is_closed = True

    async def close(self, grace_s: float = 0.0) -> None:
        """Take no more calls, and end those under way after `grace_s`."""
        await self._server.stop(grace_s)
