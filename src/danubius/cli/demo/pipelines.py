"""The demo's show: history, two pipelines, a live stream, late comers, and then the books.

One coroutine does everything in turn and looks at the pipelines whenever it waits. Everything it waits for has a bound:
the whole show has a deadline, and a pipeline that ends before its time ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

import danubius
from danubius.cli.broker_process import BrokerProcess
from danubius.cli.demo.board import Board
from danubius.cli.demo.checks import check_all
from danubius.cli.demo.fleet import LATE_S, WINDOW_S
from danubius.cli.demo.pipeline_process import PipelineProcess
from danubius.cli.demo.report import say
from danubius.cli.event_loop import run_async
from danubius.cli.output import human_count, print_text
from danubius.pipeline.progress import Figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.cli.demo.fleet import Fleet, Message
    from danubius.cli.demo.place import Place
    from danubius.cli.demo.report import Check

INPUT: Final = "/demo/sensors"
OUTPUT: Final = "/demo/sensor-averages"
MALFORMED: Final = "/demo/sensors-malformed"
DEADLINE_S: Final = 900.0
"""Of the whole show, for machines that need ten times as long as usual."""
_HISTORY: Final = 0.25
"""How much of the stream is there before the pipelines are."""
_STEPS_PER_SECOND: Final = 5
_LOOK_S: Final = 0.5
_QUERIES: Final = ("aggregate.topic", "aggregate.table", "archive.table")
_NOTHING: Final = Figures()
_QUESTIONS: Final = {
    "averages": "SELECT device, sum(readings) AS readings, max(most) AS warmest FROM TABLE"
    " GROUP BY device ORDER BY warmest DESC LIMIT 5",
    "archive": "SELECT offset, publish_time, CAST(payload AS STRING) AS payload FROM TABLE"
    " ORDER BY offset LIMIT 5",
}


class Demo:
    """One show in one place."""

    def __init__(self, place: Place, fleet: Fleet, seconds: int) -> None:
        self._place = place
        self._fleet = fleet
        self._seconds = seconds
        self._board = Board(fleet.published)
        self._pipelines: PipelineProcess | None = None
        self._is_stopping = False
        self._looked_at = 0.0
        self._figures: dict[str, Figures] = {}

    def run(self) -> list[Check]:
        """What was promised, and whether it held."""
        with BrokerProcess(self._place.broker) as broker:
            say("broker", f"{broker.url}, ready in {broker.ready_after_s:.2f} s")
            try:
                return run_async(self._show, broker.url)
            except TimeoutError:
                raise click.ClickException(
                    f"the demo did not finish in {DEADLINE_S:.0f} s"
                ) from None

    def tell_where(self, *, is_right: bool) -> None:
        """What stays, and how to look at it."""
        tables = {name: self._place.shown / "tables" / name for name in ("averages", "archive")}
        print_text(
            f"\nThe tables (Delta): {tables['averages']} and {tables['archive']}. To look at them:"
        )
        for name, query in _QUESTIONS.items():
            print_text(f"  danubius sql '{query.replace('TABLE', f'delta.`{tables[name]}`')}'")
        print_text(
            f"The topics are served again by: danubius standalone --data-dir {self._place.shown / 'broker'}"
        )
        if not is_right:
            print_text(f"What the pipelines said: {self._place.shown / 'pipelines.log'}")

    async def _show(self, url: str) -> list[Check]:
        published = self._fleet.published
        async with asyncio.timeout(DEADLINE_S), danubius.connect(url) as client:
            await client.create_topic(INPUT)
            with contextlib.ExitStack() as stack:
                async with client.producer(INPUT, name="fleet") as producer:
                    ticks = self._fleet.ticks()
                    await self._publish_history(producer, ticks)
                    self._start_pipelines(url, stack)
                    stack.enter_context(self._board)
                    await self._until(lambda: all(f.batches for f in self._queries("")))
                    self._board.tell("the pipelines run; the stream goes on")
                    await self._publish_live(producer, ticks)
                    await _send(producer, self._fleet.closing())
                    windows = len(published.windows)
                    await self._until(
                        lambda: all(f.rows_out >= windows for f in self._queries("aggregate."))
                    )
                    self._board.tell("every window is told; now come those that are too late")
                    await _send(producer, self._fleet.stragglers())
                    await self._until(self._has_read_all)
                await self._stop_pipelines()
            return await check_all(
                client, published, self._place.tables, output=OUTPUT, malformed=MALFORMED
            )

    # ------------------------------------------------------------ publishing

    async def _publish_history(
        self, producer: danubius.Producer, ticks: Iterator[list[Message]]
    ) -> None:
        fleet = self._fleet
        say(
            "fleet",
            f"{fleet.sensors} sensors measure once a second for {fleet.tick_count // 60} minutes;"
            " some readings come late, twice, malformed or much too late",
        )
        started = time.monotonic()
        for tick in islice(ticks, int(fleet.tick_count * _HISTORY)):
            await _send(producer, tick)
        seconds, count = time.monotonic() - started, fleet.published.messages
        say(
            "history", f"{human_count(count)} messages in {seconds:.1f} s, before any pipeline runs"
        )

    async def _publish_live(
        self, producer: danubius.Producer, ticks: Iterator[list[Message]]
    ) -> None:
        """At a steady pace, or as fast as it goes if that is slower."""
        steps = self._seconds * _STEPS_PER_SECOND
        ticks_per_step = max(1, round(self._fleet.tick_count * (1 - _HISTORY) / steps))
        started, step = time.monotonic(), 0
        while messages := [each for tick in islice(ticks, ticks_per_step) for each in tick]:
            await _send(producer, messages)
            step += 1
            self._look()
            await asyncio.sleep(max(0.0, started + step / _STEPS_PER_SECOND - time.monotonic()))

    # ------------------------------------------------------------ pipelines

    def _start_pipelines(self, url: str, stack: contextlib.ExitStack) -> None:
        tables = self._place.tables
        settings = {
            "aggregate": {
                "input": INPUT, "output": OUTPUT, "malformed": MALFORMED,
                "table": str(tables / "averages"), "window": f"{WINDOW_S} seconds", "late": f"{LATE_S} seconds",
            },
            "archive": {
                "topic": INPUT, "table": str(tables / "archive"), "trigger": "2s", "compact_every": "5",
            },
        }  # fmt: skip
        process = PipelineProcess(url, self._place.folder, settings)
        self._pipelines = stack.enter_context(process)
        say("pipelines", "aggregate and archive; Spark starts, which takes a while")

    async def _stop_pipelines(self) -> None:
        pipelines = self._pipelines
        assert pipelines is not None
        self._is_stopping = True
        pipelines.ask_to_stop()
        await self._until(lambda: pipelines.exit_code is not None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            self._look()
            if condition():
                return
            await asyncio.sleep(_LOOK_S / 2)

    def _look(self) -> None:
        """Read what the pipelines say about themselves, and show it."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        assert self._pipelines is not None
        code = self._pipelines.exit_code
        if code is not None and (code != 0 or not self._is_stopping):
            raise click.ClickException(
                f"the pipelines ended with {code}: {self._pipelines.last_words()}"
            )
        self._board.statuses = self._pipelines.statuses()
        for pipeline, status in self._board.statuses.items():
            for name, query in status.queries.items():
                self._figures[f"{pipeline}.{name}"] = query.figures
        self._board.show()

    def _queries(self, prefix: str) -> list[Figures]:
        """The figures of all queries, or of those of a pipeline; none of them is missing."""
        names = [name for name in _QUERIES if name.startswith(prefix)]
        return [self._figures.get(name, _NOTHING) for name in names]

    def _has_read_all(self) -> bool:
        published = self._fleet.published
        return all(
            each.rows_in >= published.readable for each in self._queries("aggregate.")
        ) and all(each.rows_out >= published.messages for each in self._queries("archive."))


async def _send(producer: danubius.Producer, messages: list[Message]) -> None:
    if messages:
        await producer.send_many(
            [message.payload for message in messages], keys=[message.key for message in messages]
        )
