"""The storage service over any LedgerStore: requests checked, carried out, and errors turned into statuses.

A sync gRPC server: stores block, and a worker takes its next request from the wire only when it has done the one
before, so memory is bounded by the workers. Every call has a deadline, which is looked at before its request is read,
and a request that does not come to its end is given up (`receiving.py`), so no worker is held for ever. What is wrong
with a request is said in a sentence, INVALID_ARGUMENT; an exception that is none of ours is a bug, logged and answered
INTERNAL.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from danubius.errors import DanubiusError, InvalidArgument, Overloaded, ShuttingDown, StorageFull
from danubius.runtime.listening import EXPOSED, ipv4_alone, is_exposed
from danubius.storage_service.bounds import (
    CALL_SECONDS_MAX,
    CALLS_MAX,
    CALLS_PER_CONNECTION_MAX,
    KEEPALIVE_MS,
    MESSAGE_BYTES_MAX,
    WORKERS,
)
from danubius.storage_service.calls import Calls, DamagedOnTheWay
from danubius.storage_service.figures import Figures
from danubius.storage_service.messages import POOL, SERVICE
from danubius.storage_service.receiving import Receiving
from danubius.storage_service.stores import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor import MethodDescriptor

    from danubius.storage_service.stores import Stores

log = logging.getLogger(__name__)

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),  # brokers may ask as often as they like
    # Measuring the line would let the windows of streams that nobody reads from grow.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server_handshake_timeout_ms", KEEPALIVE_MS // 2),
]
_Code = grpc.StatusCode
_NO_REQUEST: Final = "the call ended without a request"


class _Malformed:
    """In the place of a request that is not one."""

    __slots__ = ("problem",)

    def __init__(self, problem: str) -> None:
        self.problem = problem


def status_of(error: Exception) -> grpc.StatusCode:
    """As `storage.proto` promises it."""
    match error:
        case InvalidArgument():
            return _Code.INVALID_ARGUMENT
        case Fenced():
            return _Code.ABORTED
        case StorageFull():
            return _Code.RESOURCE_EXHAUSTED
        case Overloaded() | ShuttingDown():
            return _Code.UNAVAILABLE
        case DamagedOnTheWay():
            return _Code.DATA_LOSS
        case _:
            return _Code.INTERNAL


class StorageServer:
    """One port over the stores: bind, start, and stop before the stores are closed."""

    def __init__(self, stores: Stores, figures: Figures | None = None) -> None:
        self._figures = figures or Figures()
        self._figures.count_stores(lambda: len(stores))
        self._calls = Calls(stores, self._figures)
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="danubius-storage")
        self._is_stopping = False
        self._receiving = Receiving()
        self._server = grpc.server(self._pool, options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        handlers = {method.name: self._handler(method) for method in SERVICE.methods}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),)
        )
        self._add_standard()

    def bind(self, host: str, port: int) -> int:
        """Take the port; returns the real one."""
        shown = f"[{host}]" if ":" in host else host
        try:
            with ipv4_alone(host, port) as free_port:
                bound = self._server.add_insecure_port(f"{shown}:{free_port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise InvalidArgument(
                f"cannot listen on {shown}:{port}: choose another address with --listen"
            )
        if is_exposed(host):
            facts = {"host": host, "danger": EXPOSED}
            log.warning("this storage server is open to the network", extra=facts)
        return bound

    def start(self) -> None:
        self._receiving.start()
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those under way end, and wait for that."""
        self._is_stopping = True
        self._server.stop(grace_s).wait()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._receiving.close()

    def _add_standard(self) -> None:
        """Health for orchestrators, reflection for tools like grpcurl.

        Their requests are waited for as all others are. Nobody can watch health: it would hold a worker.
        """
        servicer = health.HealthServicer()
        for described in (health_pb2, reflection_pb2):
            POOL.AddSerializedFile(described.DESCRIPTOR.serialized_pb)
        known = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        names = (SERVICE.full_name, known, reflection.SERVICE_NAME)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    known, {"Check": self._checking_handler(servicer)}
                ),
                grpc.method_handlers_generic_handler(
                    reflection.SERVICE_NAME,
                    {"ServerReflectionInfo": self._reflection_handler(names)},
                ),
            )
        )
        servicer.set(SERVICE.full_name, health_pb2.HealthCheckResponse.SERVING)

    def _checking_handler(self, servicer: health.HealthServicer) -> Any:
        def check(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            for request in self._receiving.each(requests, context):
                return servicer.Check(request, context)
            return context.abort(_Code.INVALID_ARGUMENT, _NO_REQUEST)

        return grpc.stream_unary_rpc_method_handler(
            check,
            health_pb2.HealthCheckRequest.FromString,
            health_pb2.HealthCheckResponse.SerializeToString,
        )

    def _reflection_handler(self, names: tuple[str, ...]) -> Any:
        servicer: Any = reflection.ReflectionServicer(names, pool=POOL)

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            yield from servicer.ServerReflectionInfo(
                self._receiving.each(requests, context), context
            )

        return grpc.stream_stream_rpc_method_handler(
            answer,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )

    # ------------------------------------------------------------ one call

    def _handler(self, method: MethodDescriptor) -> Any:
        parse = GetMessageClass(method.input_type).FromString
        write = GetMessageClass(method.output_type).SerializeToString

        def read(data: bytes) -> Any:
            try:
                return parse(data)
            except DecodeError as error:
                return _Malformed(str(error))

        # As streams, whatever the proto says, which is the same on the wire: so the request is read by us, not before.
        work = getattr(self._calls, method.name)
        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(method, work), read, write)
        return grpc.stream_unary_rpc_method_handler(self._single(method, work), read, write)

    def _single(self, method: MethodDescriptor, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            problem = None
            began = time.monotonic()
            try:
                left = self._check(context)
                received = self._received(requests, context, method)
                answer = work(received if method.client_streaming else _first(received), left)
            except grpc.RpcError:
                self._figures.called(method.name, _Code.CANCELLED.name, time.monotonic() - began)
                raise  # nobody waits for an answer any more
            except Exception as error:  # noqa: BLE001  # whatever it is, the caller is told, or the log
                problem = error
                answer = None
            self._count(method, problem, began)
            return answer if problem is None else self._refuse(problem, method, context)

        return call

    def _streaming(self, method: MethodDescriptor, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            problem = None
            began = time.monotonic()
            try:
                left = self._check(context)
                yield from work(_first(self._received(requests, context, method)), left)
            except grpc.RpcError:
                raise  # nobody waits for an answer any more
            except Exception as error:  # noqa: BLE001  # whatever it is, the caller is told, or the log
                problem = error
            finally:
                self._count(method, problem, began)
            if problem is not None:
                self._refuse(problem, method, context)

        return call

    def _received(
        self, requests: Iterator[Any], context: grpc.ServicerContext, method: MethodDescriptor
    ) -> Iterator[Any]:
        return (_checked(each, method) for each in self._receiving.each(requests, context))

    def _check(self, context: grpc.ServicerContext) -> float:
        """Whether the call may go on, and for how many seconds."""
        if self._is_stopping:
            raise ShuttingDown("the storage server is stopping; try again")
        left: Any = (
            context.time_remaining()
        )  # None, or beyond every bound, where there is no deadline
        if left is None or left > CALL_SECONDS_MAX + 1.0:
            raise InvalidArgument(
                f"every call needs a deadline, at most {CALL_SECONDS_MAX:.0f} s ahead"
            )
        return left

    def _count(self, method: MethodDescriptor, problem: Exception | None, began: float) -> None:
        status = _Code.OK if problem is None else status_of(problem)
        self._figures.called(method.name, status.name, time.monotonic() - began)

    def _refuse(
        self, problem: Exception, method: MethodDescriptor, context: grpc.ServicerContext
    ) -> Any:
        if isinstance(problem, DanubiusError | Fenced | DamagedOnTheWay):
            text = str(problem)
        else:
            log.error("a call failed", exc_info=problem, extra={"method": method.name})
            text = "the storage server failed; its log says how"
        context.abort(status_of(problem), text)


def _first(received: Iterator[Any]) -> Any:
    for request in received:
        return request
    raise InvalidArgument(_NO_REQUEST)


def _checked(request: Any, method: MethodDescriptor) -> Any:
    if isinstance(request, _Malformed):
        raise InvalidArgument(
            f"the request is not a {method.input_type.full_name}: {request.problem}"
        )
    return request
