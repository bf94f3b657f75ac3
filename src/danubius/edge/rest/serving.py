"""From a request on the HTTP port to an answer: bounds, media types, the struct, the endpoint, the JSON.

Whatever is wrong with a request is answered with a problem; an exception that is none of ours is a bug and a 500.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from danubius.edge.rest import administering, messaging
from danubius.edge.rest.bounds import REQUEST_S, WAIT_MS_MAX
from danubius.edge.rest.endpoint import JSON
from danubius.edge.rest.openapi import describe
from danubius.edge.rest.page import addressed, render
from danubius.edge.rest.pieces import send_in_pieces
from danubius.edge.rest.problems import (
    CrossOrigin,
    MethodNotAllowed,
    PathNotFound,
    UnsupportedMediaType,
    respond,
)
from danubius.edge.rest.tail import TailResponse
from danubius.errors import (
    ClientClosed,
    DanubiusError,
    DeadlineExceeded,
    InvalidArgument,
    ShuttingDown,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Scope, Send

    from danubius.edge.rest.desk import Desk
    from danubius.edge.rest.endpoint import Endpoint

ENDPOINTS: Final[Sequence[Endpoint]] = (*administering.ENDPOINTS, *messaging.ENDPOINTS)
OCTETS: Final = "application/octet-stream"
_NO_CONTENT: Final = 204
_STOPPING: Final = "the broker is stopping; try again in a moment"
_encode: Final = msgspec.json.Encoder().encode


def rest_routes(desk: Desk, version: str) -> list[Route]:
    """The routes of the REST interface, its description and its page."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        methods = by_path.setdefault(endpoint.path, {})
        assert endpoint.method not in methods
        methods[endpoint.method] = endpoint
    routes = [Route(path, Resource(desk, path, methods)) for path, methods in by_path.items()]
    description = _encode(describe(ENDPOINTS, version))
    page = render(ENDPOINTS)

    async def openapi(_request: Request) -> Response:
        return Response(description, media_type=JSON)

    async def listing(request: Request) -> Response:
        return Response(addressed(page, str(request.base_url).rstrip("/")), media_type="text/html")

    return [*routes, Route("/openapi.json", openapi), Route("/api", listing)]


async def not_found(request: Request, _error: Exception) -> Response:
    """The answer where no route leads."""
    path = request.url.path[:200]
    return respond(PathNotFound(f"there is nothing at {path!r}; /api lists what there is"))


async def not_allowed(request: Request, error: Exception) -> Response:
    """The answer to a method that a page does not take."""
    headers: dict[str, str] = getattr(error, "headers", None) or {}
    allowed = headers.get("Allow", "GET")
    return respond(
        MethodNotAllowed(
            f"{request.url.path[:200]!r} takes {allowed}, not {request.method[:20]}",
            {"allow": allowed},
        )
    )


class Resource:
    """All methods of one path, as an ASGI application."""

    def __init__(self, desk: Desk, path: str, methods: dict[str, Endpoint]) -> None:
        self._desk = desk
        self.path = path
        """As it is declared, with names in braces."""
        self._methods = methods
        self._allowed = ", ".join(sorted(methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with contextlib.ExitStack() as held:
            try:
                answer = await self._answer(request, held)
                # Of what changed something, the answer must go out; those are small, or few.
                if isinstance(answer, Response) and request.method == "GET":
                    held.enter_context(self._desk.answers.take(len(answer.body)))
            except ClientDisconnect:
                return
            except DanubiusError as error:
                answer = respond(self._seen(error))
            if isinstance(answer, TailResponse):
                await answer(scope, receive, send)
            else:
                await send_in_pieces(answer, scope, send)

    def _seen(self, error: DanubiusError) -> DanubiusError:
        """Lines are closed when the broker stops: say that."""
        if isinstance(error, ClientClosed) and self._desk.stopping.is_set():
            return ShuttingDown(_STOPPING)
        return error

    def _refuse_when_stopping(self) -> None:
        if self._desk.stopping.is_set():
            raise ShuttingDown(_STOPPING)

    async def _answer(
        self, request: Request, held: contextlib.ExitStack
    ) -> Response | TailResponse:
        endpoint = self._methods.get(request.method)
        if endpoint is None:
            raise MethodNotAllowed(
                f"this path takes {self._allowed}, not {request.method[:20]}",
                {"allow": self._allowed},
            )
        self._refuse_when_stopping()
        if endpoint.method != "GET":
            _check_origin(request)
        asked = await self._read(endpoint, request, held)
        self._refuse_when_stopping()  # its body may have come late, and its session be gone
        # Only now: whoever announces a body and does not send it must not take the place of one who does.
        held.enter_context(self._desk.requests.take())
        try:
            async with asyncio.timeout(REQUEST_S + WAIT_MS_MAX / 1000):
                reply = await endpoint.run(self._desk, asked)
        except TimeoutError:
            raise DeadlineExceeded(
                f"there was no answer within {REQUEST_S:.0f} s; whether it was done is unknown"
            ) from None
        return _respond(endpoint, reply)

    async def _read(self, endpoint: Endpoint, request: Request, held: contextlib.ExitStack) -> Any:
        """The request as a struct; its bytes count as long as it is `held`."""
        query = request.query_params
        for name in query:
            if len(query.getlist(name)) > 1:
                raise InvalidArgument(f"{name[:80]!r} is given more than once; give it once")
        is_binary = False
        body = b""
        if endpoint.method in ("POST", "PUT", "PATCH"):
            is_binary = _is_binary(endpoint, request)
            body = await self._read_body(endpoint, request, is_binary=is_binary)
            held.enter_context(self._desk.body_bytes.take(len(body)))
        if is_binary:
            if query:
                raise InvalidArgument("the query of the request takes nothing; use the headers")
            return endpoint.read_binary(request.path_params, request.headers, body)
        return endpoint.read(request.path_params, dict(query), request.headers, body)

    async def _read_body(self, endpoint: Endpoint, request: Request, *, is_binary: bool) -> bytes:
        most = endpoint.body_bytes_max
        if is_binary:
            assert endpoint.binary is not None
            most = endpoint.binary.bytes_max
        return await self._desk.bodies.read(request, most)


def _check_origin(request: Request) -> None:
    """Refuse what a browser sends for a page of another site: it may reach brokers that the site cannot."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise CrossOrigin(
            f"the page at {origin[:200]!r} is of another site; send the request from this one, or by a program"
        )


def _is_binary(endpoint: Endpoint, request: Request) -> bool:
    """Whether the body is one message as it is; UnsupportedMediaType if it is neither that nor JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == OCTETS and endpoint.binary is not None:
        return True
    has_body = request.headers.get("content-length", "0") != "0" or (
        "transfer-encoding" in request.headers
    )
    if media != JSON and (media or endpoint.is_body_needed) and has_body:
        takes = f"{JSON} or {OCTETS}" if endpoint.binary is not None else JSON
        raise UnsupportedMediaType(
            f"the content type is {media[:80]!r}; send a body of {takes}, and say so in content-type"
        )
    return False


def _respond(endpoint: Endpoint, reply: Any) -> Response | TailResponse:
    if isinstance(reply, Response | TailResponse):
        return reply
    if endpoint.status == _NO_CONTENT:
        return Response(status_code=_NO_CONTENT)
    return Response(_encode(reply), endpoint.status, media_type=JSON)
