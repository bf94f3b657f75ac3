"""Listening sockets: exactly where they are told, on every port alike, and whether that is this machine alone.

`0.0.0.0` is every IPv4 address and nothing else; `::` is every address there is, of IPv6 and IPv4.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

EVERY_IPV4: Final = "0.0.0.0"  # noqa: S104  # compared, not bound
EVERY_ADDRESS: Final = "::"
EXPOSED: Final = "nothing is encrypted and nobody is asked who they are: whoever reaches it may read, write and delete"
"""What is to be said of a server that listens to more than this machine."""


def is_exposed(host: str) -> bool:
    """Whether other machines may reach who listens there; a name that is not localhost counts as reachable."""
    try:
        return not ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower().rstrip(".") != "localhost"


def open_socket(host: str, port: int, backlog: int) -> socket.socket | None:
    """A listening socket for every address; None: the loop's own way of listening is right for this host."""
    if host != EVERY_ADDRESS:
        return None
    address = (host, port)
    return socket.create_server(
        address, family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
    )


@contextlib.contextmanager
def ipv4_alone(host: str, port: int) -> Generator[int]:
    """While it lasts, gRPC that is told `0.0.0.0` gets no socket but an IPv4 one; yields the port to bind.

    gRPC takes every wildcard for all addresses of both families and tries IPv6 first. Here IPv6 finds the port taken,
    by a socket that nobody can connect to, so it is content with IPv4.
    """
    if host != EVERY_IPV4:
        yield port
        return
    with contextlib.ExitStack() as held:
        try:
            holder = held.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            holder.bind((EVERY_ADDRESS, port))
            port = holder.getsockname()[1]
        except OSError:
            pass  # there is no IPv6 here, or somebody has the port: gRPC does not get it either
        yield port
