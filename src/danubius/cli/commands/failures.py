"""`danubius subscriptions update | unblock | dead-letters | redrive | purge`: what becomes of messages that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from danubius.cli.commands.administering import ask, failure_in_words, print_lines, to_json
from danubius.cli.commands.message_lines import text_or_base64
from danubius.cli.commands.policy_options import build_failure, changes_failure, failure_options
from danubius.cli.commands.positions import of_subscription, print_counted
from danubius.cli.options import count, json_option, url_option
from danubius.cli.output import human_bytes, print_facts, print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.cli.options import F
    from danubius.cli.output import Cell
    from danubius.client.administration import Administration
    from danubius.model.admin_replies import DeadLetter, SubscriptionDescribed

TEXT_MAX: Final = 40
"""Characters of a payload in the table."""


def _count_option(command: F) -> F:
    return click.option(
        "--count", "messages", type=count, metavar="N",
        help="The oldest so many; otherwise all of them.",
    )(command)  # fmt: skip


def _start(letter: DeadLetter) -> str:
    text = letter.payload_start.decode(errors="replace")
    clean = "".join(c if c.isprintable() else "·" for c in text)
    return clean if len(clean) <= TEXT_MAX else clean[:TEXT_MAX] + "…"


_COLUMNS: Final[dict[str, Callable[[DeadLetter], Cell]]] = {
    "OFFSET": lambda d: d.offset,
    "ORIGINAL": lambda d: f"{d.original_topic} {d.original_offset}",
    "ATTEMPTS": lambda d: d.attempts,
    "REASON": lambda d: d.reason or "-",
    "KEY": lambda d: "-" if d.key is None else d.key.decode(errors="replace"),
    "SIZE": lambda d: human_bytes(d.payload_bytes),
    "PAYLOAD": _start,
}


@click.command("update")
@of_subscription
@failure_options
@click.option("--inherit", is_flag=True, help="Give up its own failure policy for its topic's.")
@json_option
@url_option
def update_subscription(
    topic: str,
    subscription: str,
    inherit: bool,
    as_json: bool,
    url: str,
    **failure: Any,  # Any: the values of failure_options
) -> None:
    """Change the failure policy of SUBSCRIPTION; it holds from the next delivery on."""
    if changes_failure(failure) == inherit:
        problem = "is both changed and to be inherited" if inherit else "is not changed"
        raise click.UsageError(f"the failure policy {problem}: give its options, or --inherit")

    async def change(admin: Administration) -> SubscriptionDescribed:
        if inherit:
            return await admin.update_subscription(topic, subscription, None)
        before = await admin.describe_subscription(topic, subscription)
        changed = build_failure(failure, before.effective_failure)
        return await admin.update_subscription(topic, subscription, changed)

    found = ask(url, change)
    if as_json:
        print_json(to_json(found))
    else:
        print_line(f"updated subscription {subscription} of {topic}")
        print_facts({"failure": failure_in_words(found.effective_failure)})


@click.command("dead-letters")
@of_subscription
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N",
    help="Show the oldest so many.",
)  # fmt: skip
@json_option
@url_option
def list_dead_letters(topic: str, subscription: str, limit: int, as_json: bool, url: str) -> None:
    """Show the messages of SUBSCRIPTION that failed too often, and why, the oldest first."""
    found = ask(url, lambda admin: admin.list_dead_letters(topic, subscription, limit=limit))
    if as_json:
        for letter in found:
            print_json(_facts(letter))
        return
    print_lines(found, _COLUMNS, json=False, nothing=f"{subscription} has no dead letters")


def _facts(letter: DeadLetter) -> dict[str, object]:
    facts: dict[str, object] = to_json(letter)
    del facts["payload_start"]
    if letter.key is not None:
        del facts["key"]
        facts |= text_or_base64("key", letter.key)
    return facts | text_or_base64("payload_start", letter.payload_start)


@click.command()
@of_subscription
@_count_option
@json_option
@url_option
def redrive(topic: str, subscription: str, messages: int | None, as_json: bool, url: str) -> None:
    """Publish dead letters of SUBSCRIPTION to TOPIC again; all its subscriptions get them."""
    sent = ask(url, lambda admin: admin.redrive(topic, subscription, messages))
    print_counted("sent back", topic, subscription, sent, json=as_json)


@click.command()
@of_subscription
@_count_option
@json_option
@url_option
def purge(topic: str, subscription: str, messages: int | None, as_json: bool, url: str) -> None:
    """Give up dead letters of SUBSCRIPTION, the oldest first."""
    gone = ask(url, lambda admin: admin.purge_dead_letters(topic, subscription, messages))
    print_counted("gave up", topic, subscription, gone, json=as_json)


@click.command()
@of_subscription
@json_option
@url_option
def unblock(topic: str, subscription: str, as_json: bool, url: str) -> None:
    """Deliver again what failed too often and blocks SUBSCRIPTION, counting from the start."""
    released = ask(url, lambda admin: admin.unblock(topic, subscription))
    print_counted("released", topic, subscription, released, json=as_json)


COMMANDS: Final = (update_subscription, unblock, list_dead_letters, redrive, purge)
