"""Whose request is read when: bounded at once, fair between connections, and nobody holds a turn while others wait."""

from __future__ import annotations

from danubius.edge.core.reading_turns import ReadingTurns, Turn, TurnBounds

BOUNDS = TurnBounds(
    at_once_max=3, per_connection_max=2, waiting_max=5, patience_s=1.0, whole_s=10.0
)


class Room:
    """Asks for turns by name, and notes who began and who was cut off."""

    def __init__(self, bounds: TurnBounds = BOUNDS) -> None:
        self.turns = ReadingTurns(bounds)
        self.began: list[str] = []
        self.cut: list[str] = []

    def ask(self, name: str, now_s: float = 0.0) -> Turn:
        """The first letter of the name is the connection."""
        turn = self.turns.ask(name[0], now_s, lambda: self.cut.append(name))
        assert turn is not None
        if turn.is_reading:
            self.began.append(name)
        else:
            turn.on_begin = lambda: self.began.append(name)
        return turn


def test_only_so_many_are_read_at_once() -> None:
    room = Room()
    turns = [room.ask(name) for name in ("a1", "b1", "c1", "d1")]
    assert room.began == ["a1", "b1", "c1"]
    room.turns.end(turns[0], 0.0)
    assert room.began == ["a1", "b1", "c1", "d1"]


def test_one_connection_leaves_room_for_others() -> None:
    room = Room()
    for number in range(4):
        room.ask(f"a{number}")
    assert room.began == ["a0", "a1"]
    room.ask("b0")
    assert room.began == ["a0", "a1", "b0"]


def test_those_who_wait_are_taken_connection_by_connection() -> None:
    room = Room(BOUNDS._replace(at_once_max=1, per_connection_max=1))
    first = room.ask("x0")
    waiting = {name: room.ask(name) for name in ("a1", "a2", "a3", "b1", "c1")}
    room.turns.end(first, 0.0)
    for _ in range(4):
        room.turns.end(waiting[room.began[-1]], 0.0)
    assert room.began == ["x0", "a1", "b1", "c1", "a2", "a3"]


def test_of_too_many_that_wait_the_newest_is_refused() -> None:
    room = Room()
    for number in range(2 + BOUNDS.waiting_max):
        room.ask(f"a{number}")
    assert room.turns.ask("a", 0.0, lambda: None) is None
    assert room.turns.waiting == BOUNDS.waiting_max


def test_while_nobody_waits_a_slow_one_has_its_time() -> None:
    room = Room()
    room.ask("a1", 0.0)
    room.turns.tick(9.9)
    assert room.cut == []
    room.turns.tick(10.0)
    assert room.cut == ["a1"]


def test_while_others_wait_the_oldest_give_way_one_for_each() -> None:
    room = Room()
    turns = {name: room.ask(name, now_s) for name, now_s in (("a1", 0.0), ("b1", 0.1), ("c1", 0.2))}
    room.ask("d1", 0.3)
    room.turns.tick(0.9)
    assert room.cut == []
    room.turns.tick(1.5)
    assert room.cut == ["a1"]
    room.turns.end(turns["a1"], 1.5)
    assert room.began[-1] == "d1"
    room.turns.tick(1.6)
    assert room.cut == ["a1"]


def test_nobody_gives_way_to_its_own_connection() -> None:
    """Of a slow line with many calls, every one would be sent again and again."""
    room = Room()
    for number in range(4):
        room.ask(f"a{number}", 0.0)
    room.turns.tick(5.0)
    assert room.cut == []
    room.ask("b0", 5.0)
    room.ask("c0", 5.0)
    room.turns.tick(5.1)
    assert room.cut == ["a0"], "c0 waits for room that any of them has"


def test_who_waited_has_all_of_its_time_from_its_beginning() -> None:
    room = Room(BOUNDS._replace(at_once_max=1))
    first = room.ask("a1", 0.0)
    room.ask("b1", 0.0)
    room.turns.end(first, 5.0)
    room.ask("c1", 5.0)
    room.turns.tick(5.9)
    assert room.cut == []
    room.turns.tick(6.0)
    assert room.cut == ["b1"]


def test_who_goes_while_it_waits_leaves_nothing_behind() -> None:
    room = Room(BOUNDS._replace(at_once_max=1))
    first = room.ask("a1")
    gone = room.ask("b1")
    room.turns.end(gone, 0.0)
    room.turns.end(gone, 0.0)
    assert room.turns.waiting == 0
    room.turns.end(first, 0.0)
    room.turns.end(first, 0.0)
    assert room.began == ["a1"]
    assert room.turns.reading == 0
    assert room.ask("c1").is_reading


def test_room_is_by_weight_and_nobody_overtakes_because_it_is_lighter() -> None:
    turns = ReadingTurns(BOUNDS._replace(at_once_max=100))
    first = turns.ask("a", 0.0, lambda: None, 80)
    heavy = turns.ask("b", 0.0, lambda: None, 50)
    light = turns.ask("c", 0.0, lambda: None, 10)
    assert first is not None
    assert heavy is not None
    assert light is not None
    assert (first.is_reading, heavy.is_reading, light.is_reading) == (True, False, False)
    turns.end(first, 0.0)
    assert (heavy.is_reading, light.is_reading) == (True, True)


def test_one_that_is_heavier_than_there_is_room_for_is_read_alone() -> None:
    turns = ReadingTurns(BOUNDS)
    heavy = turns.ask("a", 0.0, lambda: None, 1_000)
    assert heavy is not None
    assert heavy.is_reading


def test_whom_we_keep_waiting_is_not_cut_off() -> None:
    room = Room(BOUNDS._replace(at_once_max=1))
    paused = room.ask("a1", 0.0)
    paused.is_excused = lambda: True
    room.ask("b1", 0.0)
    room.turns.tick(99.0)
    assert room.cut == []
    paused.is_excused = lambda: False
    room.turns.tick(99.0)
    room.turns.tick(99.5)
    assert room.cut == ["a1"]
