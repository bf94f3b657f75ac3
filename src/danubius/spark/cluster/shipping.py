"""This package on its way to executors that do not have it.

Spark sends files to executors and puts them on their path, but a source that it discovers by itself forgets them, and
so do the Python processes beside the driver that plan streaming reads. So on a cluster `session` makes an archive of
the package, sends it, registers the source afterwards (it then remembers the archive), and puts the archive on the path
of the driver's own children. What the package needs (pyarrow, msgspec and others with compiled parts) must be there,
or come as an environment: see docs/spark-cluster.md.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import danubius
from danubius.client.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = ("danubius", "pyspark_danube")


@functools.cache
def archive() -> Path | None:
    """This package as a file of compiled modules; None if it runs from such a file itself. Made once a process."""
    home = Path(danubius.__file__).parent.parent
    if not home.is_dir():
        return None
    work = Path(tempfile.mkdtemp(prefix="danubius-spark-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    made = work / f"danubius-{VERSION}.zip"
    with zipfile.PyZipFile(str(made), "w", zipfile.ZIP_DEFLATED) as file:
        for name in PACKAGES:
            # A copy, because compiling writes beside the sources, which may belong to somebody else.
            copy = work / "packages" / name
            shutil.copytree(home / name, copy, ignore=shutil.ignore_patterns("__pycache__"))
            file.writepy(str(copy))
    shutil.rmtree(work / "packages")
    return made


def prepare() -> None:
    """Before Spark's JVM starts: let its Python processes on this machine find the package, whatever runs them."""
    made = archive()
    if made is not None:
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if str(made) not in known:
            os.environ["PYTHONPATH"] = os.pathsep.join([str(made), *filter(None, known)])


def ship(spark: SparkSession) -> None:
    """Send the package to the executors of a session, and let the source know it."""
    from danubius.spark.data_source import DanubeDataSource

    made = archive()
    context = spark.sparkContext
    if made is not None and not any(file.endswith(f"/{made.name}") for file in context.listFiles):
        context.addPyFile(str(made))
    spark.dataSource.register(DanubeDataSource)
