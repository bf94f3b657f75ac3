"""Addresses of object stores: what is taken, and what is said of those that are not."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from danubius.errors import TierMisconfigured
from danubius.tier.connect import open_objects
from danubius.tier.file_objects import FileObjects
from danubius.tier.memory_objects import MemoryObjects

if TYPE_CHECKING:
    from pathlib import Path

S3 = {"region": "eu-central-1", "access_key_id": "me", "secret_access_key": "hush-hush"}


def test_files_and_memory_need_no_options(tmp_path: Path) -> None:
    assert isinstance(open_objects(f"fs://{tmp_path}/cold"), FileObjects)
    assert (tmp_path / "cold").is_dir()
    assert isinstance(open_objects("memory://one"), MemoryObjects)


def test_memory_of_one_name_is_one_store() -> None:
    open_objects("memory://shared").put("a", [b"1"], replace=True)
    assert open_objects("memory://shared").get("a", 0, 9) == b"1"
    assert open_objects("memory://other").stat("a") is None


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("s3://bucket", S3, "s3://bucket"),
        ("s3://bucket/some/prefix/", S3, "s3://bucket/some/prefix"),
        ("s3:///prefix", {**S3, "bucket": "bucket"}, "s3:///prefix"),
        ("gcs://bucket/x", {"skip_signature": "true"}, "gcs://bucket/x"),
        ("redis://me:hush-hush@localhost:6379/2/x", {}, "redis://localhost:6379/2/x"),
        ("redis://localhost", {"password": "hush-hush"}, "redis://localhost"),
        ("redis:///", {"endpoint": "tcp://localhost:6379"}, "redis:"),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, options: dict[str, str], shown: str) -> None:
    objects = open_objects(url, options)
    assert objects.url == shown
    objects.close()


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("", {}, "an address such as s3://bucket/prefix"),
        ("bucket/prefix", {}, "an address such as s3://bucket/prefix"),
        ("gs://bucket", {}, "no object store 'gs://', did you mean 'gcs'?"),
        ("azblb://bucket", {}, "did you mean 'azblob'?"),
        ("file:///x", {}, "did you mean 'fs'?"),
        ("s3a://bucket", S3, "did you mean 's3'?"),
        ("nonsense://bucket", S3, "no object store 'nonsense://': an address is such as s3://"),
        (
            "s3://bucket",
            {**S3, "acces_key": "x"},
            "no option 'acces_key', did you mean 'access_key_id'?",
        ),
        ("s3://bucket", {**S3, "zzz": "x"}, "no option 'zzz'; it has access_key_id, "),
        ("s3://bucket", {**S3, "bucket": "other"}, "says the bucket already"),
        ("s3://bucket/x", {**S3, "root": "other"}, "says the root already"),
        ("s3://bucket/../x", S3, "'../x' is no name"),
        ("s3://bucket", {}, "region is missing"),
        ("s3:///x", S3, "bucket is misconfigured"),
        ("s3://bucket?region=x", S3, "options are given apart"),
        ("s3://me:hush-hush@bucket", S3, "has a password in it"),
        ("s3://bucket:x", S3, "malformed"),
        ("redis://localhost/first", {}, "a database of Redis is a number"),
        ("sqlite://here", {}, "say where by options, which are connection_string"),
        ("fs://relative/path", {}, "needs a whole path"),
        ("fs:///", {}, "needs a whole path"),
        ("fs:///dev/null/x", {}, "cannot make the directory"),
        ("memory://x", {"a": "b"}, "memory:// has no options, so not 'a' either"),
        ("azblob://c", {"account_name": "me", "account_key": "hush-hush"}, "endpoint is empty"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(
    url: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(TierMisconfigured) as caught:
        open_objects(url, options)
    assert said in caught.value.message
    assert "hush" not in caught.value.message


def test_without_opendal_files_go_on_and_others_say_what_to_install() -> None:
    code = (
        "import sys; sys.modules['opendal'] = None\n"
        "from danubius.tier.connect import open_objects\n"
        "from danubius.errors import TierMisconfigured\n"
        "open_objects('memory://x').put('a', [b'1'])\n"
        "try:\n    open_objects('s3://bucket')\n"
        "except TierMisconfigured as error:\n    print(error.message)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'danubius[tier]'" in said.stdout
