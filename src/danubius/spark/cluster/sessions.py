"""A Spark session with the settings that measurements chose, and Java found or its absence said.

    spark = danubius.spark.session("orders", master="local[4]", config={"spark.sql.shuffle.partitions": "8"})

Whatever the caller sets wins over what is chosen here. docs/spark.md says what each setting gains.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from danubius.errors import InvalidArgument
from danubius.spark.cluster.shipping import prepare, ship
from danubius.spark.worker import SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
REMEDY: Final = (
    f"Spark needs Java {JAVA_MIN} or newer: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless;"
    " macOS: brew install openjdk@17) or set JAVA_HOME to where it is"
)
ROOTS: Final = ("/usr/lib/jvm", "/opt", "/Library/Java/JavaVirtualMachines")
"""Where systems put Java beside the path."""
BARE_PYTHON: Final = Path(__file__).with_name("worker_python.sh")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

UNCHECKED: Final[Mapping[str, str]] = {
    # Arrow in Java looks at bounds and nulls once more for every value it is asked for. Spark asks for nulls itself,
    # and the arrays it gets from Python were checked there, so Iceberg's reader for Spark switches this off too.
    "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS": "true",
    "ARROW_ENABLE_NULL_CHECK_FOR_GET": "false",
}
"""In the environment of Spark's JVMs."""
TUNED: Final[Mapping[str, str]] = {
    **{f"spark.executorEnv.{name}": value for name, value in UNCHECKED.items()},
    # Tasks talk to their Python worker through a Unix socket: 1.5 times the rows of TCP, and no stalls.
    "spark.python.unix.domain.socket.enabled": "true",
    # Two renames less for each micro-batch than the default, at the same guarantees on a local or POSIX file system.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # What Python says is for people; the frames between are Spark's own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
LOCAL: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # PySpark from the installed package, compiled, instead of from a zip that every first task compiles. The same as
    # `BARE_PYTHON`, which does it for all processes, where that cannot be run.
    "spark.python.daemon.module": "danubius.spark.cluster.daemon",
    # Driver and executor are one process: one that is not heard of for two minutes is on a machine that slept.
    "spark.network.timeout": "30m",
    # Whatever fails here fails the caller too, with its sentence; Spark's log would add 80 lines of frames to it.
    "spark.log.level": "FATAL",
}
ON_LOOPBACK: Final[Mapping[str, str]] = {
    # A cluster that is reached on the loopback is on this machine: executors find the driver there, whatever its name.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
CONTEXT_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Of PySpark: each error that comes from Java is logged with its trace by one of them, besides being raised."""
_LOOPBACK: Final = re.compile(r"spark://(localhost|127\.[\d.]+|\[::1\])(:|$)")


def session(
    name: str = "danubius",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    tuned: bool = True,
) -> SparkSession:
    """Start Spark, or take the session that is there; `tuned=False` leaves Spark's own defaults."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise InvalidArgument(
            "Spark needs the Python package pyspark: pip install 'danubius[spark]'"
        ) from None
    if master is not None and remote is not None:
        raise InvalidArgument("give a master or a remote Spark Connect server, not both")
    settings = settings_for(master, tuned=tuned and remote is None) | dict(config or {})
    is_cluster = remote is None and not is_local(master)
    builder = SparkSession.builder.appName(name)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        use_java()
        use_python(bare=tuned and not is_cluster)
        for key, value in UNCHECKED.items() if tuned else ():
            os.environ.setdefault(key, value)
        if is_local(master):
            os.environ[SLOTS] = str(_cores(master))
        builder = builder.master(master or "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    if not is_cluster:
        return builder.getOrCreate()
    prepare()
    spark = builder.getOrCreate()
    ship(spark)
    return spark


def send_traces(log: Path | None) -> None:
    """Have PySpark write the stack traces of failed queries to a file, or nowhere, and not before our sentence."""
    from pyspark.logger import PySparkLogger

    for name in CONTEXT_LOGGERS:
        logger = PySparkLogger.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.addHandler(logging.FileHandler(log, delay=True) if log else logging.NullHandler())


def use_python(*, bare: bool) -> None:
    """Make Spark run the interpreter that has this package, not the first python3 on the path.

    `bare`: without the zip files in the way, which executors elsewhere may need.
    """
    if os.environ.get("PYSPARK_PYTHON", str(BARE_PYTHON)) != str(BARE_PYTHON):
        return  # somebody's choice, or ours that still holds
    if bare and os.access(BARE_PYTHON, os.X_OK):
        os.environ["PYSPARK_PYTHON"] = str(BARE_PYTHON)
        os.environ["DANUBIUS_SPARK_PYTHON"] = sys.executable
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def is_local(master: str | None) -> bool:
    """Whether executors run from this very installation: then nothing has to be sent to them."""
    return master is None or master.startswith("local")


def settings_for(master: str | None, *, tuned: bool = True) -> dict[str, str]:
    """What `session` sets for this master."""
    if not tuned:
        return {}
    settings = dict(TUNED)
    if is_local(master):
        settings |= LOCAL
        settings["spark.sql.shuffle.partitions"] = str(_cores(master))
    elif _LOOPBACK.match(master or ""):
        settings |= ON_LOOPBACK
    return settings


def _cores(master: str | None) -> int:
    found = re.match(r"local\[(\d+)", master or "")
    if found:
        return max(1, int(found[1]))
    return 1 if master == "local" else os.cpu_count() or 2


# ---------------------------------------------------------------- Java


def use_java() -> None:
    """Make Spark find a Java that it can run on, or say what is missing."""
    seen: list[str] = []
    for java in _candidates():
        version = java_version(java)
        if version is None:
            continue
        if version >= JAVA_MIN:
            home = java.resolve().parent.parent
            if shutil.which("java") is None or "JAVA_HOME" in os.environ or seen:
                os.environ["JAVA_HOME"] = str(home)
            return
        seen.append(f"Java {version} at {java}")
    found = f"found {', '.join(seen)}. " if seen else "there is no Java here. "
    raise InvalidArgument(found + REMEDY)


def _candidates() -> Iterable[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    for root in ROOTS:
        yield from sorted(Path(root).glob("*/bin/java"), reverse=True)
        yield from sorted(Path(root).glob("*/Contents/Home/bin/java"), reverse=True)


def java_version(java: Path) -> int | None:
    """Its first number; None if it does not run."""
    if not java.is_file():
        return None
    try:
        shown = subprocess.run(  # noqa: S603  # the machine's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(shown.stderr + shown.stdout)
    return int(found[1]) if found else None
