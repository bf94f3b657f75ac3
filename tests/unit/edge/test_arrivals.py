"""Who gives way to whom among what has not arrived completely."""

from __future__ import annotations

from danubius.edge.core.arrivals import Arrival, Arrivals

SMALL = 10


def arrivals(count_max: int = 4, bytes_max: int = 100) -> Arrivals:
    return Arrivals(count_max, bytes_max, patience_s=1.0, small_bytes=SMALL)


class Peers:
    """Begins arrivals and notes whose are cut off."""

    def __init__(self, of: Arrivals) -> None:
        self._of = of
        self.cut: list[str] = []

    def begin(self, name: str, now_s: float = 0.0) -> Arrival:
        return self._of.begin(now_s, lambda: self.cut.append(name))


def test_what_is_announced_takes_no_room() -> None:
    of = arrivals(bytes_max=SMALL + 1)
    peers = Peers(of)
    for number in range(3):
        peers.begin(f"silent {number}")
    talker = peers.begin("talker")
    assert of.grow(talker, SMALL + 1, 0.0)
    assert not peers.cut


def test_of_too_many_the_oldest_without_a_byte_goes() -> None:
    of = arrivals(count_max=3)
    peers = Peers(of)
    assert of.grow(peers.begin("oldest"), 1, 0.0)
    peers.begin("silent")
    peers.begin("silent too")
    peers.begin("new")
    assert peers.cut == ["silent"]
    assert len(of) == 3


def test_of_too_many_that_all_send_the_oldest_goes() -> None:
    of = arrivals(count_max=2)
    peers = Peers(of)
    for name in ("first", "second"):
        assert of.grow(peers.begin(name), 1, 0.0)
    peers.begin("third")
    assert peers.cut == ["first"]


def test_while_there_is_no_room_the_oldest_gives_way_but_not_at_once() -> None:
    of = arrivals()
    peers = Peers(of)
    assert of.grow(peers.begin("slow", 0.0), 90, 0.0)
    quick = peers.begin("quick", 0.5)
    assert not of.grow(quick, 50, 0.9)
    assert peers.cut == []
    assert of.held_bytes == 90
    assert of.grow(quick, 50, 1.0)
    assert peers.cut == ["slow"]
    assert of.held_bytes == 50


def test_nobody_gives_way_to_himself() -> None:
    of = arrivals()
    peers = Peers(of)
    greedy = peers.begin("greedy")
    assert of.grow(greedy, 100, 0.0)
    assert not of.grow(greedy, 1, 99.0)
    assert peers.cut == []


def test_small_ones_have_room_whatever_large_ones_hold() -> None:
    of = arrivals()
    peers = Peers(of)
    assert of.grow(peers.begin("large"), 100, 0.0)
    small = peers.begin("small")
    assert of.grow(small, SMALL, 0.0)
    assert not of.grow(small, 1, 0.0)
    assert peers.cut == []


def test_a_small_one_that_grows_counts_as_a_whole() -> None:
    of = arrivals()
    one = Peers(of).begin("one")
    assert of.grow(one, SMALL, 0.0)
    assert of.held_bytes == 0
    assert of.grow(one, 1, 0.0)
    assert of.held_bytes == SMALL + 1
    of.end(one)
    of.end(one)
    assert of.held_bytes == 0


def test_who_was_cut_off_holds_nothing_more() -> None:
    of = arrivals(count_max=1)
    peers = Peers(of)
    first = peers.begin("first")
    peers.begin("second")
    assert peers.cut == ["first"]
    assert not of.grow(first, 50, 0.0)
    of.end(first)
    assert of.held_bytes == 0
    assert of.cut_off_total == 1
