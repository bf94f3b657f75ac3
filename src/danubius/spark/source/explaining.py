"""`danubius.spark.explain(topic="/default/orders")`: the plan of a batch read, and where its offsets come from."""

from __future__ import annotations

from danubius.spark.source.batch_reader import plan_batch
from danubius.spark.source.locating import describe
from danubius.spark.source.options import read_options


def explain(**options: str) -> str:
    """The ranges of `spark.read` with these options, a line each task, and a line about all of them.

    Nothing is read but what planning reads, and no Spark is needed.
    """
    ranges = plan_batch(read_options(options, "batch"))
    lines = [describe(ranges)]
    for number, range_ in enumerate(ranges):
        lines.append(f"task {number}: offsets {range_.begin} to {range_.end - 1} of {range_.name}")
        if not range_.segments:
            lines.append("  all from the broker")
        for segment in range_.segments:
            place = "the broker" if segment.object is None else segment.object.name
            lines.append(f"  {segment.begin} to {segment.end - 1} from {place}")
    return "\n".join(lines)
