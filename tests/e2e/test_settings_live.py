"""Settings of a real broker process: from a file, printed, and changed while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

import danubius
import danubius.blocking
from e2e.broker_process import environment, run_command
from e2e.cli_calls import call, run, run_json
from e2e.rest_client import Rest
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


def reload(broker: BrokerProcess, said: str) -> str:
    """Send SIGHUP and wait for the line that answers it."""
    seen = broker.log().count(said)
    os.kill(broker.pid, signal.SIGHUP)
    limit = time.monotonic() + HANG_S
    while broker.log().count(said) == seen:
        assert time.monotonic() < limit, broker.log_tail()
        time.sleep(LOOK_S)
    return next(line for line in reversed(broker.log().splitlines()) if said in line)


async def test_sighup_changes_what_may_change_and_names_the_rest(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    config = tmp_path / "danubius.toml"
    config.write_text("[broker]\nmessage_bytes_max = 1000\n")
    broker = start_broker("--config", str(config))
    async with danubius.connect(broker.url) as client:
        async with client.producer(topic) as producer:
            with pytest.raises(danubius.MessageTooLarge):
                await producer.send(bytes(2000))
        config.write_text(
            "[broker]\nmessage_bytes_max = 5000\nring_bytes_max = '1MiB'\n[logs]\nlevel = 'debug'\n"
        )
        line = reload(broker, "settings reloaded")
        assert 'changed="broker.message_bytes_max, logs.level" ' in line
        assert "needs_restart=broker.ring_bytes_max" in line
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send(bytes(2000))


async def test_a_mistake_in_the_file_changes_nothing(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    config = tmp_path / "danubius.toml"
    config.write_text("")
    broker = start_broker("--config", str(config))
    config.write_text("[broker]\nmessage_bytes_max = 10\nconnections = 1\n")
    line = reload(broker, "settings not reloaded")
    assert "danubius.toml:3: there is no setting broker.connections" in line
    config.unlink()
    assert "No such file" in reload(broker, "settings not reloaded")
    async with danubius.connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send(bytes(2000))


async def test_a_policy_of_the_broker_reaches_its_topics_live(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    config = tmp_path / "danubius.toml"
    config.write_text("")
    broker = start_broker("--config", str(config))
    async with danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        config.write_text("[policies]\nttl_ms = '1h'\n")
        assert "changed=policies.ttl_ms " in reload(broker, "settings reloaded")
    assert "needs_restart=nothing" in broker.log()


def test_without_a_file_sighup_ends_the_broker_cleanly(start_broker: StartBroker) -> None:
    broker = start_broker()
    os.kill(broker.pid, signal.SIGHUP)
    assert broker.wait_exit() == 0
    assert "stopped" in broker.log()


def test_broker_takes_everything_from_its_file(tmp_path: Path) -> None:
    config = tmp_path / "danubius.toml"
    config.write_text(
        f"[server]\ndata_dir = '{tmp_path}/data'\nport = 0\nhttp_port = 0\n[logs]\nformat = 'json'\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "danubius", "broker", "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline().endswith(f"data {tmp_path}/data\n")
            process.terminate()
            assert process.wait(HANG_S) == 0
            assert all(line.startswith("{") for line in process.stderr)
        finally:
            process.kill()


def test_print_config_says_where_each_value_came_from(tmp_path: Path) -> None:
    config = tmp_path / "d.toml"
    config.write_text("[policies]\npublish_messages_per_s = 1000\n")
    done = subprocess.run(
        [sys.executable, "-m", "danubius", "standalone", "--config", str(config), "--port", "7",
         "--set", "policies.ttl_ms=1h", "--print-config"],
        capture_output=True, text=True, check=False, timeout=HANG_S,
        env=environment() | {"DANUBIUS_LOGS_LEVEL": "error"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    given = {" ".join(line.split()) for line in done.stdout.splitlines() if "# from" in line}
    assert given == {
        f"publish_messages_per_s = 1000 # from {config}:2",
        "ttl_ms = 3600000 # from --set policies.ttl_ms",
        "port = 7 # from --port",
        'level = "error" # from DANUBIUS_LOGS_LEVEL',
        "grpc = false # from DANUBIUS_SERVER_GRPC",
    }
    assert tomllib.loads(done.stdout)["server"]["host"] == "127.0.0.1"


def test_wrong_settings_are_wrong_usage(tmp_path: Path) -> None:
    config = tmp_path / "d.toml"
    config.write_text("[server]\nprot = 1\n")
    done = run_command("broker", "--config", str(config))
    assert done.code == 2
    assert f"Error: {config}:2: there is no setting server.prot; did you mean" in done.stderr
    done = run_command("standalone", "--set", "journal.files_max=1")
    assert done.code == 2
    assert "--set journal.files_max: journal.files_max is '1'; it must be" in done.stderr
    assert run_command("broker").code == 2


# ---------------------------------------------------------------- by request

SETTINGS = "/api/v1/broker/settings"


def by_path(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {line["path"]: line for line in answer["settings"]}


def shown(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["value"], line["default"], line["origin"], line["is_live"]


async def test_settings_are_shown_and_changed_over_rest(
    start_broker: StartBroker, tmp_path: Path, topic: str
) -> None:
    config = tmp_path / "danubius.toml"
    config.write_text("[policies]\nttl_ms = '1h'\n")
    broker = start_broker("--config", str(config), "--set", "logs.level=warning")
    async with Rest(broker) as rest, danubius.connect(broker.url) as client:
        await client.create_topic(topic)
        found = by_path(await rest.get(SETTINGS))
        assert shown(found["policies.ttl_ms"]) == (3_600_000, 0, f"{config}:2", True)
        assert shown(found["logs.level"]) == ("warning", "info", "--set logs.level", True)
        assert shown(found["server.port"])[1:] == (6651, "--port", False)
        assert found["server.http_port"]["text"]
        assert shown(found["policies.failure.redeliveries_max"]) == (None, None, "default", True)
        wanted = {"policies.ttl_ms": "5m", "policies.failure.redeliveries_max": 3}
        changed = by_path(await rest.patch(SETTINGS, {"settings": wanted}))
        assert shown(changed["policies.ttl_ms"]) == (300_000, 0, "request", True)
        assert changed == by_path(await rest.get(SETTINGS))
        described = await client.admin.describe_topic(topic)
        assert described.effective.ttl_ms == 300_000
        assert described.effective.failure.redeliveries_max == 3
        back = await rest.patch(SETTINGS, {"settings": {"policies.ttl_ms": None}})
        assert shown(by_path(back)["policies.ttl_ms"]) == (3_600_000, 0, f"{config}:2", True)
        assert (await client.admin.describe_topic(topic)).effective.ttl_ms == 3_600_000


async def test_what_cannot_be_changed_is_refused_with_all_that_is_wrong(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    async with Rest(broker) as rest:
        before = await rest.get(SETTINGS)
        wanted = {"server.port": 1, "policies.tll_ms": 5, "policies.producers_max": 7}
        detail = (await rest.patch(SETTINGS, {"settings": wanted}, 400))["detail"]
        assert "server.port is read once, at the start" in detail
        assert "there is no setting policies.tll_ms; did you mean policies.ttl_ms?" in detail
        for value in ("many", -1, True, 2**63, 0.5):
            refused = await rest.patch(SETTINGS, {"settings": {"policies.ttl_ms": value}}, 400)
            assert "policies.ttl_ms is " in refused["detail"], value
        wrong = {"policies.failure.delay_ms": "2m"}  # more than the most
        assert "delay_max_ms" in (await rest.patch(SETTINGS, {"settings": wrong}, 400))["detail"]
        await rest.patch(SETTINGS, {"settings": {}}, 400)
        await rest.patch(SETTINGS, {"settings": {"x" * 300: 1}}, 400)
        await rest.patch(SETTINGS, {"settings": {"policies.ttl_ms": [1]}}, 400)
        assert await rest.get(SETTINGS) == before


async def test_what_a_request_has_set_stays_when_the_file_is_read_again(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    config = tmp_path / "danubius.toml"
    config.write_text("[policies]\nttl_ms = '1h'\n")
    broker = start_broker("--config", str(config))
    async with danubius.connect(broker.url) as client:
        await client.admin.update_settings({"policies.ttl_ms": "1m", "broker.connections_max": 77})
        config.write_text("[policies]\nttl_ms = '2h'\nproducers_max = 9\n[server]\nport = 1\n")
        line = await asyncio.to_thread(reload, broker, "settings reloaded")
        assert "changed=policies.producers_max " in line
        assert "needs_restart=nothing" in line  # a flag says which port
        values = {one.path: one.value for one in await client.admin.describe_settings()}
        assert (values["policies.ttl_ms"], values["policies.producers_max"]) == (60_000, 9)
        assert values["broker.connections_max"] == 77
        await client.admin.update_settings({"policies.ttl_ms": None})
        values = {one.path: one.value for one in await client.admin.describe_settings()}
        assert values["policies.ttl_ms"] == 7_200_000
    broker.stop()
    broker.start()
    with danubius.blocking.connect(broker.url) as again:
        values = {one.path: one.value for one in again.admin.describe_settings()}
        assert values["broker.connections_max"] != 77
        again.admin.update_settings({"policies.producers_max": 8})


def test_settings_on_the_command_line(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "broker.connections_max=500")
    assert "broker.connections_max" in run(broker, "brokers", "settings")
    done = run_json(
        broker, "brokers", "update", "--set", "policies.ttl_ms=1h", "--set", "logs.level=debug"
    )
    assert {line["path"]: line["value"] for line in done} == {
        "policies.ttl_ms": 3_600_000,
        "logs.level": "debug",
    }
    changed = run_json(broker, "brokers", "settings", "--changed", "--live")
    assert [(one["path"], one["origin"]) for one in changed] == [
        ("broker.connections_max", "--set broker.connections_max"),
        ("policies.ttl_ms", "request"),
        ("logs.level", "request"),
    ]
    assert run(broker, "brokers", "update", "--reset", "policies.ttl_ms").split()[-1] == "yes"
    [line] = [
        one for one in run_json(broker, "brokers", "settings") if one["path"] == "policies.ttl_ms"
    ]
    assert (line["value"], line["origin"]) == (0, "default")
    refused = call(broker, "brokers", "update", "--set", "server.port=7")
    assert refused.code == 1
    assert "server.port is read once" in refused.stderr
    assert call(broker, "brokers", "update").code == 2
