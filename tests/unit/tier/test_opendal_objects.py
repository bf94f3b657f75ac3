"""What is made of OpenDAL's failures: a server that is down, silent, or wrong in the middle of an object."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from danubius.errors import ObjectNotFound, StorageFailed, TierMisconfigured
from danubius.tier.connect import open_objects
from danubius.tier.objects import ObjectLimits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from danubius.tier.objects import ObjectStore

SECRET = "a-secret-of-many-letters"
PART = 5 << 20
QUICK = ObjectLimits(deadline_s=2.0, part_bytes=PART, parts_at_once=2)


def connect(port: int, limits: ObjectLimits = QUICK) -> ObjectStore:
    options = {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "access_key_id": "me",
        "secret_access_key": SECRET,
    }
    return open_objects("s3://bucket/root", options, limits)


class FakeS3(ThreadingHTTPServer):
    """As much of S3 as is needed to go wrong in it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: Counter[str] = Counter()
        self.objects: dict[str, bytes] = {}
        self.parts: dict[int, bytes] = {}
        self.broken_parts: dict[int, int] = {}
        """Part number -> how often it fails."""
        self.broken_reads = 0
        self.refusal = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def s3(self) -> FakeS3:
        assert isinstance(self.server, FakeS3)
        return self.server

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass

    def do_HEAD(self) -> None:
        self.s3.seen["head"] += 1
        data = self.s3.objects.get(self.path)
        if data is None or self.s3.refusal:
            self._answer(self.s3.refusal or 404)
        else:
            self._answer(200, length=len(data))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.endswith("?uploads"):
            self.s3.seen["begin"] += 1
            self._answer(200, b"<R><UploadId>7</UploadId></R>")
        else:
            self.s3.seen["complete"] += 1
            self.s3.objects[self.path.split("?")[0]] = b"".join(
                data for _, data in sorted(self.s3.parts.items())
            )
            self._answer(200, b"<CompleteMultipartUploadResult/>")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        if "partNumber=" not in self.path:
            self.s3.seen["put"] += 1
            self.s3.objects[self.path] = data
            self._answer(200)
            return
        number = int(self.path.split("partNumber=")[1].split("&")[0])
        self.s3.seen[f"part {number}"] += 1
        if self.s3.broken_parts.get(number, 0) > 0:
            self.s3.broken_parts[number] -= 1
            self._answer(500)
            return
        self.s3.parts[number] = data
        self._answer(200)

    def do_GET(self) -> None:
        self.s3.seen["get"] += 1
        first, last = self.headers["range"].removeprefix("bytes=").split("-")
        data = self.s3.objects[self.path][int(first) : int(last) + 1]
        if self.s3.broken_reads > 0:
            self.s3.broken_reads -= 1
            self.send_response(206)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self._answer(206, data)

    def _answer(self, status: int, body: bytes = b"", length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.send_header("etag", '"1"')
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fake_s3() -> Generator[tuple[FakeS3, ObjectStore]]:
    with FakeS3() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        objects = connect(server.server_address[1])
        try:
            yield server, objects
        finally:
            objects.close()
            server.shutdown()
            thread.join()


def parts(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield bytes([number]) * (1 << 20)


def test_a_part_that_fails_once_is_sent_again() -> None:
    with fake_s3() as (server, objects):
        server.broken_parts = {2: 1}
        assert objects.put("a", parts(12))
        assert server.seen["part 2"] == 2
        assert server.seen["complete"] == 1
        assert server.objects["/bucket/root/a"] == b"".join(parts(12))


def test_a_part_that_keeps_failing_fails_the_object_and_nothing_is_made_of_it() -> None:
    with fake_s3() as (server, objects):
        server.broken_parts = {2: 1000}
        with pytest.raises(StorageFailed, match="cannot store a in s3://bucket/root") as caught:
            objects.put("a", parts(12))
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
        assert server.seen["part 2"] >= 3
        assert server.seen["complete"] == 0
        assert objects.stat("a") is None


def test_parts_that_raise_in_the_middle_make_no_object() -> None:
    def raising() -> Iterator[bytes]:
        yield from parts(12)
        raise LookupError("the ledger is gone")

    with fake_s3() as (server, objects):
        with pytest.raises(LookupError):
            objects.put("a", raising())
        assert server.seen["begin"] == 1
        assert server.seen["complete"] == 0
        assert server.objects == {}


def test_a_small_object_is_one_request() -> None:
    with fake_s3() as (server, objects):
        assert objects.put("a", [b"1", b"2"])
        assert server.objects == {"/bucket/root/a": b"12"}
        assert server.seen == {"head": 1, "put": 1}


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    with fake_s3() as (server, objects):
        objects.put("a", [b"0123456789" * 1000])
        server.broken_reads = 1
        assert objects.get("a", 10, 5000) == b"0123456789" * 500
        server.broken_reads = 1000
        with pytest.raises(StorageFailed, match="cannot read a"):
            objects.get("a", 10, 5000)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_a_matter_of_configuration(status: int) -> None:
    with fake_s3() as (server, objects):
        server.refusal = status
        with pytest.raises(TierMisconfigured, match="cannot look at a"):
            objects.put("a", [b"1"])


def test_a_server_that_is_not_there_is_a_passing_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        objects = connect(taken.getsockname()[1])
        for call in (
            lambda: objects.stat("a"),
            lambda: objects.get("a", 0, 1),
            lambda: objects.put("a", [b"1"], replace=True),
            lambda: objects.put("a", parts(6), replace=True),
            lambda: objects.delete("a"),
            lambda: list(objects.list("")),
        ):
            with pytest.raises(StorageFailed, match="refused") as caught:
                call()
            assert SECRET not in str(caught.value)
        objects.close()


def test_a_server_that_says_nothing_is_waited_for_no_longer_than_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        objects = connect(silent.getsockname()[1], QUICK._replace(deadline_s=0.6))
        threads: list[threading.Thread] = []
        failed: list[float] = []

        def call(number: int) -> None:
            started = time.monotonic()
            try:
                if number % 2:
                    objects.get("a", 0, 10)
                else:
                    objects.put("a", [b"1"], replace=True)
            except StorageFailed:
                failed.append(time.monotonic() - started)

        for number in range(6):
            threads.append(threading.Thread(target=call, args=(number,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert len(failed) == 6
        objects.close()


def test_a_listing_that_failed_leaves_nothing_for_other_threads_to_end() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        objects = connect(silent.getsockname()[1], QUICK._replace(deadline_s=0.2))
        with pytest.raises(StorageFailed) as caught:
            list(objects.list(""))
        frames: list[dict[str, object]] = []
        step = caught.tb
        while step is not None:
            frames.append(step.tb_frame.f_locals)
            step = step.tb_next
        kept = [one for frame in frames for one in frame.values()]
        assert not [one for one in kept if "Lister" in type(one).__name__]
        objects.close()


def test_an_absent_object_is_no_failure_of_the_store() -> None:
    with fake_s3() as (_, objects):
        assert objects.stat("a") is None
    from danubius.tier.opendal_objects import OpendalObjects

    memory = OpendalObjects("memory", {}, "memory:")
    with pytest.raises(ObjectNotFound):
        memory.get("a", 0, 1)
    memory.close()


def test_a_process_may_end_right_after_the_last_call() -> None:
    code = (
        "from danubius.tier.opendal_objects import OpendalObjects\n"
        "objects = OpendalObjects('memory', {}, 'memory:')\n"
        "objects.put('a', [b'1'])\n"
    )
    for end in ("", "objects.close()\n"):
        assert subprocess.run([sys.executable, "-c", code + end], check=False).returncode == 0
