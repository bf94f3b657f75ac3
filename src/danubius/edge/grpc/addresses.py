"""Addresses under which clients find the broker: what a lookup answers must be something that whoever asked can dial.

A broker that listens on all addresses and was not told how it is reached answers with the one of its addresses that
faces the client: for a client on the same machine that is loopback, for another one the interface it came in by.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from typing import Final, NamedTuple
from urllib.parse import unquote

_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # compared, not bound
_DISCARD_PORT: Final = 9
"""Nothing is sent to it: connecting a datagram socket only chooses the way."""


class Found(NamedTuple):
    """What a client is told."""

    connect_url: str
    """Where to connect: the broker, or a proxy before it."""
    broker_url: str
    """The broker itself."""

    @property
    def is_proxied(self) -> bool:
        return self.connect_url != self.broker_url


class Addresses:
    """The addresses of one broker."""

    def __init__(self, host: str, port: int, advertised_host: str, connect_url: str) -> None:
        """`advertised_host` and `connect_url` are what the broker was told; empty: nothing."""
        self._port = port
        self._advertised_host = advertised_host or ("" if host in _WILDCARDS else host)
        self._connect_url = connect_url

    @property
    def url(self) -> str:
        """For whoever does not ask over the network."""
        return self._url(self._advertised_host or "127.0.0.1")

    def for_peer(self, peer: str) -> Found:
        """What the client at this address, as gRPC writes it, can dial."""
        broker_url = self._url(self._advertised_host or facing(host_of(peer)))
        return Found(self._connect_url or broker_url, broker_url)

    def _url(self, host: str) -> str:
        return f"http://{bracketed(host)}:{self._port}"


def bracketed(host: str) -> str:
    """A host as it is written before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def host_of(peer: str) -> str:
    """The host in `ipv4:10.0.0.1:5000` or `ipv6:%5B::1%5D:5000`; empty if there is none."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return ""
    return rest.rpartition(":")[0].strip("[]").removeprefix("::ffff:")


@functools.lru_cache(maxsize=1024)
def facing(host: str) -> str:
    """The address of this machine that this host would see; loopback if that cannot be told."""
    try:
        version = ipaddress.ip_address(host).version  # a name would have to be looked up
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"
