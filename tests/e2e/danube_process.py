"""A process that runs one of Danube's own clients as it is published, told what to do by a test."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = _ROOT / ".venv" / "danube-client" / "bin" / "python"
AGENT: Final = Path(__file__).with_name("danube_agent.py")


class DanubeFailed(Exception):
    """The client raised: its status code, or the name of its exception, and what it said."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Received(NamedTuple):
    """A message as the client got it."""

    place: int
    """Among all that its consumer got."""
    payload: bytes
    topic: str
    offset: int
    key: str | None
    attributes: dict[str, str]
    producer: str
    publish_time: int


class DanubeProcess:
    """One client, and the producers and consumers it was told to open."""

    def __init__(self, url: str, program: Sequence[str] = (str(PYTHON), str(AGENT))) -> None:
        self._process = subprocess.Popen(
            [*program, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "GRPC_VERBOSITY": "NONE",
                "PYTHONUNBUFFERED": "1",
                # Go's client fills one map from several goroutines, which ends it now and then if they are parallel.
                "GOMAXPROCS": "1",
            },
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, do: str, **arguments: Any) -> Future[Any]:
        """Tell it to do something; the future has what came of it."""
        assert self._process.stdin is not None
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            self._process.stdin.write(json.dumps({"number": number, "do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        return future

    def do(self, do: str, **arguments: Any) -> Any:
        """The same, and wait for it."""
        return self.begin(do, **arguments).result(HANG_S)

    # ------------------------------------------------------------ what tests do most

    def send(
        self,
        name: str,
        payload: bytes,
        *,
        key: str | None = None,
        attributes: dict[str, str] | None = None,
    ) -> None:
        data = base64.b64encode(payload).decode()
        self.do("send", name=name, payload=data, key=key, attributes=attributes)

    def take(
        self, name: str, count: int = 1, *, ack: bool = True, timeout_s: float = HANG_S
    ) -> list[Received]:
        """As many messages, or what came until the time was over."""
        taken: list[dict[str, Any]] = self.do(
            "take", name=name, count=count, within=timeout_s, ack=ack
        )
        for one in taken:
            one["payload"] = base64.b64decode(one["payload"])
        return [Received(**one) for one in taken]

    # ------------------------------------------------------------ the process

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["number"])
            if "error" in answer:
                future.set_exception(DanubeFailed(answer["error"], answer["message"] or ""))
            else:
                future.set_result(answer["result"])
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(DanubeFailed("ended", "the client's process ended"))

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.wait()
        self._reader.join(HANG_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def danube_client(
    url: str, program: Sequence[str] = (str(PYTHON), str(AGENT))
) -> Generator[DanubeProcess]:
    """A client for as long as the context lasts."""
    process = DanubeProcess(url, program)
    try:
        yield process
    finally:
        process.kill()
