"""`danubius transactions`: which are open, and an end to one that hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from danubius.cli.commands.administering import ask, moment, print_done, print_figures, print_lines
from danubius.cli.options import json_option, url_option
from danubius.cli.output import human_bytes, human_count
from danubius.errors import TransactionNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.cli.output import Cell
    from danubius.model.admin_replies import TransactionSummary

_NUMBER: Final = click.IntRange(0, 2**64 - 1)


@click.group(
    epilog="""\b
Examples:
  danubius transactions list
  danubius transactions describe 4294967297
  danubius transactions abort 4294967297
"""
)
def transactions() -> None:
    """List, describe and abort open transactions."""


_LIST: Final[dict[str, Callable[[TransactionSummary], Cell]]] = {
    "TRANSACTION": lambda t: str(t.transaction),
    "STATE": lambda t: t.state,
    "ADDRESS": lambda t: t.address,
    "BEGUN": lambda t: moment(t.begun_ms),
    "DEADLINE": lambda t: moment(t.deadline_ms),
    "MESSAGES": lambda t: human_count(t.staged_messages),
    "BYTES": lambda t: human_bytes(t.staged_bytes),
    "ACKS": lambda t: human_count(t.acked_messages),
}


@transactions.command("list")
@json_option
@url_option
def list_transactions(as_json: bool, url: str) -> None:
    """List the open transactions, the oldest first."""
    found = ask(url, lambda admin: admin.list_transactions())
    print_lines(found, _LIST, json=as_json, nothing="no open transactions")


@transactions.command("describe")
@click.argument("transaction", type=_NUMBER)
@json_option
@url_option
def describe_transaction(transaction: int, as_json: bool, url: str) -> None:
    """Show all figures of TRANSACTION, a number from `danubius transactions list`."""
    found = ask(url, lambda admin: admin.list_transactions())
    for line in found:
        if line.transaction == transaction:
            print_figures(line, json=as_json)
            return
    raise TransactionNotFound(
        f"transaction {transaction} is not open; `danubius transactions list` shows those that are"
    )


@transactions.command("abort")
@click.argument("transaction", type=_NUMBER)
@json_option
@url_option
def abort_transaction(transaction: int, as_json: bool, url: str) -> None:
    """End TRANSACTION without a trace: nothing it holds is published or acknowledged.

    Its client hears of it at the next thing it does, and can begin another.
    """
    ask(url, lambda admin: admin.abort_transaction(transaction))
    facts: dict[str, object] = {"transaction": transaction, "aborted": True}
    print_done(f"aborted transaction {transaction}", facts, json=as_json)
