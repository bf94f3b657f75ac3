"""The broker's address, as users write it: `danube://host:port`."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from danubius.errors import InvalidArgument
from danubius.redaction import redact_address

SCHEME: Final = "danube"
DEFAULT_PORT: Final = 6651


class BrokerAddress(NamedTuple):
    """Where to dial."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}://{host}:{self.port}"


def parse_url(url: str) -> BrokerAddress:
    """Read `danube://host[:port]`, or say what is wrong with it and what would be right."""
    advice = f"write {SCHEME}://host:port, for example {SCHEME}://127.0.0.1:{DEFAULT_PORT}"
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # not everybody checks types
        raise InvalidArgument(f"the broker URL is {url!r}, it must be a str: {advice}")
    if "@" in url:
        # Whatever stands before it may be a password: it is not repeated, and nothing behind this line sees it.
        raise InvalidArgument(
            f"the broker URL {redact_address(url)!r} has more than a host and a port, a user: {advice}"
        )
    if "://" not in url:
        raise InvalidArgument(f"the broker URL {url!r} has no scheme: {advice}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if host and ":" not in host:
            host.encode(
                "idna"
            )  # what the resolver does, and where it finds empty and overlong labels
    except ValueError as error:
        raise InvalidArgument(f"the broker URL {url!r} is not valid ({error}): {advice}") from None
    if parts.scheme != SCHEME:
        raise InvalidArgument(
            f"the broker URL {url!r} has the scheme {parts.scheme!r}, not {SCHEME!r}: {advice}"
        )
    if not host:
        raise InvalidArgument(f"the broker URL {url!r} names no host: {advice}")
    if port == 0:
        raise InvalidArgument(f"the broker URL {url!r} has port 0: {advice}")
    extra = parts.path.rstrip("/") or parts.query or parts.fragment
    if extra:
        raise InvalidArgument(f"the broker URL {url!r} has more than a host and a port: {advice}")
    return BrokerAddress(host, DEFAULT_PORT if port is None else port)
