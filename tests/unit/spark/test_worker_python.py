"""The script that stands in for Python in Spark's processes: what it runs, and with which path."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from danubius.spark.cluster.sessions import BARE_PYTHON
from patience import HANG_S

if TYPE_CHECKING:
    from pathlib import Path


def run(*words: str, path: str = "", python: str = "/bin/echo") -> str:
    environment = {**os.environ, "PYTHONPATH": path, "DANUBIUS_SPARK_PYTHON": python}
    done = subprocess.run(
        [str(BARE_PYTHON), *words],
        check=True,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env=environment,
    )
    return done.stdout.strip()


def bare_interpreter(folder: Path) -> str:
    """One to which this package comes later, if at all."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_a_daemon_of_spark_becomes_ours_also_where_this_package_is_not_installed(
    tmp_path: Path,
) -> None:
    packages = tmp_path / "packages" / "pyspark"
    packages.mkdir(parents=True)
    (packages / "__init__.py").touch()
    (packages / "daemon.py").write_text(
        "import sys\n"
        "def worker(sock, authenticated): ...\n"
        "def manager(): print(worker.__code__.co_filename, *sys.argv[1:])\n"
    )
    said = run(
        *("-m", "pyspark.daemon", "pyspark.worker"),
        path=str(packages.parent),
        python=bare_interpreter(tmp_path),
    )
    assert said == f"{BARE_PYTHON.with_name('daemon.py')} pyspark.worker"


@pytest.mark.parametrize(
    "words", [["-m", "pyspark.worker", "a b"], ["-c", "pyspark.daemon"], ["-m"], []]
)
def test_nothing_else_that_is_run_changes(words: list[str]) -> None:
    assert run(*words) == " ".join(words)


def test_zip_files_of_spark_leave_the_path() -> None:
    lib = "/spark/python/lib"
    path = f"/a:{lib}/pyspark.zip:{lib}/py4j-0.10-src.zip:/b c"
    code = "import os; print(os.environ['PYTHONPATH'])"
    assert run("-c", code, path=path, python=sys.executable) == "/a:/b c"
