"""Which Host headers the HTTP port answers to."""

from __future__ import annotations

import pytest

from danubius.edge.core.hosts import AllowedHosts, parse_allowed
from danubius.errors import InvalidArgument

OWN = ("0.0.0.0", "Machine-7", "", "broker.example.com", "fe80::1")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:6652",
        "10.1.2.3:80",
        "[::1]:6652",
        "[fe80::1]",
        "localhost",
        "LOCALHOST:6652",
        "localhost.",
        "console.localhost:6652",
        "machine-7:6652",
        "broker.example.com",
        "Broker.Example.com.:6652",
    ],
)
def test_addresses_and_own_names_are_answered(host: str) -> None:
    assert AllowedHosts(OWN).allows(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:6652",
        "",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "example.com",
        "xbroker.example.com",
        "evil:127.0.0.1",
        "127.0.0.1@evil.example",
        "[evil.example]:6652",
    ],
)
def test_other_names_are_not(host: str) -> None:
    assert not AllowedHosts(OWN).allows(host)


def test_the_operator_allows_more() -> None:
    hosts = AllowedHosts((), parse_allowed("danube.internal, *.svc.cluster.local,"))
    assert hosts.allows("danube.internal:6652")
    assert hosts.allows("broker.default.svc.cluster.local")
    assert not hosts.allows("svc.cluster.local")
    assert not hosts.allows("xsvc.cluster.local")
    assert not hosts.allows("sub.danube.internal")
    assert AllowedHosts((), ["*"]).allows("evil.example")


@pytest.mark.parametrize("text", ["a b", "http://x", "x:80", "*x", "a.*.b", "a..b", "ü.example"])
def test_what_is_no_name_cannot_be_allowed(text: str) -> None:
    with pytest.raises(InvalidArgument, match="no name of a host"):
        parse_allowed(text)
