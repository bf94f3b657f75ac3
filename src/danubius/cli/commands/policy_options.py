"""Policies as options: one for each field, and `--inherit` to take one back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

from danubius.cli.options import (
    F,
    age,
    age_or_never,
    byte_count,
    count_or_none,
    milliseconds,
    redeliveries,
    size_or_all,
    size_or_never,
    size_or_none,
    topic_name,
)
from danubius.model.policy import (
    FOREVER,
    PARTITIONS_MAX,
    UNACKED_MESSAGES_MAX,
    Backoff,
    Exhausted,
    FailurePolicy,
    Policies,
    QuotaAction,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _Option(NamedTuple):
    flag: str
    field: str
    type: Any  # Any: whatever click takes
    metavar: str
    help: str


_COMMON: Final = (
    _Option("--retention-age", "retention_age_ms", age, "AGE",
            "Keep acknowledged messages this long: 90s, 12h, 30d, 0, forever."),
    _Option("--retention-bytes", "retention_bytes", size_or_all, "SIZE",
            "Keep at most this many acknowledged bytes: 10GiB, 0, all."),
    _Option("--ttl", "ttl_ms", milliseconds, "AGE", "Do not deliver older messages: 5m, none."),
    _Option("--delete-after-ack/--keep-after-ack", "delete_after_ack", bool, "",
            "A plain work queue: free what is acknowledged as soon as possible."),
    _Option("--message-bytes-max", "message_bytes_max", byte_count, "SIZE", "Refuse larger messages."),
    _Option("--producers-max", "producers_max", count_or_none, "N", "Producers at once: 10, none."),
    _Option("--consumers-max", "consumers_max", count_or_none, "N",
            "Consumers at once, of all subscriptions together: 10, none."),
    _Option("--subscriptions-max", "subscriptions_max", count_or_none, "N", "Subscriptions: 10, none."),
    _Option("--subscription-consumers-max", "subscription_consumers_max", count_or_none, "N",
            "Consumers at once of one subscription: 10, none."),
    _Option("--publish-rate", "publish_messages_per_s", count_or_none, "N",
            "Messages a second from all producers: 1000, 10k, none."),
    _Option("--publish-bytes-rate", "publish_bytes_per_s", size_or_none, "SIZE",
            "Bytes a second from all producers: 10MiB, none."),
    _Option("--dispatch-rate", "dispatch_messages_per_s", count_or_none, "N",
            "Messages a second to each subscription (namespace: to all together): 1000, 10k, none."),
    _Option("--dispatch-bytes-rate", "dispatch_bytes_per_s", size_or_none, "SIZE",
            "Bytes a second to each subscription (namespace: to all together): 10MiB, none."),
    _Option("--quota", "quota_bytes", size_or_none, "SIZE", "Bytes that may be stored: 50GiB, none."),
    _Option("--quota-action", "quota_action", click.Choice([str(each) for each in QuotaAction]), "",
            "What happens to a publish that finds the quota used up."),
    _Option("--offload-age", "offload_age_ms", age_or_never, "AGE",
            "Move ledgers to cold storage this long after their last message: 1h, 0, never."),
    _Option("--offload-bytes", "offload_bytes", size_or_never, "SIZE",
            "Move the oldest to cold storage when more than this is on disk alone: 10GiB, 0, never."),
    _Option("--local-age", "local_age_ms", age, "AGE",
            "Keep what is in cold storage on disk too for this long: 1d, 0, forever."),
    _Option("--local-bytes", "local_bytes", size_or_all, "SIZE",
            "Keep this much of what is in cold storage on disk too: 10GiB, 0, all."),
)  # fmt: skip
_NAMESPACE: Final = (
    _Option("--auto-create/--no-auto-create", "auto_create", bool, "",
            "Whether a producer may create a topic by opening it."),
    _Option("--auto-partitions", "auto_partitions", click.IntRange(0, PARTITIONS_MAX), "N",
            "Partitions of topics that producers create; 0: they are not partitioned."),
)  # fmt: skip
_FAILURE: Final = (
    _Option("--ack-timeout", "ack_timeout_ms", milliseconds, "TIME",
            "Deliver again what is not acknowledged after this long: 30s, none."),
    _Option("--backoff", "backoff", click.Choice([str(each) for each in Backoff]), "",
            "Whether the delay before a redelivery stays or doubles each time."),
    _Option("--redelivery-delay", "delay_ms", milliseconds, "TIME",
            "Before the first redelivery: 250ms, 10s."),
    _Option("--redelivery-delay-max", "delay_max_ms", milliseconds, "TIME", "Bound of a growing delay."),
    _Option("--jitter", "jitter", click.FloatRange(0, 1), "PART",
            "The part of the delay that is spread at random, 0 to 1."),
    _Option("--redeliveries-max", "redeliveries_max", redeliveries, "N",
            "A message that failed more often than this is given up: 5, none (never)."),
    _Option("--then", "then", click.Choice([str(each) for each in Exhausted]), "",
            "What becomes of a message that is given up."),
    _Option("--dead-letter-topic", "dead_letter_topic", topic_name, "TOPIC",
            "Where it goes; otherwise {topic}-{subscription}-dlq."),
    _Option("--unacked-max", "unacked_messages_max", click.IntRange(1, UNACKED_MESSAGES_MAX), "N",
            "Messages that may be delivered and not acknowledged, all consumers together."),
)  # fmt: skip
_FAILURE_PREFIX: Final = "failure_"


def topic_policy_options(command: F) -> F:
    """All that a topic may set."""
    return _add(_add(command, _FAILURE, _FAILURE_PREFIX), _COMMON)


def namespace_policy_options(command: F) -> F:
    """All that a namespace may set."""
    return _add(_add(_add(command, _FAILURE, _FAILURE_PREFIX), _NAMESPACE), _COMMON)


def failure_options(command: F) -> F:
    """What a subscription may set."""
    return _add(command, _FAILURE, _FAILURE_PREFIX)


def inherit_option(command: F) -> F:
    """`--inherit ttl`: back to what is inherited."""
    return click.option(
        "--inherit", "inherited", type=_policy_field, multiple=True, metavar="POLICY",
        help="Take a policy back, by its option's name: --inherit ttl; failure means all of it.",
    )(command)  # fmt: skip


def _add(command: F, options: Sequence[_Option], prefix: str = "") -> F:
    for option in reversed(options):
        command = click.option(
            option.flag,
            prefix + option.field,
            type=option.type,
            default=None,
            metavar=option.metavar or None,
            help=option.help,
        )(command)
    return command


_FIELDS: Final = {
    option.flag.split("/")[0].removeprefix("--"): option.field for option in (*_COMMON, *_NAMESPACE)
} | {"failure": "failure"}


def _policy_field(name: str) -> str:
    if name in _FIELDS.values():
        return name
    if name not in _FIELDS:
        raise click.BadParameter(f"{name!r} is none of {', '.join(_FIELDS)}")
    return _FIELDS[name]


def build_policies(
    given: Mapping[str, Any], inherited: Sequence[str] = (), failure: FailurePolicy | None = None
) -> Policies:
    """A layer, or a change of one, from a command's options. `failure`: what holds before the change."""
    fields: dict[str, Any] = {
        option.field: given[option.field]
        for option in (*_COMMON, *_NAMESPACE)
        if given.get(option.field) is not None
    }
    changed = build_failure(given, failure or FailurePolicy())
    if changed is not None:
        fields["failure"] = changed
    clash = [name for name in inherited if name in fields]
    if clash:
        raise click.UsageError(f"{clash[0]} is both set and to be inherited")
    if "quota_action" in fields:
        fields["quota_action"] = QuotaAction(fields["quota_action"])
    return Policies(**fields, **dict.fromkeys(inherited))


def build_failure(given: Mapping[str, Any], before: FailurePolicy) -> FailurePolicy | None:
    """A failure policy with what the options change; None if they change nothing."""
    fields: dict[str, Any] = {
        option.field: given[_FAILURE_PREFIX + option.field]
        for option in _FAILURE
        if given.get(_FAILURE_PREFIX + option.field) is not None
    }
    if not fields:
        return None
    if fields.get("redeliveries_max") == FOREVER:
        fields["redeliveries_max"] = None
    if "delay_ms" in fields and "delay_max_ms" not in fields:
        fields["delay_max_ms"] = max(before.delay_max_ms, fields["delay_ms"])
    return msgspec.convert(msgspec.to_builtins(before) | fields, FailurePolicy)


def changes_failure(given: Mapping[str, Any]) -> bool:
    """Whether any option of the failure policy was given: the policy before the change is needed then."""
    return any(given.get(_FAILURE_PREFIX + option.field) is not None for option in _FAILURE)


def is_empty(policies: Policies) -> bool:
    return policies == Policies()
