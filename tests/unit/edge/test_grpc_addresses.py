"""What a lookup answers can be dialled by who asked."""

from __future__ import annotations

import pytest

from danubius.edge.grpc.addresses import Addresses, facing, host_of


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:54321", "10.0.0.7"),
        ("ipv6:%5B::1%5D:54346", "::1"),
        ("ipv6:[fe80::1]:1", "fe80::1"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:1", "10.0.0.7"),
        ("unix:/tmp/socket", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_a_broker_tells_the_address_it_listens_on() -> None:
    found = Addresses("10.1.2.3", 6650, "", "").for_peer("ipv4:127.0.0.1:9")
    assert found == ("http://10.1.2.3:6650", "http://10.1.2.3:6650")
    assert not found.is_proxied


def test_what_it_was_told_wins() -> None:
    addresses = Addresses("0.0.0.0", 6650, "broker.example", "http://proxy:1")
    found = addresses.for_peer("ipv4:127.0.0.1:9")
    assert found == ("http://proxy:1", "http://broker.example:6650")
    assert found.is_proxied


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_one_that_listens_everywhere_tells_the_address_that_faces_the_client(host: str) -> None:
    addresses = Addresses(host, 6650, "", "")
    assert addresses.for_peer("ipv4:127.0.0.1:9").connect_url == "http://127.0.0.1:6650"
    assert addresses.for_peer("no address").connect_url == "http://127.0.0.1:6650"
    assert addresses.url == "http://127.0.0.1:6650"


def test_an_address_of_version_six_is_bracketed() -> None:
    assert Addresses("::1", 6650, "", "").url == "http://[::1]:6650"


def test_who_cannot_be_faced_is_told_loopback() -> None:
    assert facing("300.1.1.1") == "127.0.0.1"
