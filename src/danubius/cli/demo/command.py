"""`danubius demo`: the whole of it at work, on one machine, in about a minute.

Everything is checked against what was published: the demo ends with 0 only if every total is right.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from danubius.cli.demo.report import print_checks
from danubius.cli.options import count as count_of
from danubius.cli.output import print_text

_FOLDER: Final = "danubius-demo"


@click.command()
@click.option(
    "--engine", is_flag=True,
    help="The broker alone, without Spark: a million messages, a kill -9, nothing lost.",
)  # fmt: skip
@click.option(
    "--count", type=count_of, default="1M", show_default=True, metavar="N",
    help="With --engine: messages to send.",
)  # fmt: skip
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=_FOLDER,
    show_default=True, help="Where the tables are made; what an earlier demo left there is replaced.",
)  # fmt: skip
@click.option(
    "--sensors", type=click.IntRange(10, 10_000), default=250, show_default=True, metavar="N",
    help="The size of the fleet.",
)  # fmt: skip
@click.option(
    "--minutes", type=click.IntRange(3, 600), default=20, show_default=True, metavar="N",
    help="How long the fleet measures, once a second, in its own time.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.IntRange(1, 3600), default=15, show_default=True, metavar="N",
    help="How long that takes here, once the pipelines run.",
)  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Another one, another stream.")
def demo(
    engine: bool, count: int, folder: Path, sensors: int, minutes: int, seconds: int, seed: int
) -> int:
    """Show it working: a broker of its own, a fleet of sensors, two pipelines on Spark, every total checked.

    The readings come late, twice, malformed and too late, as they do. The pipelines `aggregate` and `archive` make
    tables of them; they stay in the directory afterwards, everything else ends.
    """
    started = time.monotonic()
    if engine:
        from danubius.cli.demo.engine import COUNT_MIN, run_engine

        if count < COUNT_MIN:
            raise click.BadParameter(f"at least {COUNT_MIN}", param_hint="--count")
        is_right = print_checks(run_engine(count))
        verdict = "nothing acknowledged was lost" if is_right else "a promise was broken"
    else:
        from danubius.cli.demo.fleet import Fleet
        from danubius.cli.demo.pipelines import Demo
        from danubius.cli.demo.place import Place, check_installed

        check_installed()
        with Place(folder) as place:
            show = Demo(place, Fleet(seed, sensors, minutes * 60), seconds)
            is_right = print_checks(show.run())
            verdict = "every total is right" if is_right else "a total is wrong"
            show.tell_where(is_right=is_right)
            place.keep()
    print_text(f"\n{verdict}; {time.monotonic() - started:.1f} s in all")
    return 0 if is_right else 1
