"""The command line as people and scripts use it: output, --json, exit codes."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from e2e.broker_process import BrokerProcess, environment, run_command
from patience import HANG_S

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.broker_process import Exit


def lines(done: Exit) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def consume(broker: BrokerProcess, topic: str, count: int, *extra: str) -> list[dict[str, Any]]:
    done = run_command(
        "consume", topic, "-s", "cli", "--from", "earliest", "--count", str(count), "--json",
        "--url", broker.url, *extra,
    )  # fmt: skip
    assert done.code == 0, done
    return lines(done)


def assert_one_clear_line(done: Exit, *words: str) -> None:
    said = done.stderr.strip().splitlines()
    assert len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in said[0]


def test_produce_and_consume(broker: BrokerProcess, topic: str) -> None:
    done = run_command(
        "produce",
        topic,
        "-m",
        "one",
        "-m",
        "two",
        "--key",
        "k",
        "--attribute",
        "a=b",
        "--url",
        broker.url,
    )
    assert done.code == 0, done
    received = consume(broker, topic, 2)
    assert [line["payload"] for line in received] == ["one", "two"]
    assert [line["offset"] for line in received] == [0, 1]
    assert [line["key"] for line in received] == ["k", "k"]
    assert [line["attributes"] for line in received] == [{"a": "b"}] * 2
    assert {line["topic"] for line in received} == {topic}


def test_consumed_messages_are_acknowledged(broker: BrokerProcess, topic: str) -> None:
    run_command("produce", topic, "-m", "one", "-m", "two", "-m", "three", "--url", broker.url)
    assert [line["payload"] for line in consume(broker, topic, 2)] == ["one", "two"]
    assert [line["payload"] for line in consume(broker, topic, 1)] == ["three"]


def test_reading_a_topic_leaves_nothing_behind(broker: BrokerProcess, topic: str) -> None:
    run_command(
        "produce", topic, "-m", "one", "-m", "\x1b[2Jtwo", "-m", "three", "--url", broker.url
    )
    done = run_command("topics", "read", topic, "--url", broker.url)
    assert (done.code, done.stdout) == (0, "one\n\x1b[2Jtwo\nthree\n")
    done = run_command(
        "topics", "read", topic, "--from", "1", "--count", "1", "--json", "--url", broker.url
    )
    assert [line["payload"] for line in lines(done)] == ["\x1b[2Jtwo"]
    assert "\x1b" not in done.stdout
    done = run_command("subscriptions", "list", topic, "--json", "--url", broker.url)
    assert (done.code, done.stdout) == (0, "")


def test_a_script_that_deletes_says_yes(broker: BrokerProcess, topic: str) -> None:
    run_command("produce", topic, "-m", "one", "--url", broker.url)
    done = run_command("topics", "delete", topic, "--url", broker.url)
    assert (done.code, "--yes" in done.stderr) == (2, True)
    assert run_command("topics", "describe", topic, "--url", broker.url).code == 0


def test_produce_lines_of_stdin(broker: BrokerProcess, topic: str) -> None:
    done = run_command("produce", topic, "--url", broker.url, stdin="a\nb b\nc ü\n")
    assert done.code == 0, done
    assert [line["payload"] for line in consume(broker, topic, 3)] == ["a", "b b", "c ü"]


def test_ctrl_c_stops_a_produce_that_waits_for_stdin(broker: BrokerProcess, topic: str) -> None:
    run_command("topics", "create", topic, "--url", broker.url)
    with subprocess.Popen(
        [sys.executable, "-m", "danubius", "produce", topic, "--url", broker.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as command:
        assert command.stdin is not None
        assert command.stderr is not None
        command.stdin.write(b"a line\n")
        command.stdin.flush()
        assert [line["payload"] for line in consume(broker, topic, 1)] == ["a line"]
        command.send_signal(signal.SIGINT)
        try:
            assert command.wait(timeout=HANG_S) == 1  # stdin is still open
        finally:
            command.kill()
        assert command.stderr.read().strip() == b"danubius: stopped"


def test_messages_and_keys_may_be_any_bytes(broker: BrokerProcess, topic: str) -> None:
    done = run_command(
        "produce", topic, "-m", "\udcff", "--key", "\udcfe", "--url", broker.url
    )  # fmt: skip
    assert done.code == 0, done
    [line] = consume(broker, topic, 1)
    assert line["payload_base64"] == base64.b64encode(b"\xff").decode()
    assert line["key_base64"] == base64.b64encode(b"\xfe").decode()


def test_produce_file_and_count(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "messages.txt"
    path.write_text("the whole file\nis one message\n")
    done = run_command("produce", topic, "--file", str(path), "--url", broker.url)
    assert done.code == 0, done
    done = run_command("produce", topic, "-m", "z", "--count", "3", "--json", "--url", broker.url)
    assert done.code == 0, done
    [said] = lines(done)
    assert (said["topic"], said["count"]) == (topic, 3)
    assert (said["first_offset"], said["last_offset"]) == (1, 3)
    received = [line["payload"] for line in consume(broker, topic, 4)]
    assert received == ["the whole file\nis one message\n", "z", "z", "z"]


def test_consume_for_people(broker: BrokerProcess, topic: str) -> None:
    run_command("produce", topic, "-m", "hello you", "--url", broker.url)
    done = run_command(
        "consume", topic, "-s", "s", "--from", "earliest", "--count", "1", "--url", broker.url
    )
    assert done.code == 0, done
    assert "hello you" in done.stdout


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key-shared"])
def test_consume_types(broker: BrokerProcess, topic: str, kind: str) -> None:
    run_command("produce", topic, "-m", "x", "--key", "k", "--url", broker.url)
    assert len(consume(broker, topic, 1, "--type", kind)) == 1


def test_consume_from_offset_and_time(broker: BrokerProcess, topic: str) -> None:
    run_command("produce", topic, "-m", "a", "-m", "b", "-m", "c", "--url", broker.url)
    done = run_command(
        "consume", topic, "-s", "s1", "--from", "2", "--count", "1", "--json", "--url", broker.url
    )
    assert [line["payload"] for line in lines(done)] == ["c"]
    done = run_command(
        "consume", topic, "-s", "s2", "--from", "2001-01-01T00:00:00Z", "--count", "3", "--json",
        "--url", broker.url,
    )  # fmt: skip
    assert [line["payload"] for line in lines(done)] == ["a", "b", "c"]


def test_topics(broker: BrokerProcess, topic: str) -> None:
    done = run_command("topics", "create", topic, "--url", broker.url)
    assert done.code == 0, done
    done = run_command("topics", "list", "--url", broker.url)
    assert done.code == 0, done
    assert topic in done.stdout
    done = run_command("topics", "list", "--json", "--url", broker.url)
    assert topic in [line["topic"] for line in lines(done)]
    done = run_command("topics", "describe", topic, "--json", "--url", broker.url)
    assert done.code == 0, done
    assert topic in done.stdout
    assert json.loads(done.stdout)
    done = run_command("topics", "describe", topic, "--url", broker.url)
    assert done.code == 0, done
    done = run_command("topics", "delete", topic, "--yes", "--url", broker.url)
    assert done.code == 0, done
    done = run_command("topics", "describe", topic, "--url", broker.url)
    assert done.code == 1
    assert_one_clear_line(done, topic)


def test_non_reliable_topic(broker: BrokerProcess, topic: str) -> None:
    done = run_command("produce", topic, "-m", "x", "--non-reliable", "--url", broker.url)
    assert done.code == 0, done
    done = run_command("topics", "describe", topic, "--json", "--url", broker.url)
    assert "non-reliable" in done.stdout


def test_url_comes_from_the_environment(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from e2e import broker_process

    child = broker_process.environment() | {"DANUBIUS_URL": broker.url}
    monkeypatch.setattr(broker_process, "environment", lambda: child)
    assert run_command("topics", "create", topic).code == 0
    assert topic in run_command("topics", "list").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["produce"],
        ["consume", "/default/x"],
        ["consume", "/default/x", "-s", "s", "--type", "sometimes"],
        ["consume", "/default/x", "-s", "s", "--from", "whenever"],
        ["produce", "/default/x", "-m", "x", "--attribute", "novalue"],
        ["produce", "/default/x", "-m", "x", "--no-such-option"],
        ["topics", "explode"],
        ["no-such-command"],
        ["standalone", "--port", "not-a-number"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    done = run_command(*arguments)
    assert done.code == 2, done
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["produce", "/default/x", "-m", "x"],
        ["consume", "/default/x", "-s", "s", "--count", "1"],
        ["topics", "list"],
    ],
    ids=" ".join,
)
def test_no_broker_exits_with_1_and_one_line(arguments: list[str]) -> None:
    done = run_command(*arguments, "--url", "danube://127.0.0.1:1")
    assert done.code == 1, done
    assert_one_clear_line(done, "127.0.0.1:1")


def test_bad_topic_name_exits_with_a_clear_line(broker: BrokerProcess) -> None:
    done = run_command("produce", "no-slash", "-m", "x", "--url", broker.url)
    assert done.code in {1, 2}, done
    assert "Traceback" not in done.stderr
    assert "/namespace/topic" in done.stderr or "/default/orders" in done.stderr


def test_bad_url_exits_with_a_clear_line() -> None:
    done = run_command("topics", "list", "--url", "http://127.0.0.1:1")
    assert done.code in {1, 2}, done
    assert "Traceback" not in done.stderr
    assert "danube://" in done.stderr


def test_help_of_everything() -> None:
    done = run_command("--help")
    assert done.code == 0
    for command in ("standalone", "produce", "consume", "topics", "bench"):
        assert command in done.stdout
        assert run_command(command, "--help").code == 0


def test_standalone_picks_free_ports_and_stops_cleanly(data_dir: Path) -> None:
    broker = BrokerProcess(data_dir)
    broker.port = broker.http_port = 0
    try:
        broker.start()
        assert broker.port > 0
        assert broker.http_port > 0
        assert run_command("topics", "create", "/default/x", "--url", broker.url).code == 0
        assert broker.stop() == 0
    finally:
        broker.kill()


def test_standalone_says_when_its_port_is_taken(data_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_command(
            "standalone", "--data-dir", str(data_dir), "--port", str(port), "--http-port", "0"
        )
    assert done.code == 1, done
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr
