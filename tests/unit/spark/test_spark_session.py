"""Java found or its absence said; settings that the caller can overrule; errors without PySpark's frames."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from danubius.errors import InvalidArgument, LedgerDamaged
from danubius.spark.cluster import sessions
from danubius.spark.source.tasks import plainly

if TYPE_CHECKING:
    from pathlib import Path


def _java(folder: Path, says: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with no Java but what the test puts there."""
    monkeypatch.setattr(sessions, "ROOTS", ())
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return monkeypatch


def test_no_java_is_said_with_the_remedy(only: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match=r"there is no Java here.*openjdk-17-jre-headless"):
        sessions.use_java()


def test_an_old_java_is_said(only: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _java(tmp_path, 'openjdk version "1.8.0_392"')
    only.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidArgument, match=r"found Java 8 at .*set JAVA_HOME"):
        sessions.use_java()


def test_a_good_java_elsewhere_is_used(only: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _java(tmp_path / "old", 'openjdk version "11.0.2"')
    _java(tmp_path / "jvm" / "new", 'openjdk version "21.0.1" 2023-10-17')
    only.setenv("JAVA_HOME", str(tmp_path / "old"))
    only.setattr(sessions, "ROOTS", (str(tmp_path / "jvm"),))
    sessions.use_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jvm" / "new")


def test_settings_fit_the_master() -> None:
    assert sessions.settings_for("local[3]")["spark.sql.shuffle.partitions"] == "3"
    assert "spark.sql.shuffle.partitions" not in sessions.settings_for("spark://host:7077")
    assert (
        sessions.settings_for("spark://host:7077")["spark.python.unix.domain.socket.enabled"]
        == "true"
    )
    assert sessions.settings_for("local[2]", tuned=False) == {}
    with pytest.raises(InvalidArgument, match="not both"):
        sessions.session(master="local", remote="sc://host")


def test_the_python_of_spark_is_this_one_without_the_zip_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DANUBIUS_SPARK_PYTHON", "")  # set back after the test
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    sessions.use_python(bare=True)
    zips = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-0.10.9.9-src.zip"]
    path = os.pathsep.join([*zips, "/my own", "/a/pyspark.zip.d"])
    told = subprocess.run(
        [
            os.environ["PYSPARK_PYTHON"],
            "-c",
            "import os, sys; print(sys.executable, os.environ['PYTHONPATH'])",
        ],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == f"{sys.executable} /my own:/a/pyspark.zip.d"
    # Executors elsewhere do not have that file; and what somebody chose is left alone.
    sessions.use_python(bare=False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    sessions.use_python(bare=True)
    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3"


def test_an_error_keeps_what_it_knows_and_loses_its_frames() -> None:
    @plainly
    def deep() -> None:
        def deeper() -> None:
            raise LedgerDamaged("damaged", 3, 9)

        deeper()

    with pytest.raises(LedgerDamaged) as caught:
        deep()
    assert (caught.value.first, caught.value.end) == (3, 9)
    assert "deeper" not in [entry.name for entry in caught.traceback]


def test_importing_the_package_needs_no_pyspark() -> None:
    code = "import sys, danubius, danubius.spark; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
