"""`danubius producers`: who publishes to a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from danubius.cli.commands.administering import (
    ask,
    moment,
    print_done,
    print_figures,
    print_lines,
    rate,
)
from danubius.cli.commands.top import run_top, top_options
from danubius.cli.options import json_option, producer_name, topic_name, url_option
from danubius.cli.output import human_bytes, human_count
from danubius.errors import DanubiusError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.cli.output import Cell
    from danubius.model.statistics import ProducerStatistics


@click.group(
    epilog="""\b
Examples:
  danubius producers list /default/orders
  danubius producers top /default/orders
  danubius producers disconnect /default/orders till-3
"""
)
def producers() -> None:
    """List, describe, watch and end producers."""


_LIST: Final[dict[str, Callable[[ProducerStatistics], Cell]]] = {
    "PRODUCER": lambda p: p.producer,
    "TOPIC": lambda p: p.topic,
    "ADDRESS": lambda p: p.address,
    "SINCE": lambda p: moment(p.attached_ms),
    "ACCESS": lambda p: f"{p.access}, waiting" if p.is_waiting else p.access,
    "PUBLISHED": lambda p: human_count(p.published_messages),
    "RATE": lambda p: rate(p.publish_rate),
}
_TOP: Final[dict[str, Callable[[ProducerStatistics], Cell]]] = {
    "PRODUCER": lambda p: p.producer,
    "TOPIC": lambda p: p.topic,
    "RATE": lambda p: rate(p.publish_rate),
    "BYTES": lambda p: rate(p.publish_bytes_rate, is_bytes=True),
    "UNANSWERED": lambda p: human_bytes(p.unanswered_bytes),
    "THROTTLED": lambda p: human_count(p.throttled_batches),
    "PUBLISHED": lambda p: human_count(p.published_messages),
}


@producers.command("list")
@click.argument("topic", type=topic_name)
@json_option
@url_option
def list_producers(topic: str, as_json: bool, url: str) -> None:
    """List the producers that are attached to TOPIC; of a partitioned one, to each partition."""
    found = ask(url, lambda admin: admin.list_producers(topic))
    print_lines(found, _LIST, json=as_json, nothing=f"no producers are attached to {topic}")


@producers.command("describe")
@click.argument("topic", type=topic_name)
@click.argument("producer", type=producer_name)
@json_option
@url_option
def describe_producer(topic: str, producer: str, as_json: bool, url: str) -> None:
    """Show all figures of PRODUCER; once for each partition that it publishes to."""
    found = ask(url, lambda admin: admin.list_producers(topic))
    lines = [line for line in found if line.producer == producer]
    if not lines:
        raise absent("producer", producer, topic)
    for line in lines:
        print_figures(line, json=as_json)


@producers.command("disconnect")
@click.argument("topic", type=topic_name)
@click.argument("producer", type=producer_name)
@json_option
@url_option
def disconnect_producer(topic: str, producer: str, as_json: bool, url: str) -> None:
    """End PRODUCER; its program hears ProducerFenced."""
    ask(url, lambda admin: admin.disconnect_producer(topic, producer))
    facts: dict[str, object] = {"topic": topic, "producer": producer, "disconnected": True}
    print_done(f"disconnected {producer} from {topic}", facts, json=as_json)


@producers.command("top")
@click.argument("topic", type=topic_name)
@top_options
@json_option
@url_option
def top(topic: str, as_json: bool, url: str, **how: Any) -> None:  # Any: the values of top_options
    """Watch the busiest producers of TOPIC; Ctrl-C ends it."""
    run_top(url, lambda admin: admin.list_producers(topic), _TOP, lambda p: p.publish_rate,
            json=as_json, **how)  # fmt: skip


def absent(kind: str, name: str, topic: str) -> DanubiusError:
    return InvalidArgument(
        f"no {kind} {name} is attached to {topic}; `danubius {kind}s list {topic}` shows who is"
    )
