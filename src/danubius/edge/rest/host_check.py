"""Requests for hosts that are not this broker's are refused: pages of other sites would send them (DNS rebinding)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.edge.rest.problems import MisdirectedRequest, respond

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

    from danubius.edge.core.hosts import AllowedHosts


class HostCheck:
    """An ASGI application that hears only what is meant for it."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, open_paths: Collection[str]) -> None:
        """`open_paths` are answered whatever the host."""
        self._app = app
        self._hosts = hosts
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), None)
        # HTTP/1.0 may say no host; browsers, which this is about, always say one.
        if host is None or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        name = host.decode("latin-1")
        if self._hosts.allows(name):
            await self._app(scope, receive, send)
            return
        refusal = MisdirectedRequest(
            f"this broker does not answer for the host {name[:200]!r}; call it by its address, or allow the name: "
            "--allowed-host NAME, or server.allowed_hosts in its settings"
        )
        await respond(refusal)(scope, receive, send)
