"""Settings of a real broker process: from a file, printed, and changed while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from typing import TYPE_CHECKING

import pytest

import danubius
from e2e.broker_process import environment, run_command

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker


def reload(broker: BrokerProcess, said: str) -> str:
    """Send SIGHUP and wait for the line that answers it."""
    seen = broker.log().count(said)
    os.kill(broker.pid, signal.SIGHUP)
    limit = time.monotonic() + 60
    while broker.log().count(said) == seen:
        assert time.monotonic() < limit, broker.log_tail()
        time.sleep(0.01)
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
        assert "changed=broker.message_bytes_max, logs.level " in line
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
            assert process.wait(60) == 0
            assert all(line.startswith("{") for line in process.stderr)
        finally:
            process.kill()


def test_print_config_says_where_each_value_came_from(tmp_path: Path) -> None:
    config = tmp_path / "d.toml"
    config.write_text("[policies]\npublish_messages_per_s = 1000\n")
    done = subprocess.run(
        [sys.executable, "-m", "danubius", "standalone", "--config", str(config), "--port", "7",
         "--set", "policies.ttl_ms=1h", "--print-config"],
        capture_output=True, text=True, check=False, timeout=90,
        env=environment() | {"DANUBIUS_LOGS_LEVEL": "error"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    given = {" ".join(line.split()) for line in done.stdout.splitlines() if "# from" in line}
    assert given == {
        f"publish_messages_per_s = 1000 # from {config}:2",
        "ttl_ms = 3600000 # from --set policies.ttl_ms",
        "port = 7 # from --port",
        'level = "error" # from DANUBIUS_LOGS_LEVEL',
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
