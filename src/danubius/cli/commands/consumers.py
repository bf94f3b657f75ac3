"""`danubius consumers`: who consumes from a topic."""

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
from danubius.cli.commands.producers import absent
from danubius.cli.commands.top import run_top, top_options
from danubius.cli.options import (
    F,
    consumer_name,
    json_option,
    subscription_name,
    topic_name,
    url_option,
)
from danubius.cli.output import human_bytes, human_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.cli.output import Cell
    from danubius.model.statistics import ConsumerStatistics


@click.group(
    epilog="""\b
Examples:
  danubius consumers list /default/orders
  danubius consumers top /default/orders -s billing
  danubius consumers disconnect /default/orders billing worker-3
"""
)
def consumers() -> None:
    """List, describe, watch and end consumers."""


def _subscription_option(command: F) -> F:
    return click.option(
        "-s", "--subscription", type=subscription_name, metavar="NAME",
        help="Only of this subscription.",
    )(command)  # fmt: skip


_LIST: Final[dict[str, Callable[[ConsumerStatistics], Cell]]] = {
    "SUBSCRIPTION": lambda c: c.subscription,
    "CONSUMER": lambda c: c.consumer,
    "TOPIC": lambda c: c.topic,
    "ADDRESS": lambda c: c.address,
    "SINCE": lambda c: moment(c.attached_ms),
    "ACTIVE": lambda c: "yes" if c.is_active else "stands by",
    "UNACKED": lambda c: human_count(c.unacked_messages),
    "DELIVERED": lambda c: human_count(c.delivered_messages),
}
_TOP: Final[dict[str, Callable[[ConsumerStatistics], Cell]]] = {
    "SUBSCRIPTION": lambda c: c.subscription,
    "CONSUMER": lambda c: c.consumer,
    "TOPIC": lambda c: c.topic,
    "RATE": lambda c: rate(c.delivery_rate),
    "AGAIN": lambda c: rate(c.redelivery_rate),
    "UNACKED": lambda c: human_count(c.unacked_messages),
    "ACKED": lambda c: human_count(c.acked_messages),
    "CREDIT": lambda c: f"{human_count(c.credit_messages)}, {human_bytes(c.credit_bytes)}",
}


@consumers.command("list")
@click.argument("topic", type=topic_name)
@_subscription_option
@json_option
@url_option
def list_consumers(topic: str, subscription: str | None, as_json: bool, url: str) -> None:
    """List the consumers that are attached to TOPIC; of a partitioned one, to each partition."""
    found = ask(url, lambda admin: admin.list_consumers(topic, subscription))
    print_lines(found, _LIST, json=as_json, nothing=f"no consumers are attached to {topic}")


@consumers.command("describe")
@click.argument("topic", type=topic_name)
@click.argument("consumer", type=consumer_name)
@_subscription_option
@json_option
@url_option
def describe_consumer(
    topic: str, consumer: str, subscription: str | None, as_json: bool, url: str
) -> None:
    """Show all figures of CONSUMER; once for each subscription and partition that it is attached to."""
    found = ask(url, lambda admin: admin.list_consumers(topic, subscription))
    lines = [line for line in found if line.consumer == consumer]
    if not lines:
        raise absent("consumer", consumer, topic)
    for line in lines:
        print_figures(line, json=as_json)


@consumers.command("disconnect")
@click.argument("topic", type=topic_name)
@click.argument("subscription", type=subscription_name)
@click.argument("consumer", type=consumer_name)
@json_option
@url_option
def disconnect_consumer(
    topic: str, subscription: str, consumer: str, as_json: bool, url: str
) -> None:
    """End CONSUMER of SUBSCRIPTION; what it had not acknowledged goes to others."""
    ask(url, lambda admin: admin.disconnect_consumer(topic, subscription, consumer))
    facts: dict[str, object] = {
        "topic": topic,
        "subscription": subscription,
        "consumer": consumer,
        "disconnected": True,
    }
    print_done(f"disconnected {consumer} from {subscription} of {topic}", facts, json=as_json)


@consumers.command("top")
@click.argument("topic", type=topic_name)
@_subscription_option
@top_options
@json_option
@url_option
def top(
    topic: str,
    subscription: str | None,
    as_json: bool,
    url: str,
    **how: Any,  # Any: the values of top_options
) -> None:
    """Watch the busiest consumers of TOPIC; Ctrl-C ends it."""
    run_top(url, lambda admin: admin.list_consumers(topic, subscription), _TOP,
            lambda c: (c.delivery_rate, c.delivered_messages), json=as_json, **how)  # fmt: skip
