"""`danubius namespaces`: list, create, describe, update, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from danubius.cli.commands.administering import (
    ask,
    moment,
    policy_facts,
    print_done,
    print_figures,
    print_lines,
    rate,
    to_json,
)
from danubius.cli.commands.asking import ask_to_lose, check_can_ask, yes_option
from danubius.cli.commands.policy_options import (
    build_policies,
    changes_failure,
    inherit_option,
    is_empty,
    namespace_policy_options,
)
from danubius.cli.commands.top import MEASURED_MAX, measure_each, run_top, top_options
from danubius.cli.options import json_option, namespace_name, url_option
from danubius.cli.output import human_bytes, human_count, print_facts, print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.cli.output import Cell
    from danubius.client.administration import Administration
    from danubius.model.admin_replies import NamespaceDescribed, NamespaceSummary
    from danubius.model.statistics import NamespaceStatistics


@click.group(
    epilog="""\b
Examples:
  danubius namespaces create shop --retention-age 30d --no-auto-create
  danubius namespaces update shop --publish-rate 10k --inherit retention-age
  danubius namespaces describe shop
  danubius namespaces delete shop --force
"""
)
def namespaces() -> None:
    """List, create, describe, update, delete and watch namespaces."""


_LIST: Final[dict[str, Callable[[NamespaceSummary], Cell]]] = {
    "NAMESPACE": lambda n: n.namespace,
    "TOPICS": lambda n: n.topics,
    "STORED": lambda n: human_bytes(n.stored_bytes),
    "CREATED": lambda n: moment(n.created_ms) if n.created_ms else "built in",
}


@namespaces.command("list")
@json_option
@url_option
def list_namespaces(as_json: bool, url: str) -> None:
    """List all namespaces, in order of their names."""
    found = ask(url, lambda admin: admin.list_namespaces())
    print_lines(found, _LIST, json=as_json, nothing="no namespaces")


@namespaces.command("create")
@click.argument("namespace", type=namespace_name)
@namespace_policy_options
@click.option("--exist-ok", is_flag=True, help="Do not fail if it exists with the same policies.")
@json_option
@url_option
def create_namespace(
    namespace: str,
    exist_ok: bool,
    as_json: bool,
    url: str,
    **policies: Any,  # Any: the values of namespace_policy_options
) -> None:
    """Create NAMESPACE; its topics inherit its policies."""
    wanted = build_policies(policies)
    ask(url, lambda admin: admin.create_namespace(namespace, wanted, exist_ok=exist_ok))
    facts: dict[str, object] = {"namespace": namespace, "created": True}
    print_done(f"created namespace {namespace}", facts, json=as_json)


@namespaces.command("describe")
@click.argument("namespace", type=namespace_name)
@json_option
@url_option
def describe_namespace(namespace: str, as_json: bool, url: str) -> None:
    """Show what NAMESPACE holds and what holds in it."""
    found = ask(url, lambda admin: admin.describe_namespace(namespace))
    if as_json:
        print_json(to_json(found))
        return
    print_facts(
        {
            "namespace": found.namespace,
            "topics": human_count(found.topics),
            "stored": human_bytes(found.stored_bytes),
            **policy_facts(found.policies, found.effective),
        }
    )


@namespaces.command("update")
@click.argument("namespace", type=namespace_name)
@namespace_policy_options
@inherit_option
@json_option
@url_option
def update_namespace(
    namespace: str,
    inherited: Sequence[str],
    as_json: bool,
    url: str,
    **policies: Any,  # Any: the values of namespace_policy_options
) -> None:
    """Change policies of NAMESPACE, and with them those of its topics."""
    if is_empty(build_policies(policies, inherited)):
        raise click.UsageError("nothing to change: give a policy or --inherit")

    async def change(admin: Administration) -> NamespaceDescribed:
        before = None
        if changes_failure(policies):
            before = (await admin.describe_namespace(namespace)).effective.failure
        return await admin.update_namespace(namespace, build_policies(policies, inherited, before))

    changed = ask(url, change)
    if as_json:
        print_json(to_json(changed))
    else:
        print_line(f"updated namespace {namespace}")
        print_facts(policy_facts(changed.policies, changed.effective))


@namespaces.command("delete")
@click.argument("namespace", type=namespace_name)
@click.option(
    "--force", is_flag=True, help="With all its topics, their messages and subscriptions."
)
@yes_option
@json_option
@url_option
def delete_namespace(namespace: str, force: bool, yes: bool, as_json: bool, url: str) -> None:
    """Delete NAMESPACE, which must be empty unless --force is given; that asks first."""
    if force:
        check_can_ask("namespaces delete --force", yes=yes)
    if force and not yes:
        found = ask(url, lambda admin: admin.describe_namespace(namespace))
        ask_to_lose(_lost(found), yes=yes)
    ask(url, lambda admin: admin.delete_namespace(namespace, force=force))
    facts: dict[str, object] = {"namespace": namespace, "deleted": True}
    print_done(f"deleted namespace {namespace}", facts, json=as_json)


def _lost(found: NamespaceDescribed) -> str:
    held = f"{human_count(found.topics)} topics ({human_bytes(found.stored_bytes)} of messages)"
    return (
        f"namespace {found.namespace} with {held} and all their subscriptions will be gone for good"
    )


@namespaces.command("stats")
@click.argument("namespace", type=namespace_name)
@json_option
@url_option
def measure_namespace(namespace: str, as_json: bool, url: str) -> None:
    """Show all figures of NAMESPACE: its topics together."""
    print_figures(ask(url, lambda admin: admin.measure_namespace(namespace)), json=as_json)


_TOP: Final[dict[str, Callable[[NamespaceStatistics], Cell]]] = {
    "NAMESPACE": lambda n: n.namespace,
    "TOPICS": lambda n: n.topics,
    "PUBLISHED": lambda n: rate(n.publish_rate),
    "BYTES IN": lambda n: rate(n.publish_bytes_rate, is_bytes=True),
    "DELIVERED": lambda n: rate(n.delivery_rate),
    "BYTES OUT": lambda n: rate(n.delivery_bytes_rate, is_bytes=True),
    "BACKLOG": lambda n: human_count(n.backlog_messages),
    "STORED": lambda n: human_bytes(n.stored_bytes),
}


@namespaces.command("top")
@top_options
@json_option
@url_option
def top(as_json: bool, url: str, **how: Any) -> None:  # Any: the values of top_options
    """Watch the busiest namespaces, of the first 200 by name; Ctrl-C ends it."""

    async def look(admin: Administration) -> list[NamespaceStatistics]:
        lines = await admin.list_namespaces(limit=MEASURED_MAX)
        return await measure_each(lines, lambda line: admin.measure_namespace(line.namespace))

    run_top(url, look, _TOP, lambda n: (n.publish_rate + n.delivery_rate, n.published_messages),
            json=as_json, **how)  # fmt: skip
