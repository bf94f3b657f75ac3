"""All settings of a broker process: what there is, what was given where, and what holds.

Layers, the later one wins: built-in defaults, a TOML file, the environment, flags. Everything here but `load` is pure.
Invariant: settings that `merge` made can be obeyed; what cannot is refused, every problem of it named at once, with
where it was given and what would be right.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
from msgspec import inspect as types

from danubius.app.diskless import check_diskless
from danubius.app.ledger_stores import LedgerStoreSettings
from danubius.app.options import GrpcPorts, StandaloneOptions, ledger_config
from danubius.app.process_settings import LogSettings, ServerSettings
from danubius.app.quantities import BYTES, MILLISECONDS, parse_quantity, units_of
from danubius.broker.config import BrokerConfig
from danubius.errors import DanubiusError, InvalidArgument
from danubius.ledger.config import LedgerConfig
from danubius.model.field_docs import field_docs
from danubius.model.ids import parse_topic_name
from danubius.model.policy import Effective, FailurePolicy, Policies
from danubius.model.setting_marks import mark_of, shown_setting
from danubius.tier.config import TierConfig
from danubius.tier.diskless_config import DisklessConfig
from danubius.wal.config import JournalConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT: Final = "default"
PREFIX: Final = "DANUBIUS_"
SHOWN_MAX: Final = 60
"""Characters of a wrong value that are repeated in the sentence about it."""


class Settings(msgspec.Struct, frozen=True):
    """What holds; the policies are the broker's."""

    server: ServerSettings = ServerSettings()
    broker: BrokerConfig = BrokerConfig()
    journal: JournalConfig = JournalConfig()
    ledgers: LedgerConfig = LedgerConfig()
    ledger_store: LedgerStoreSettings = LedgerStoreSettings()
    tier: TierConfig = TierConfig()
    diskless: DisklessConfig = DisklessConfig()
    logs: LogSettings = LogSettings()

    def options(self) -> StandaloneOptions:
        """The part that the process itself is told."""
        return StandaloneOptions(
            data_dir=Path(self.server.data_dir),
            host=self.server.host,
            port=self.server.port,
            http_port=self.server.http_port,
            allowed_hosts=self.server.allowed_hosts,
            grpc=self._grpc(),
            log_level=self.logs.level,
            log_format=self.logs.format,
            cache_bytes=self.ledgers.cache_bytes,
            ledger_store=self.ledger_store,
            tier=self.tier,
            diskless=self.diskless,
        )

    def _grpc(self) -> GrpcPorts | None:
        server = self.server
        if not server.grpc:
            return None
        return GrpcPorts(
            server.grpc_port, server.admin_port, server.advertised_host, server.connect_url
        )


class Given(NamedTuple):
    """One value that somebody gave."""

    path: str
    value: object
    origin: str


class Loaded(NamedTuple):
    """What holds, value by value, and where each came from."""

    settings: Settings
    values: dict[str, Any]  # Any: whatever the setting's type is
    origins: dict[str, str]


class Key(NamedTuple):
    """One setting that there is."""

    path: str
    type: Any  # Any: a type expression
    default: Any  # Any: a value of that type
    text: str

    @property
    def variable(self) -> str:
        return PREFIX + self.path.upper().replace(".", "_")

    @property
    def mark(self) -> str:
        """How its value is shown: one of those in `setting_marks`."""
        kind = types.type_info(self.type)
        return mark_of(cast("Any", kind).extra) if isinstance(kind, types.Metadata) else ""


_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "server": ServerSettings,
    "broker": BrokerConfig,
    "journal": JournalConfig,
    "ledgers": LedgerConfig,
    "ledger_store": LedgerStoreSettings,
    "tier": TierConfig,
    "diskless": DisklessConfig,
    "policies": Effective,
    "policies.failure": FailurePolicy,
    "logs": LogSettings,
}
_NOT_HERE: Final = {
    "broker.policies",
    "policies.failure",
    "policies.failure.unacked_messages_max",
    "policies.message_bytes_max",
}
"""Two are sections of their own; one is for subscriptions that are told apart; the largest message is
`broker.message_bytes_max` for all."""


def _keys() -> dict[str, Key]:
    found: dict[str, Key] = {}
    for section, struct in _SECTIONS.items():
        texts = field_docs(Policies if struct is Effective else struct)
        for field in msgspec.structs.fields(struct):
            path = f"{section}.{field.name}"
            if path not in _NOT_HERE:
                factory = field.default_factory
                default = field.default if factory is msgspec.NODEFAULT else factory()
                found[path] = Key(path, field.type, default, texts.get(field.name, ""))
    return found


KEYS: Final = _keys()
"""Every setting by its path, in the order in which they are printed."""
_VARIABLES: Final = {key.variable: key.path for key in KEYS.values()}

LIVE: Final = frozenset(
    path for path in KEYS if path.startswith(("policies.", "logs."))
) | frozenset(
    f"broker.{name}"
    for name in (
        "message_bytes_max",
        "connections_max",
        "connection_handles_max",
        "topics_max",
        "namespace_topics_max",
        "topic_subscriptions_max",
        "keepalive_ms",
        "handshake_timeout_ms",
        "checkpoint_bytes",
        "checkpoint_topic_bytes",
        "checkpoint_interval_ms",
        "auto_create_namespaces",
    )
)
"""What takes effect while the broker runs; the rest is read once, at the start."""

# ---------------------------------------------------------------- layers


def from_file(text: str, name: str) -> list[Given]:
    """The values of a TOML file, each with the line that it stands on."""
    try:
        content: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InvalidArgument(f"{name} is not TOML: {problem}") from problem
    lines = _lines(text)

    def walk(table: dict[str, object], prefix: str) -> Iterable[Given]:
        for key, value in table.items():
            path = f"{prefix}{key}"
            if isinstance(value, dict) and path not in KEYS:
                yield from walk(cast("dict[str, object]", value), path + ".")
            else:
                yield Given(path, value, _at(name, lines, path))

    return list(walk(content, ""))


def _lines(text: str) -> dict[str, int]:
    """The line of every key and of every table, as far as they stand at the start of one."""
    found: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"\s*\[\[?([^\[\]]+)\]", line):
            path = match[1].replace(" ", "").replace('"', "")
            prefix = path + "."
        elif match := re.match(r"\s*([\w.\"-]+(?:\s*\.\s*[\w\"-]+)*)\s*=", line):
            path = prefix + match[1].replace(" ", "").replace('"', "")
        else:
            continue
        found.setdefault(path, number)
    return found


def _at(name: str, lines: Mapping[str, int], path: str) -> str:
    while path:
        if path in lines:
            return f"{name}:{lines[path]}"
        path = path.rpartition(".")[0]
    return name


def from_environment(variables: Mapping[str, str]) -> list[Given]:
    """`DANUBIUS_<SECTION>_<KEY>`; other variables are other programs' affair."""
    starts = tuple(f"{PREFIX}{section.upper()}_" for section in _SECTIONS if "." not in section)
    return [
        Given(_VARIABLES.get(name, name), value, name)
        for name, value in sorted(variables.items())
        if name.startswith(starts)
    ]


# ---------------------------------------------------------------- merging


def merge(*layers: Iterable[Given]) -> Loaded:
    """What holds; InvalidArgument with a line for every problem."""
    problems: list[str] = []
    values = {path: key.default for path, key in KEYS.items()}
    origins = dict.fromkeys(KEYS, DEFAULT)
    for given in (each for layer in layers for each in layer):
        key = KEYS.get(given.path)
        if key is None:
            problems.append(f"{given.origin}: {unknown(given.path)}")
            continue
        try:
            values[given.path] = _convert(key, given.value)
        except ValueError as problem:
            problems.append(f"{given.origin}: {problem}")
        origins[given.path] = given.origin
    if not problems:
        _scale(values, origins)
        settings = _build(values, origins, problems)
        if not problems:
            return Loaded(settings, values, origins)
    raise InvalidArgument("\n".join(problems))


def unknown(path: str) -> str:
    """The sentence about a setting that there is not, with the nearest that there is."""
    if path.startswith(PREFIX):
        near = difflib.get_close_matches(path, _VARIABLES, n=1)
        return f"there is no such setting{f'; did you mean {near[0]}?' if near else ''}"
    if path in _SECTIONS:
        return f"{path} is a section: its settings stand below a line [{path}]"
    if path == "policies.message_bytes_max":
        return "policies.message_bytes_max is set for the whole broker as broker.message_bytes_max"
    same = [known for known in KEYS if known.endswith("." + path.rpartition(".")[2])]
    near = difflib.get_close_matches(path, KEYS, n=1) or same[:1]
    hint = f"; did you mean {near[0]}?" if near else f"; sections are {', '.join(_SECTIONS)}"
    return f"there is no setting {path}{hint}"


def _convert(key: Key, given: object) -> object:
    """The value as the setting's type; ValueError with a sentence if it is none."""
    value = given
    if isinstance(_kind(key), types.IntType) and isinstance(given, str):
        number = parse_quantity(given, units_of(key.path))
        value = "" if number is None else number
    elif isinstance(_kind(key), types.DictType) and isinstance(given, str):
        value = _pairs(given)
    try:
        converted: Any = msgspec.convert(value, key.type, strict=not isinstance(value, str))
        if key.path.startswith("policies.") and "failure" not in key.path:
            Policies(**{key.path.rpartition(".")[2]: converted}).check()
    except msgspec.ValidationError:
        shown = _quoted(key, given)
        shown = shown if len(shown) <= SHOWN_MAX else shown[:SHOWN_MAX] + "…"
        raise ValueError(f"{key.path} is {shown}; it must be {_allowed(key)}") from None
    except DanubiusError as error:
        raise ValueError(f"policies.{error.message}") from None
    return converted


def _quoted(key: Key, given: object) -> str:
    """A value that is wrong, as far as it may be repeated: of options in one text nobody can tell which are secret."""
    if isinstance(given, str) and isinstance(_kind(key), types.DictType):
        return "text of another form"
    return repr(shown_setting(given, key.mark))


def _pairs(text: str) -> dict[str, str] | None:
    """`a=b,c=d`; None if it is not that."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        return None
    return {name.strip(): value for name, _, value in pairs}


def as_text(key: Key, value: object) -> Any:  # Any: whatever a setting may be
    """A value for a line of its own: options as text that could be given, without what is secret."""
    shown = shown_setting(value, key.mark)
    if not isinstance(shown, dict):
        return shown
    return ",".join(f"{name}={each}" for name, each in cast("dict[str, object]", shown).items())


def _kind(key: Key) -> types.Type:
    kind = types.type_info(key.type)
    if isinstance(kind, types.Metadata):
        kind = kind.type
    if isinstance(kind, types.UnionType):
        kind = next(each for each in kind.types if not isinstance(each, types.NoneType))
    return kind


def _allowed(key: Key) -> str:
    """What would be right, in words."""
    kind = _kind(key)
    match kind:
        case types.BoolType():
            return "true or false"
        case types.LiteralType(values=words):
            return "one of " + ", ".join(str(word) for word in words)
        case types.EnumType(cls=cls):
            return "one of " + ", ".join(str(word.value) for word in cls)
        case types.IntType(ge=least, le=most):
            bounds = f" of at least {least}" if least is not None else ""
            if most is not None:
                bounds = f" from {least or 0} to {most}"
            return f"a whole number{bounds}{_unit_hint(key)}"
        case _:
            return _OTHERWISE.get(type(kind), "text that is not empty")


_OTHERWISE: Final[dict[type, str]] = {
    types.FloatType: "a number",
    types.DictType: 'a table of texts, or text such as "endpoint=http://127.0.0.1:9000,region=eu-1"',
}


def _unit_hint(key: Key) -> str:
    units = units_of(key.path)
    if units is MILLISECONDS:
        return ' in milliseconds, or a time such as "10s"'
    return ', or a size such as "64MiB"' if units is BYTES else ""


def _scale(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    """Bounds below the cache follow it, unless they were given."""
    scaled = ledger_config(values["ledgers.cache_bytes"])
    for name in ("flush_bytes", "dirty_bytes_max"):
        if origins[f"ledgers.{name}"] == DEFAULT:
            values[f"ledgers.{name}"] = getattr(scaled, name)


def _section(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {
        path.rpartition(".")[2]: value
        for path, value in values.items()
        if path.rpartition(".")[0] == section
    }


def _build(values: Mapping[str, Any], origins: Mapping[str, str], problems: list[str]) -> Settings:
    given = {path: value for path, value in values.items() if origins[path] != DEFAULT}
    policies = _section(given, "policies")
    if failure := _section(given, "policies.failure"):
        policies["failure"] = FailurePolicy(**failure)
    settings = Settings(
        ServerSettings(**_section(values, "server")),
        BrokerConfig(**_section(values, "broker"), policies=Policies(**policies)),
        JournalConfig(**_section(values, "journal")),
        LedgerConfig(**_section(values, "ledgers")),
        LedgerStoreSettings(**_section(values, "ledger_store")),
        TierConfig(**_section(values, "tier")),
        DisklessConfig(**_section(values, "diskless")),
        LogSettings(**_section(values, "logs")),
    )
    for section, check in (
        ("server", settings.server.check),
        ("policies", functools.partial(_check_policies, settings.broker.policies)),
        ("journal", settings.journal.check),
        ("ledgers", settings.ledgers.check),
        ("ledger_store", settings.ledger_store.check),
        (
            "diskless",
            functools.partial(
                check_diskless, settings.diskless, settings.tier, settings.ledger_store
            ),
        ),
    ):
        try:
            check()
        except DanubiusError as error:
            where = sorted({origins[path] for path in given if path.startswith(section + ".")})
            problems.append(f"{', '.join(where)}: [{section}] {error.message}")
    return settings


def _check_policies(policies: Policies) -> None:
    policies.check()
    if isinstance(policies.failure, FailurePolicy) and policies.failure.dead_letter_topic:
        parse_topic_name(policies.failure.dead_letter_topic)


# ---------------------------------------------------------------- reading and printing


class Sources(NamedTuple):
    """Where the settings of this process come from; read again on SIGHUP."""

    config: Path | None
    environment: Mapping[str, str]
    flags: list[Given]


def load(sources: Sources) -> Loaded:
    """Read the file, if there is one, and merge all layers."""
    layers: list[list[Given]] = []
    if sources.config is not None:
        try:
            text = sources.config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
            raise InvalidArgument(f"cannot read {sources.config}: {reason}") from problem
        layers.append(from_file(text, str(sources.config)))
    return merge(*layers, from_environment(sources.environment), sources.flags)


def render(loaded: Loaded) -> str:
    """A TOML file that says the same, with where each value came from."""
    parts: list[str] = []
    for section in _SECTIONS:
        lines: list[tuple[str, str]] = []
        for name, value in _section(loaded.values, section).items():
            origin = loaded.origins[f"{section}.{name}"]
            source = origin if origin == DEFAULT else f"from {origin}"
            shown = shown_setting(value, KEYS[f"{section}.{name}"].mark)
            text = f"# {name} is not set" if value is None else f"{name} = {_toml(shown)}"
            lines.append((text, source))
        width = max(len(text) for text, _ in lines)
        parts.append(
            f"[{section}]\n" + "".join(f"{text:<{width}}  # {source}\n" for text, source in lines)
        )
    return "\n".join(parts)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        options = cast("dict[str, object]", value)
        pairs = ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in options.items())
        return f"{{{pairs}}}"
    if isinstance(value, str):
        return json.dumps(str(value), ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else repr(value)
