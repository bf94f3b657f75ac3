"""The demo's live figures: a table that changes in place at a terminal, a few lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

from danubius.cli.output import human_count, print_line
from danubius.cli.query_figures import live_table, sentence

if TYPE_CHECKING:
    from danubius.cli.demo.fleet import Published
    from danubius.pipeline.status import Status

TOLD_EVERY_S: Final = 5.0


class Board:
    """What was published, and what the queries of all pipelines did with it."""

    def __init__(self, published: Published) -> None:
        self.statuses: dict[str, Status] = {}
        self._published = published
        self._started = time.monotonic()
        self._before = (self._started, 0)
        self._told_at = 0.0
        self._live: Any = None  # of rich, which is imported when there is a terminal

    def __enter__(self) -> Self:
        self._started = self._told_at = time.monotonic()
        self._before = (self._started, self._published.messages)
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, line: str) -> None:
        text = f"{'':<11} {time.monotonic() - self._started:5.1f} s  {line}"
        if self._live is None:
            print_line(text)
        else:
            self._live.console.print(text, markup=False, highlight=False)

    def show(self) -> None:
        """The newest figures; where nobody watches, only every few seconds."""
        now = time.monotonic()
        if self._live is None and now - self._told_at < TOLD_EVERY_S:
            return
        self._told_at = now
        head = self._head(now)
        if self._live is not None:
            table = live_table(self.statuses, head, self._live.console.width)
            self._live.update(table, refresh=True)
            return
        self.tell(head)
        for name, status in self.statuses.items():
            for query, each in status.queries.items():
                print_line(f"{'':<21} {name + '.' + query:<15} {sentence(each)}")

    def _head(self, now: float) -> str:
        if not self.statuses:
            return "Spark starts"
        then, before = self._before
        self._before = (now, self._published.messages)
        rate = (self._published.messages - before) / max(now - then, 1e-3)
        return f"published {human_count(self._published.messages)} messages ({human_count(rate)}/s)"
