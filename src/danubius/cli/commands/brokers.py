"""`danubius brokers`: who answers, and all its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from danubius.cli.commands.administering import (
    ask,
    duration,
    moment,
    policy_facts,
    print_figures,
    print_lines,
    rate,
    to_json,
)
from danubius.cli.commands.top import run_top, top_options
from danubius.cli.options import json_option, name_and_value, url_option
from danubius.cli.output import human_bytes, human_count, print_facts, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.cli.output import Cell
    from danubius.client.administration import Administration
    from danubius.model.admin_replies import BrokerDescribed, Setting, SettingValue
    from danubius.model.statistics import BrokerStatistics


@click.group(
    epilog="""\b
Examples:
  danubius brokers list
  danubius brokers describe
  danubius brokers stats --json
  danubius brokers top
  danubius brokers settings --live
  danubius brokers update --set policies.ttl_ms=1h --set logs.level=debug
"""
)
def brokers() -> None:
    """List, describe and watch brokers, and change their settings."""


_LIST: Final[dict[str, Callable[[BrokerDescribed], Cell]]] = {
    "BROKER": lambda b: b.broker_id,
    "URL": lambda b: b.url,
    "VERSION": lambda b: b.version,
    "UPTIME": lambda b: duration(round(b.statistics.uptime_s * 1000)),
    "CONNECTIONS": lambda b: b.statistics.connections,
    "TOPICS": lambda b: human_count(b.statistics.topics),
    "STORED": lambda b: human_bytes(b.statistics.stored_bytes),
}


@brokers.command("list")
@json_option
@url_option
def list_brokers(as_json: bool, url: str) -> None:
    """List the brokers: a standalone one is all there is."""
    found = ask(url, lambda admin: admin.describe_broker())
    print_lines([found], _LIST, json=as_json, nothing="no brokers")


@brokers.command("describe")
@json_option
@url_option
def describe_broker(as_json: bool, url: str) -> None:
    """Show who the broker is, and the policies of topics whose namespaces say nothing else."""
    found = ask(url, lambda admin: admin.describe_broker())
    if as_json:
        print_json(to_json(found))
        return
    print_facts(
        {
            "broker": found.broker_id,
            "url": found.url,
            "version": found.version,
            "epoch": found.epoch,
            "started": moment(found.started_ms),
            **policy_facts(found.policies, found.effective),
        }
    )


@brokers.command("stats")
@json_option
@url_option
def measure_broker(as_json: bool, url: str) -> None:
    """Show all figures of the broker."""
    print_figures(ask(url, lambda admin: admin.describe_broker()).statistics, json=as_json)


_SETTINGS: Final[dict[str, Callable[[Setting], Cell]]] = {
    "SETTING": lambda s: s.path,
    "VALUE": lambda s: _shown(s.value),
    "DEFAULT": lambda s: _shown(s.default),
    "FROM": lambda s: s.origin,
    "LIVE": lambda s: "yes" if s.is_live else "no",
}


@brokers.command("settings")
@click.option("--live", is_flag=True, help="Only those that can be changed without a restart.")
@click.option("--changed", is_flag=True, help="Only those that were given somewhere.")
@json_option
@url_option
def list_settings(live: bool, changed: bool, as_json: bool, url: str) -> None:
    """Show each setting with its default and where its value came from."""
    found = [
        setting
        for setting in ask(url, lambda admin: admin.describe_settings())
        if (setting.is_live or not live) and (setting.origin != "default" or not changed)
    ]
    print_lines(found, _SETTINGS, json=as_json, nothing="all settings have their defaults")


@brokers.command("update")
@click.option(
    "--set", "sets", type=name_and_value, multiple=True, metavar="SECTION.KEY=VALUE",
    help="A setting that needs no restart, for example policies.ttl_ms=1h; may be repeated.",
)  # fmt: skip
@click.option(
    "--reset", "resets", multiple=True, metavar="SECTION.KEY",
    help="Back to what file, environment and flags say; may be repeated.",
)  # fmt: skip
@json_option
@url_option
def update_settings(
    sets: Sequence[tuple[str, str]], resets: Sequence[str], as_json: bool, url: str
) -> None:
    """Change settings without a restart, until the broker ends; all or none."""
    wanted: dict[str, SettingValue] = {**dict(sets), **dict.fromkeys(resets)}
    if not wanted:
        raise click.UsageError("nothing to change: give --set SECTION.KEY=VALUE or --reset")
    settings = ask(url, lambda admin: admin.update_settings(wanted))
    changed = [setting for setting in settings if setting.path in wanted]
    print_lines(changed, _SETTINGS, json=as_json, nothing="nothing changed")


def _shown(value: SettingValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "not set" if value is None else str(value)


_TOP: Final[dict[str, Callable[[BrokerStatistics], Cell]]] = {
    "PUBLISHED": lambda b: rate(b.publish_rate),
    "BYTES IN": lambda b: rate(b.publish_bytes_rate, is_bytes=True),
    "DELIVERED": lambda b: rate(b.delivery_rate),
    "BYTES OUT": lambda b: rate(b.delivery_bytes_rate, is_bytes=True),
    "CONNECTIONS": lambda b: b.connections,
    "PRODUCERS": lambda b: b.producers,
    "CONSUMERS": lambda b: b.consumers,
    "JOURNAL": lambda b: human_bytes(b.journal_bytes),
    "STORED": lambda b: human_bytes(b.stored_bytes),
}


@brokers.command("top")
@top_options
@json_option
@url_option
def top(as_json: bool, url: str, **how: Any) -> None:  # Any: the values of top_options
    """Watch the broker; Ctrl-C ends it."""

    async def look(admin: Administration) -> list[BrokerStatistics]:
        return [(await admin.describe_broker()).statistics]

    run_top(url, look, _TOP, lambda b: (b.publish_rate, b.published_messages), json=as_json, **how)
