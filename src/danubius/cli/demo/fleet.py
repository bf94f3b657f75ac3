"""A fleet of sensors as fleets are: most readings come in time, some late, some twice, some as nonsense, some too late.

Pure and deterministic: a seed gives the same messages every time, and with them what every total must be, however a
query cuts them into batches. Two things make that so. A late reading is never later than the watermark allows, measured
against everything that was sent before it; and what is too late (`stragglers`) is for sending only when every window of
the stream is known to be told. Values are quarters of a degree, whose sums are exact in any order.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW_S: Final = 60
LATE_S: Final = 10
"""The watermark's delay. Late readings are at most `_LATE_TICKS_MAX` behind, and a tick is a second."""
CLOSING_S: Final = WINDOW_S + 2 * LATE_S
"""How long after the stream the fleet reports once more: then no window of the stream can change any more."""

_MALFORMED: Final = 0.01
_LATE: Final = 0.03
_AGAIN: Final = 0.03
_LATE_TICKS_MAX: Final = 8
_AGAIN_TICKS_MAX: Final = 5
_OFFLINE_SENSORS: Final = 3
_NONSENSE: Final = (
    b"ERR 17: warming up",
    b"\xff\xfe\x00\x17",
    b'{"id":"%s","device":"%s","at":"%s","value":"n/a"}',
    b'{"id":"%s","device":"%s","value":%s}',
    b'{"id":"%s","device":null,"at":"%s","value":%s}',
)


@dataclass
class Window:
    """What one sensor measured in one window, in quarters of a degree."""

    readings: int = 0
    total: int = 0
    least: int = 1 << 30
    most: int = -(1 << 30)

    def add(self, quarters: int) -> None:
        self.readings += 1
        self.total += quarters
        self.least = min(self.least, quarters)
        self.most = max(self.most, quarters)


@dataclass
class Message:
    """One message on its way."""

    key: bytes
    payload: bytes


class Published:
    """What was sent so far, and what must come of it."""

    def __init__(self) -> None:
        self.messages = 0
        self.late = 0
        self.duplicates = 0
        self.stragglers = 0
        self.in_open_windows = 0
        self.malformed: list[bytes] = []
        self.windows: dict[tuple[str, datetime], Window] = {}
        self._digest = hashlib.sha256()

    @property
    def readable(self) -> int:
        return self.messages - len(self.malformed)

    @property
    def counted(self) -> int:
        """Readings that a window must hold."""
        return sum(window.readings for window in self.windows.values())

    @property
    def digest(self) -> str:
        """Of all payloads in their order."""
        return self._digest.hexdigest()

    def add(self, messages: list[Message]) -> None:
        self.messages += len(messages)
        self._digest.update(b"".join([_framed(message.payload) for message in messages]))


def digest_of(payloads: list[bytes]) -> str:
    """What `Published.digest` is for these."""
    return hashlib.sha256(b"".join(map(_framed, payloads))).hexdigest()


def _framed(payload: bytes) -> bytes:
    return b"%d:%b" % (len(payload), payload)


class Fleet:
    """`ticks`, then `closing`, then, once every window is told, `stragglers`: each sent in the order it comes."""

    def __init__(self, seed: int, sensors: int, ticks: int) -> None:
        self.published = Published()
        self.sensors = sensors
        self.tick_count = ticks
        self._dice = random.Random(seed)  # noqa: S311 - a stream that can be made again, no secret
        self._devices = [f"sensor-{number:04d}" for number in range(sensors)]
        self._level = [self._dice.randint(40, 100) for _ in range(sensors)]
        self._due: dict[int, list[Message]] = {}
        self._stored: list[Message] = []
        """What sensors could not send while they were out of reach."""

    def ticks(self) -> Iterator[list[Message]]:
        """A second's messages at a time; what is still under way after the last one comes at the end."""
        for tick in range(self.tick_count):
            yield self._sent(self._due.pop(tick, []) + self._fresh(tick))
        yield self._sent([each for tick in sorted(self._due) for each in self._due.pop(tick)])

    def closing(self) -> list[Message]:
        """Every sensor once more, later: the windows of these readings stay open."""
        at = START + timedelta(seconds=self.tick_count + CLOSING_S)
        self.published.in_open_windows = self.sensors
        return self._sent(
            [self._reading(number, self.tick_count, at)[0] for number in range(self.sensors)]
        )

    def stragglers(self) -> list[Message]:
        self.published.stragglers = len(self._stored)
        return self._sent(self._stored)

    def _sent(self, messages: list[Message]) -> list[Message]:
        self.published.add(messages)
        return messages

    def _fresh(self, tick: int) -> list[Message]:
        dice, third = self._dice, self.tick_count // 3
        now: list[Message] = []
        for number in range(self.sensors):
            self._level[number] += dice.choice((-1, 0, 0, 1))
            at = START + timedelta(seconds=tick, milliseconds=number * 1000 // self.sensors)
            message, quarters = self._reading(number, tick, at)
            if number < _OFFLINE_SENSORS and third <= tick < 2 * third:
                self._stored.append(message)
                continue
            if dice.random() < _MALFORMED:
                now.append(self._spoiled(number, message))
                continue
            self._count(number, at, quarters)
            sent_at = tick
            if dice.random() < _LATE:
                self.published.late += 1
                sent_at += dice.randint(1, _LATE_TICKS_MAX)
            self._send(tick, sent_at, message, now)
            if dice.random() < _AGAIN:
                self.published.duplicates += 1
                self._send(tick, sent_at + dice.randint(0, _AGAIN_TICKS_MAX), message, now)
        return now

    def _send(self, tick: int, sent_at: int, message: Message, now: list[Message]) -> None:
        (now if sent_at == tick else self._due.setdefault(sent_at, [])).append(message)

    def _count(self, number: int, at: datetime, quarters: int) -> None:
        start = at - timedelta(seconds=int(at.timestamp()) % WINDOW_S, microseconds=at.microsecond)
        key = (self._devices[number], start)
        self.published.windows.setdefault(key, Window()).add(quarters)

    def _reading(self, number: int, tick: int, at: datetime) -> tuple[Message, int]:
        device, quarters = self._devices[number], self._level[number]
        text = (
            f'{{"id":"{device}-{tick}","device":"{device}",'
            f'"at":"{at.isoformat(timespec="milliseconds")}","value":{quarters / 4}}}'
        )
        return Message(device.encode(), text.encode()), quarters

    def _spoiled(self, number: int, message: Message) -> Message:
        kind = self._dice.randrange(len(_NONSENSE) + 1)
        if kind == len(_NONSENSE):
            payload = message.payload[: len(message.payload) // 2]  # the line broke
        else:
            device = self._devices[number].encode()
            values = {2: (device, device, b"2026-01-01T00:00:00Z"), 3: (device, device, b"20.5")}
            values[4] = (device, b"2026-01-01T00:00:00Z", b"20.5")
            payload = _NONSENSE[kind] % values[kind] if kind in values else _NONSENSE[kind]
        self.published.malformed.append(payload)
        return Message(message.key, payload)
