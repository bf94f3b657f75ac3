"""Pipelines as a child process: `danubius pipeline run` by this same interpreter, watched through its status files.

It has a session of its own, so that Ctrl-C is for the parent, which then stops it; and it is always gone, with the Java
process below it, when the context ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, Self

from danubius.pipeline import status as statuses
from danubius.pipeline.ready_made import find

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from danubius.pipeline.status import Status

_STOP_TIMEOUT_S: Final = 60.0
_KILL_TIMEOUT_S: Final = 15.0
_LOOK_S: Final = 0.05
_TAIL_LINES: Final = 5


class PipelineProcess:
    """Ready-made pipelines on one Spark, with their checkpoints and their log in `folder`."""

    def __init__(self, url: str, folder: Path, parameters: Mapping[str, Mapping[str, str]]) -> None:
        """`parameters`: by pipeline."""
        self.log_path = folder / "pipelines.log"
        self._folder = folder
        self._checkpoints = {name: folder / "checkpoints" / name for name in parameters}
        self._command = [sys.executable, "-m", "danubius", "pipeline", "run"]
        self._command += [str(find(name)) for name in parameters]
        self._command += ["--url", url, "--checkpoint", str(folder / "checkpoints")]
        for name, values in parameters.items():
            for key, value in values.items():
                self._command += ["--set", f"{name}.{key}={value}"]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                cwd=self._folder, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._end_group(signal.SIGTERM, 0.0 if self._has_ended else _STOP_TIMEOUT_S)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def statuses(self) -> dict[str, Status]:
        """By pipeline, as far as they have one yet."""
        found = {name: statuses.read(folder) for name, folder in self._checkpoints.items()}
        return {name: status for name, status in found.items() if status is not None}

    def ask_to_stop(self) -> None:
        """Its queries end their batches."""
        if not self._has_ended:
            self._signal(signal.SIGTERM)

    def last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-_TAIL_LINES:]) or "it said nothing"

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end_group(self, number: signal.Signals, grace_s: float) -> None:
        """Stop it; whatever of its group is left then is killed, also if somebody presses Ctrl-C once more."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.poll() is None:
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(grace_s)
            # Java ends when it sees that its parent has; until then the group is there.
            limit = time.monotonic() + _KILL_TIMEOUT_S
            while process.poll() is not None and _is_there(process.pid):
                if time.monotonic() > limit:
                    break
                time.sleep(_LOOK_S)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
