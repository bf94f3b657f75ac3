"""Danube's clients in three languages, each as a program that does what a test tells it.

Python's is `danube_agent.py`. Java's and Go's are in tests/danube_clients, against the clients as Maven and Go get
them; `make test-danube-clients` builds them. What cannot be had is said, and not tested; what can be had and does not
compile is a failure. A client that was built from its source is found where its language keeps such things: Maven's
local repository, Go's module cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.danube_process import AGENT, PYTHON

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER: Final = Path(__file__).resolve().parents[1] / "danube_clients"
_JAVA: Final = _FOLDER / "java"
_GO: Final = _FOLDER / "go"
_JVMS: Final = Path("/usr/lib/jvm")
JAVA_MIN: Final = 21
"""What Danube's client for Java needs."""
BUILD_S: Final = 900.0


class NotToBeHad(Exception):
    """A client, or what builds it, is not there."""


def commands() -> dict[str, list[str]]:
    """How each client that is there is started, by its language; the broker's URL comes last."""
    found = {"python": [str(PYTHON), str(AGENT)]}
    build = _JAVA / "build"
    if (build / "lib").is_dir():
        java = str(_java_home() / "bin" / "java")
        found["java"] = [java, "-cp", f"{build / 'classes'}:{build / 'lib'}/*", "Agent"]
    if (_GO / "build" / "agent").is_file():
        found["go"] = [str(_GO / "build" / "agent")]
    return found


def _java_home() -> Path:
    """The newest Java that there is."""
    homes = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    homes += [one for one in _JVMS.glob("*") if (one / "bin" / "javac").exists()]
    best = max(homes, key=_java_version, default=None)
    if best is None or _java_version(best) < JAVA_MIN:
        raise NotToBeHad(f"there is no Java {JAVA_MIN} or newer (set JAVA_HOME)")
    return best


def _java_version(home: Path) -> int:
    release = home / "release"
    found = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.exists() else None
    return int(found[1]) if found else 0


def _run(folder: Path, more: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(command[0]) is None:
        raise NotToBeHad(f"{command[0]} is not installed")
    return subprocess.run(
        command, cwd=folder, env=os.environ | more, text=True, timeout=BUILD_S, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _because(done: subprocess.CompletedProcess[str]) -> str:
    """What a build said, in a line."""
    lines = [line for line in done.stdout.splitlines() if "ERROR" in line or line.startswith("go:")]
    return re.sub(r"\s+", " ", (lines or [done.stdout])[0])[:400]


def build_java() -> None:
    home = {"JAVA_HOME": str(_java_home())}
    shutil.rmtree(_JAVA / "build", ignore_errors=True)
    got = _run(_JAVA, home, "mvn", "-B", "-q", "dependency:resolve")
    if got.returncode:
        raise NotToBeHad(_because(got))
    done = _run(_JAVA, home, "mvn", "-B", "-q", "compile")
    if done.returncode:
        shutil.rmtree(_JAVA / "build", ignore_errors=True)
        raise SystemExit(f"Java's program does not build:\n{done.stdout}")


def build_go() -> None:
    build = _GO / "build"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir()
    for name in ("go.mod", "main.go"):  # the build writes down checksums beside them
        shutil.copy(_GO / name, build)
    flags = {"GOFLAGS": "-mod=mod -buildvcs=false"}
    got = _run(build, flags, "go", "mod", "download", "github.com/danube-messaging/danube-go")
    if got.returncode:
        raise NotToBeHad(_because(got))
    done = _run(build, flags, "go", "build", "-o", "agent", ".")
    if done.returncode:
        raise SystemExit(f"Go's program does not build:\n{done.stdout}")


def main() -> None:
    for language, build in (("java", build_java), ("go", build_go)):
        try:
            build()
        except NotToBeHad as error:
            sys.stdout.write(f"{language}: not tested, its client cannot be had: {error}\n")
        else:
            sys.stdout.write(f"{language}: built\n")


if __name__ == "__main__":
    main()
