"""What processes below a run write to the standard error is in a file; what the run itself says is on the terminal."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from pyspark.logger import PySparkLogger

from danubius.pipeline.run import STDERR, errors_to
from danubius.spark.cluster.sessions import CONTEXT_LOGGERS, send_traces

if TYPE_CHECKING:
    from pathlib import Path

TRACE = ["/bin/sh", "-c", "echo a stack trace >&2"]


def test_a_process_that_is_started_meanwhile_writes_to_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "spark.log"
    log.write_text("of an earlier run")
    with errors_to(log):
        subprocess.run(TRACE, check=True)
    os.write(STDERR, b"a sentence\n")
    assert log.read_text() == "a stack trace\n"
    assert capfd.readouterr().err == "a sentence\n"


def test_a_start_that_fails_says_where_to_look(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "spark.log"
    with pytest.raises(OSError, match="no Java") as caught, errors_to(log):
        raise OSError("no Java")
    assert caught.value.__notes__ == [f"what Java said is in {log}"]
    os.write(STDERR, b"a sentence\n")
    assert capfd.readouterr().err == "a sentence\n"


@pytest.mark.parametrize("is_kept", [True, False])
def test_traces_of_failed_queries_are_not_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_kept: bool
) -> None:
    log = tmp_path / "spark.log"
    send_traces(log if is_kept else None)
    try:
        int("no number")
    except ValueError:
        for name in CONTEXT_LOGGERS:
            PySparkLogger.getLogger(name).exception("it failed", errorClass="DIVIDE_BY_ZERO")
    assert capfd.readouterr().err == ""
    assert (log.exists() and log.read_text().count("ValueError") == 2) is is_kept
    send_traces(None)


def test_without_a_file_nothing_is_redirected(capfd: pytest.CaptureFixture[str]) -> None:
    with errors_to(None):
        subprocess.run(TRACE, check=True)
    assert capfd.readouterr().err == "a stack trace\n"
