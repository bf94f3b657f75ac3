"""Settings from a file, the environment and flags: who wins, what is refused, and what is said about it."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from danubius.app.quantities import BYTES, COUNT, MILLISECONDS, parse_quantity
from danubius.app.settings import (
    KEYS,
    LIVE,
    Given,
    Sources,
    as_text,
    from_environment,
    from_file,
    load,
    merge,
    render,
)
from danubius.errors import InvalidArgument
from danubius.model.policy import Exhausted, Policies

if TYPE_CHECKING:
    from pathlib import Path


def refused(text: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        merge(from_file(text, "d.toml"))
    return caught.value.message


def test_without_anything_the_defaults_hold() -> None:
    loaded = merge()
    assert loaded.settings.server.port == 6651
    assert loaded.settings.broker.policies == Policies()
    assert set(loaded.origins.values()) == {"default"}


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    file = from_file("[server]\nport = 1\nhttp_port = 2\nhost = 'h'\n", "d.toml")
    variables = from_environment({"DANUBIUS_SERVER_PORT": "3", "DANUBIUS_SERVER_HTTP_PORT": "4"})
    loaded = merge(file, variables, [Given("server.port", 5, "--port")])
    server = loaded.settings.server
    assert (server.port, server.http_port, server.host) == (5, 4, "h")
    assert loaded.origins["server.port"] == "--port"
    assert loaded.origins["server.http_port"] == "DANUBIUS_SERVER_HTTP_PORT"
    assert loaded.origins["server.host"] == "d.toml:4"


def test_policies_are_a_layer_of_what_was_given() -> None:
    loaded = merge(
        from_file(
            "[policies]\nttl_ms = '2m'\nretention_age_ms = -1\n"
            "[policies.failure]\nthen = 'drop'\nredeliveries_max = 3\n",
            "d.toml",
        )
    )
    policies = loaded.settings.broker.policies
    assert (policies.ttl_ms, policies.retention_age_ms) == (120_000, -1)
    assert policies.failure
    assert (policies.failure.then, policies.failure.redeliveries_max) == (Exhausted.DROP, 3)
    assert policies.quota_bytes is Policies().quota_bytes


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.path)
def test_every_setting_can_be_given_in_every_way(key: object) -> None:
    assert isinstance(key, type(KEYS["server.port"]))
    value = 7 if key.default is None else key.default
    if value == "":
        value = "danube.example" if key.path == "server.allowed_hosts" else "/default/dead"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, dict):
        value, text = {"endpoint": "http://h", "region": "r"}, "endpoint=http://h,region=r"
    by_variable = merge(from_environment({key.variable: text}))
    by_flag = merge([Given(key.path, text, "--set")])
    assert by_variable.values[key.path] == by_flag.values[key.path] == value
    assert by_variable.origins[key.path] == key.variable
    again = merge(from_file(render(by_flag), "d.toml"))
    assert again.values[key.path] == value


def test_secrets_among_the_options_of_a_store_are_used_and_not_shown() -> None:
    file = "[tier.options]\nregion = 'r'\nsecret_access_key = 'hidden'\naccess_key_id = 'hidden'\n"
    loaded = merge(from_file(file, "d.toml"))
    assert loaded.settings.tier.options["secret_access_key"] == "hidden"
    assert "hidden" not in render(loaded)
    assert '"region" = "r"' in render(loaded)
    assert as_text(KEYS["tier.options"], loaded.values["tier.options"]) == (
        "region=r,secret_access_key=***,access_key_id=***"
    )
    with pytest.raises(InvalidArgument, match=r"tier\.options is .*table of texts") as refused:
        merge([Given("tier.options", {"token": 5, "secret": "hidden"}, "--set")])
    assert "hidden" not in refused.value.message


def test_what_is_printed_is_a_file_that_says_the_same() -> None:
    loaded = merge(from_file("[policies]\nquota_bytes = '5GiB'\n[logs]\nlevel='debug'\n", "d.toml"))
    text = render(loaded)
    tomllib.loads(text)
    assert merge(from_file(text, "printed.toml")).values == loaded.values
    assert "quota_bytes = 5368709120        # from d.toml:2\n" in text
    assert 'level = "debug"  # from d.toml:4\nformat = "text"  # default\n' in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = 1", "d.toml:1: there is no setting port; did you mean server.port?"),
        ("[broker]\nconections_max = 1", ("d.toml:2: there is no setting broker.conections_max; "
         "did you mean broker.connections_max?")),
        ("[zebra]\nstripes = 1", "there is no setting zebra.stripes; sections are server, broker"),
        ("broker = 1", "broker is a section: its settings stand below a line [broker]"),
        ("[server]\nport = 65536", "d.toml:2: server.port is 65536; it must be a whole number from 0 to 65535"),
        ("[server]\nport = true", "server.port is True; it must be a whole number"),
        ("[server]\nhost = ''", "server.host is ''; it must be text that is not empty"),
        ("[server]\nhost = ['a']", "server.host is ['a']; it must be text"),
        ("[broker]\nkeepalive_ms = 'soon'", ("broker.keepalive_ms is 'soon'; it must be a whole number of at "
         "least 1 in milliseconds, or a time such as \"10s\"")),
        ("[ledgers]\nblock_bytes = '1KiB'", "from 4096 to 16777216, or a size such as \"64MiB\""),
        ("[policies]\nttl_ms = -1", "d.toml:2: policies.ttl_ms is -1; it must be 0 to"),
        ("[policies]\nauto_create = 'maybe'", "policies.auto_create is 'maybe'; it must be true or false"),
        ("[policies]\nquota_action = 'x'", "it must be one of refuse, drop-oldest"),
        ("[policies]\nmessage_bytes_max = 1", "is set for the whole broker as broker.message_bytes_max"),
        ("[policies.failure]\njitter = 2", "d.toml:2: [policies] failure.jitter is 2.0; it must be 0 to 1"),
        ("[policies.failure]\ndead_letter_topic = 'x'", "[policies] "),
        ("[ledgers]\nflush_bytes = '1GiB'", "must not fall in this order"),
        ("[journal]\nfile_bytes = 100_001", "it must be a multiple of"),
        ("[logs]\nlevel = 'loud'", "it must be one of debug, error, info, warning"),
        ("[server", "d.toml is not TOML: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_would_be_right(text: str, words: str) -> None:
    assert words in refused(text)


def test_all_problems_are_named_at_once() -> None:
    said = refused("[server]\nport = 'x'\nhots = 'y'\n")
    assert [line.split(":")[1] for line in said.splitlines()] == ["2", "3"]


def test_a_variable_of_a_section_must_be_known_others_are_not_ours() -> None:
    assert from_environment({"DANUBIUS_URL": "x", "DANUBIUS_CONFIG": "y", "PATH": "z"}) == []
    with pytest.raises(InvalidArgument, match="did you mean DANUBIUS_BROKER_KEEPALIVE_MS"):
        merge(from_environment({"DANUBIUS_BROKER_KEEPALIVE": "1"}))


def test_bounds_below_a_small_cache_follow_it_unless_they_are_given() -> None:
    loaded = merge(from_file("[ledgers]\ncache_bytes = '8MiB'\n", "d.toml"))
    assert loaded.settings.ledgers.dirty_bytes_max == 4 << 20
    loaded = merge(from_file("[ledgers]\ncache_bytes='8MiB'\ndirty_bytes_max='6MiB'\n", "d.toml"))
    assert loaded.settings.ledgers.dirty_bytes_max == 6 << 20


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"nowhere\.toml: No such file"):
        load(Sources(tmp_path / "nowhere.toml", {}, []))
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        load(Sources(tmp_path / "latin.toml", {}, []))


def test_what_is_live_exists() -> None:
    assert set(KEYS) >= LIVE
    assert "server.port" not in LIVE


def test_quantities() -> None:
    assert parse_quantity("64MiB", BYTES) == parse_quantity("64M", BYTES) == 64 << 20
    assert parse_quantity("1.5KB", BYTES) == 1500
    assert parse_quantity("7d", MILLISECONDS) == 7 * 86_400_000
    assert parse_quantity("-1", MILLISECONDS) == -1
    assert parse_quantity("1_000", COUNT) == 1000
    for text in ("", "x", "1 parsec", "1.0001", "9" * 40, "1e9"):
        assert parse_quantity(text, COUNT) is None


DISKLESS = "[diskless]\nenabled = true\n"


def test_a_broker_without_a_disk_needs_a_store_and_nothing_local() -> None:
    store = '[tier]\nurl = "fs:///cold"\n'
    settings = merge(from_file(f"{DISKLESS}group_ms = '250ms'\n{store}", "d.toml")).settings
    assert settings.diskless.enabled
    assert settings.options().diskless.group_ms == 250
    assert "give --tier-url" in refused(DISKLESS)
    ledgers = '[ledger_store]\nkind = "object"\nurl = "fs:///ledgers"\n'
    assert "leave out --ledger-store" in refused(DISKLESS + store + ledgers)
    assert "--tier-local-bytes-max" in refused(DISKLESS + store + "local_bytes_max = '1GiB'\n")
    assert "give --diskless too" in refused("[diskless]\ngroup_ms = 20\n")
