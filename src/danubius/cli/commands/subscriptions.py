"""`danubius subscriptions`: list, create, describe, delete, figures.

Where it stands and what failed are in modules of their own, `positions` and `failures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from danubius.cli.commands import failures, positions
from danubius.cli.commands.administering import (
    ask,
    duration,
    failure_in_words,
    in_words,
    moment,
    print_done,
    print_figures,
    print_lines,
    rate,
    to_json,
)
from danubius.cli.commands.policy_options import build_failure, failure_options
from danubius.cli.commands.positions import of_subscription
from danubius.cli.commands.top import MEASURED_MAX, measure_each, run_top, top_options
from danubius.cli.options import (
    json_option,
    start_position,
    topic_name,
    url_option,
)
from danubius.cli.output import human_bytes, human_count, print_facts, print_json, print_line
from danubius.model.policy import FailurePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.cli.output import Cell
    from danubius.client.administration import Administration
    from danubius.client.options import Start, SubscriptionTypeName
    from danubius.model.admin_replies import SubscriptionSummary
    from danubius.model.statistics import SubscriptionStatistics


@click.group(
    epilog="""\b
Examples:
  danubius subscriptions list /default/orders
  danubius subscriptions create /default/orders billing --type shared --from earliest
  danubius subscriptions update /default/orders billing --redeliveries-max 5 --then dead-letter
  danubius subscriptions dead-letters /default/orders billing
  danubius subscriptions seek /default/orders billing --to 2026-01-31T12:00:00
  danubius subscriptions top /default/orders
"""
)
def subscriptions() -> None:
    """List, create, describe, update, move, delete and watch subscriptions."""


for _command in (*positions.COMMANDS, *failures.COMMANDS):
    subscriptions.add_command(_command)


COLUMNS: Final[dict[str, Callable[[SubscriptionSummary], Cell]]] = {
    "SUBSCRIPTION": lambda s: s.subscription,
    "TYPE": lambda s: s.type,
    "CONSUMERS": lambda s: s.consumers,
    "BACKLOG": lambda s: human_count(s.backlog_messages),
    "OLDEST": lambda s: duration(round(s.backlog_age_s * 1000)) if s.backlog_messages else "-",
    "UNACKED": lambda s: human_count(s.unacked_messages),
    "BLOCKED": lambda s: "yes" if s.is_blocked else "no",
    "IDLE": lambda s: "-" if s.consumers else duration(round(s.idle_s * 1000)),
    "HOLDS BACK": lambda s: human_bytes(s.held_back_bytes) if s.held_back_bytes else "-",
}


@subscriptions.command("list")
@click.argument("topic", type=topic_name)
@json_option
@url_option
def list_subscriptions(topic: str, as_json: bool, url: str) -> None:
    """List the subscriptions of TOPIC, in order of their names."""
    found = ask(url, lambda admin: admin.list_subscriptions(topic))
    print_lines(found, COLUMNS, json=as_json, nothing=f"{topic} has no subscriptions")
    for one in found:
        if one.held_back_bytes and not one.consumers:
            print_line(
                f"{one.subscription}: no consumer for {duration(round(one.idle_s * 1000))}, holds back "
                f"{human_bytes(one.held_back_bytes)} that retention would delete; if nobody needs it: "
                f"danubius subscriptions delete {topic} {one.subscription}",
                err=True,
            )


@subscriptions.command("create")
@of_subscription
@click.option(
    "--type", "kind", type=click.Choice(["exclusive", "shared", "failover", "key-shared"]),
    default="exclusive", show_default=True, help="How its consumers will share the messages.",
)  # fmt: skip
@click.option(
    "--from", "start", type=start_position, default="latest", show_default=True,
    metavar="POSITION", help="earliest, latest, an offset, or a time (2026-01-31T12:00:00).",
)  # fmt: skip
@failure_options
@click.option("--exist-ok", is_flag=True, help="Do not fail if it exists.")
@json_option
@url_option
def create_subscription(
    topic: str,
    subscription: str,
    kind: SubscriptionTypeName,
    start: Start,
    exist_ok: bool,
    as_json: bool,
    url: str,
    **failure: Any,  # Any: the values of failure_options
) -> None:
    """Create SUBSCRIPTION of TOPIC without a consumer: messages are kept for it from now on."""
    wanted = build_failure(failure, FailurePolicy())
    ask(
        url,
        lambda admin: admin.create_subscription(
            topic, subscription, type=kind, start=start, failure=wanted, exist_ok=exist_ok
        ),
    )
    facts: dict[str, object] = {"topic": topic, "subscription": subscription, "created": True}
    print_done(f"created subscription {subscription} of {topic}", facts, json=as_json)


@subscriptions.command("describe")
@of_subscription
@json_option
@url_option
def describe_subscription(topic: str, subscription: str, as_json: bool, url: str) -> None:
    """Show how SUBSCRIPTION of TOPIC stands."""
    found = ask(url, lambda admin: admin.describe_subscription(topic, subscription))
    if as_json:
        print_json(to_json(found))
        return
    inherited = "" if found.failure is not None else " (inherited)"
    print_facts(
        {
            **in_words(found.statistics),
            "consumers": ", ".join(found.consumers) or "none",
            "created": moment(found.created_ms),
            "failure": failure_in_words(found.effective_failure) + inherited,
        }
    )


@subscriptions.command("delete")
@of_subscription
@click.option("--force", is_flag=True, help="Also while consumers are attached, which ends them.")
@json_option
@url_option
def delete_subscription(
    topic: str, subscription: str, force: bool, as_json: bool, url: str
) -> None:
    """Delete SUBSCRIPTION of TOPIC; nothing is kept for it any more."""
    ask(url, lambda admin: admin.delete_subscription(topic, subscription, force=force))
    facts: dict[str, object] = {"topic": topic, "subscription": subscription, "deleted": True}
    print_done(f"deleted subscription {subscription} of {topic}", facts, json=as_json)


@subscriptions.command("stats")
@of_subscription
@json_option
@url_option
def measure_subscription(topic: str, subscription: str, as_json: bool, url: str) -> None:
    """Show all figures of SUBSCRIPTION of TOPIC."""
    found = ask(url, lambda admin: admin.describe_subscription(topic, subscription))
    print_figures(found.statistics, json=as_json)


_TOP: Final[dict[str, Callable[[SubscriptionStatistics], Cell]]] = {
    "SUBSCRIPTION": lambda s: s.subscription,
    "TYPE": lambda s: s.type,
    "CONSUMERS": lambda s: s.consumers,
    "DELIVERED": lambda s: rate(s.delivery_rate),
    "ACKED": lambda s: rate(s.ack_rate),
    "AGAIN": lambda s: rate(s.redelivery_rate),
    "BACKLOG": lambda s: human_count(s.backlog_messages),
    "OLDEST": lambda s: duration(round(s.backlog_age_s * 1000)) if s.backlog_messages else "-",
    "UNACKED": lambda s: human_count(s.unacked_messages),
}


@subscriptions.command("top")
@click.argument("topic", type=topic_name)
@top_options
@json_option
@url_option
def top(topic: str, as_json: bool, url: str, **how: Any) -> None:  # Any: the values of top_options
    """Watch the busiest subscriptions of TOPIC, of the first 200 by name; Ctrl-C ends it."""

    async def look(admin: Administration) -> list[SubscriptionStatistics]:
        lines = await admin.list_subscriptions(topic, limit=MEASURED_MAX)
        found = await measure_each(
            lines, lambda line: admin.describe_subscription(topic, line.subscription)
        )
        return [each.statistics for each in found]

    run_top(url, look, _TOP, lambda s: (s.delivery_rate, s.backlog_messages),
            json=as_json, **how)  # fmt: skip
