"""Rules for the fields of administration requests: fields of one name have one rule, in every request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.errors import InvalidArgument
from danubius.model.ids import parse_name, parse_topic_name
from danubius.model.limits import NAME_LENGTH_MAX
from danubius.model.policy import COUNT_MAX, PARTITIONS_MAX, FailurePolicy, Policies
from danubius.model.subscription import AtOffset, AtTime, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from danubius.model.admin_replies import SettingValue
    from danubius.model.topic import TopicSpec

LIMIT_MAX: Final = 1000
"""Lines of one page."""
LIMIT: Final = 100
OFFSET_MAX: Final = 2**63 - 1
TRANSACTION_MAX: Final = 2**64 - 1
SETTINGS_MAX: Final = 100
"""Changed by one request."""
LEDGER_MAX: Final = 2**32 - 1


def check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{name} is {value}; it must be {least} to {most}")


def _check_after(after: str | int) -> None:
    if isinstance(after, int):
        check_range("after", after, 0, OFFSET_MAX)


def _check_failure(failure: FailurePolicy) -> None:
    failure.check()
    if failure.dead_letter_topic:
        parse_topic_name(failure.dead_letter_topic)


def _check_policies(policies: Policies) -> None:
    policies.check()
    if isinstance(policies.failure, FailurePolicy):
        _check_failure(policies.failure)


def _check_spec(spec: TopicSpec) -> None:
    spec.check()
    _check_policies(spec.policies)


def _check_position(position: Position) -> None:
    if isinstance(position, AtOffset):
        check_range("offset", position.offset, 0, OFFSET_MAX)
    elif isinstance(position, AtTime):
        check_range("time_us", position.time_us, 0, OFFSET_MAX)


def _check_settings(settings: dict[str, SettingValue]) -> None:
    check_range("the number of settings", len(settings), 1, SETTINGS_MAX)
    for path in settings:
        check_range("the length of a setting's path", len(path), 1, NAME_LENGTH_MAX)


def _check_until(until: dict[str, int]) -> None:
    check_range("the number of topics in until", len(until), 0, PARTITIONS_MAX)
    for name, offset in until.items():
        parse_topic_name(name)
        check_range(f"until.{name}", offset, 0, OFFSET_MAX)


RULES: Final[Mapping[str, Callable[[Any], object]]] = {
    "namespace": lambda name: parse_name("namespace", name),
    "topic": parse_topic_name,
    "subscription": lambda name: parse_name("subscription", name),
    "producer": lambda name: parse_name("producer", name),
    "consumer": lambda name: parse_name("consumer", name),
    "policies": _check_policies,
    "spec": _check_spec,
    "failure": _check_failure,
    "start": _check_position,
    "to": _check_position,
    "partitions": lambda count: check_range("partitions", count, 0, PARTITIONS_MAX),
    "after": _check_after,
    "limit": lambda count: check_range("limit", count, 1, LIMIT_MAX),
    "count": lambda count: check_range("count", count, 1, COUNT_MAX),
    "settings": _check_settings,
    "until": _check_until,
    "ledger_id": lambda number: check_range("ledger_id", number, 0, LEDGER_MAX),
    "transaction": lambda number: check_range("transaction", number, 0, TRANSACTION_MAX),
}
