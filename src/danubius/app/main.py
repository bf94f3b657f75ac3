"""Process level: logging, signals, the ready line, exit codes."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any

from danubius.app.collector import INTERVAL_MS, Collector
from danubius.app.reload import Configured
from danubius.app.standalone import Standalone
from danubius.errors import DanubiusError
from danubius.redaction import visible
from danubius.runtime.logs import set_up_logging

if TYPE_CHECKING:
    from danubius.app.options import StandaloneOptions
    from danubius.app.settings import Loaded, Sources

log = logging.getLogger(__name__)


def run_standalone(options: StandaloneOptions) -> int:
    """Run a broker until SIGINT or SIGTERM; returns the exit code."""
    return _run(options, Standalone(options))


def run_settings(sources: Sources, loaded: Loaded) -> int:
    """The same with all settings; where they have a file, SIGHUP reads it again."""
    settings = loaded.settings
    options = settings.options()
    standalone = Standalone(
        options,
        broker_config=settings.broker,
        ledger_config=settings.ledgers,
        journal_config=settings.journal,
        configured=Configured(sources, loaded),
    )
    return _run(options, standalone)


def _run(options: StandaloneOptions, standalone: Standalone) -> int:
    set_up_logging(options.log_level, options.log_format)
    # A thread coming back from a sync must not wait 5 ms for its turn while the loop is busy.
    sys.setswitchinterval(0.0005)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(standalone))
    except DanubiusError as error:
        sys.stderr.write(f"danubius: {visible(error.message)}\n")
        return 1


def _loop_factory() -> Any:  # uvloop has no type of its own for it
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(standalone: Standalone) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def crashed(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: state may be wrong, so the process ends and recovers from its journal."""
        log.critical(
            "unexpected error",
            exc_info=context.get("exception"),
            extra={"where": context.get("message", "")},
        )
        if isinstance(context.get("exception"), Exception):
            stop(1)

    loop.set_exception_handler(crashed)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, 0)
    # A terminal that is closed sends it too: without a file there is nothing to read again.
    loop.add_signal_handler(signal.SIGHUP, stop, 0)

    def replaced(error: DanubiusError) -> None:
        sys.stderr.write(f"danubius: this broker was replaced and ends: {visible(error.message)}\n")
        stop(1)

    standalone.on_replaced = replaced
    await standalone.start()
    reload = standalone.reload
    if reload is not None and reload.has_file:
        loop.add_signal_handler(signal.SIGHUP, reload.reload)
    collector = Collector(lambda: len(standalone.shard.topics_by_id))
    collector.start()
    standalone.shard.ticks.add(INTERVAL_MS, collector.tick)
    sys.stdout.write(
        f"danubius ready: {standalone.url}  {standalone.http_url}  data {standalone.place}\n"
    )
    if standalone.warning:  # a line of its own: programs take the one above apart
        sys.stdout.write(f"danubius warning: {standalone.warning}\n")
    sys.stdout.flush()
    code = await ended
    # After a crash the state may be wrong: nothing of it is saved, the next start has the journal.
    await (standalone.abandon() if code else standalone.stop())
    return code
