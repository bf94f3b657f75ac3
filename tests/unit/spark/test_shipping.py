"""What is sent to executors is the whole package, and runs from where it arrives."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pytest

from danubius.spark.cluster import sessions, shipping


def test_the_archive_has_everything_and_runs_without_the_installed_package() -> None:
    made = shipping.archive()
    assert made is not None
    assert shipping.archive() == made
    names = zipfile.ZipFile(made).namelist()
    assert {"danubius/spark/data_source.pyc", "pyspark_danube/__init__.pyc"} <= set(names)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import danubius, danubius.spark.sink.writer, pyspark_danube;"
        "print(danubius.__file__, danubius.spark.sink.writer.__file__, pyspark_danube.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(made)],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        check=True,
    )
    assert [path.startswith(f"{made}/") for path in done.stdout.split()] == [True, True, True]


def test_children_of_the_driver_find_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    shipping.prepare()
    shipping.prepare()
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(shipping.archive()), "before"])


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "spark://localhost:7077"])
def test_a_cluster_on_this_machine_finds_the_driver_on_the_loopback(master: str) -> None:
    assert sessions.settings_for(master)["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in sessions.settings_for("spark://10.0.0.1:7077")
    assert "spark.driver.host" not in sessions.settings_for("yarn")
