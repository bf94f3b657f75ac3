"""Addresses of brokers, as users write them: `danube://host:port`, or several as `danube://a:6651,b:6651`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from danubius.errors import InvalidArgument
from danubius.redaction import redact_address

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEME: Final = "danube"
DEFAULT_PORT: Final = 6651
HOSTS_MAX: Final = 32
"""In one URL: a client needs to be told of a few brokers, and learns of the others."""
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104  # refused, not listened on


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


def parse_urls(url: str) -> tuple[BrokerAddress, ...]:
    """Read `danube://host[:port]`, or several hosts of one cluster behind each other: `danube://a:6651,b:6651`."""
    if not isinstance(url, str) or "," not in url or "@" in url or "://" not in url:  # pyright: ignore[reportUnnecessaryIsInstance]
        return (parse_url(url),)
    scheme, _, hosts = url.partition("://")
    parts = hosts.split(",")
    if len(parts) > HOSTS_MAX:
        raise InvalidArgument(
            f"the broker URL names {len(parts)} hosts, at most {HOSTS_MAX} are taken: name a few of the brokers,"
            " the client finds the others"
        )
    if not all(part.strip() for part in parts):
        raise InvalidArgument(
            f"the broker URL {url!r} has a comma without a host: write {SCHEME}://a:{DEFAULT_PORT},b:{DEFAULT_PORT}"
        )
    found = [
        parse_url(part if "://" in part else f"{scheme}://{part}") for part in map(str.strip, parts)
    ]
    return tuple(dict.fromkeys(found))


def urls_of(addresses: Iterable[BrokerAddress]) -> str:
    """The addresses as one URL."""
    first, *others = addresses
    return ",".join([first.url, *(other.url.removeprefix(f"{SCHEME}://") for other in others)])


def dialable(url: str) -> BrokerAddress | None:
    """The address that a broker names, if it is one that can be dialled from elsewhere."""
    try:
        address = parse_url(url)
    except InvalidArgument:
        return None
    return None if address.host in _EVERYWHERE else address
