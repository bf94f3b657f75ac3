"""Exit codes and sentences that need no broker."""

from __future__ import annotations

import subprocess
import sys

import pytest

from danubius.cli import main
from patience import HANG_S

_WITHOUT = """
import sys
sys.modules[{name!r}] = None   # as if it were not installed
from danubius.cli import main
sys.exit(main({arguments!r}))
"""


def run_without(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = _WITHOUT.format(name=name, arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_S
    )


@pytest.mark.parametrize("name", ["click", "rich"])
def test_the_slim_install_says_what_to_install(name: str) -> None:
    done = run_without(name, "topics", "list")
    assert done.returncode == 2
    assert done.stderr == f"danubius: the command line needs {name}: pip install 'danubius[cli]'\n"


def test_the_client_install_says_what_a_broker_needs() -> None:
    done = run_without("uvicorn", "standalone")
    assert done.returncode == 2
    assert "pip install 'danubius[broker]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "standalone" in "".join(capsys.readouterr())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert "0.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "everything"],
        ["bench", "e2e", "--size", "8"],
        ["bench", "e2e", "--count", "0"],
        ["produce", "/default/x", "--count", "5"],
        ["produce", "/default/x", "-m", "x", "--count", "0"],
        ["consume", "/default/x", "-s", "s", "--count", "0"],
        ["consume", "/default/x", "-s", "no/slash"],
        ["topics", "create", "x"],
        ["topics", "create", "/default/x", "--retention-age", "long"],
        ["demo", "--engine", "--count", "1"],
        ["topics", "list", "--url", "nonsense"],
        ["topics", "list", "--url", "http://127.0.0.1:6651"],
        ["topics", "list", "--url", "danube://a..b"],
        ["topics", "list", "--namespace", "no/slash"],
        ["consume", "/default/x", "-s", "s", "--from", str(2**63)],
        ["produce", "/default/x", "-m", "x", "--attribute", "a=\udcff"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Error: " in capsys.readouterr().err


def test_an_error_of_the_system_is_one_line_and_1(capsys: pytest.CaptureFixture[str]) -> None:
    # A file that exists, may be opened, and cannot be read.
    assert main(["produce", "/default/x", "--file", "/proc/self/mem"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("danubius: ")
    assert said.count("\n") == 1
