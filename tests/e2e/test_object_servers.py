"""The suites on real servers, each started by the test: S3 twice, Azure, Google's storage as it is faked, and Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.conformance.ledger_checks import run_ledger_checks
from danubius.conformance.object_checks import run_object_checks
from danubius.errors import StorageFailed, TierMisconfigured
from danubius.tier.connect import open_objects
from danubius.tier.object_ledgers import ObjectLedgerStore
from danubius.tier.objects import ObjectLimits
from object_servers import (
    PATIENCE_S,
    azure_by_azurite,
    gcs_by_fake,
    redis_server,
    s3_by_moto,
    s3_by_seaweedfs,
)

if TYPE_CHECKING:
    from danubius.tier.objects import ObjectStore

PATIENT = ObjectLimits(deadline_s=PATIENCE_S)
FAKE_GCS_CANNOT = {
    "an object of many parts is not replaced either, unless that is asked for",
    "parts that raise leave nothing, and the error reaches the caller",
}
"""It has no uploads in parts. It also says that it refuses to replace, and does not: the suite notes that."""


def check_objects(objects: ObjectStore) -> dict[str, str]:
    return {
        finding.sentence: finding.problem
        for finding in run_object_checks(objects, "suite/")
        if not finding.is_good
    }


def check_ledgers(objects: ObjectStore) -> dict[str, str]:
    def make() -> ObjectLedgerStore:
        return ObjectLedgerStore(objects, "ledgers/")

    return {
        finding.sentence: finding.problem
        for finding in run_ledger_checks(make(), make)
        if not finding.is_good
    }


def test_s3_by_seaweedfs() -> None:
    with s3_by_seaweedfs() as place:
        objects = open_objects(place.below("cold").url, place.options, PATIENT)
        assert check_objects(objects) == {}
        assert check_ledgers(objects) == {}
        assert list(objects.list("")) == []
        objects.close()
        wrong = {**place.options, "secret_access_key": "not-the-secret-that-it-is"}
        objects = open_objects(place.url, wrong, PATIENT)
        with pytest.raises(TierMisconfigured) as caught:
            objects.put("a", [b"1"])
        assert "not-the-secret" not in caught.value.message
        objects.close()


def test_s3_by_moto() -> None:
    with s3_by_moto() as place:
        objects = open_objects(place.below("cold").url, place.options, PATIENT)
        assert check_objects(objects) == {}
        objects.close()
        absent = open_objects("s3://nowhere", place.options, PATIENT)
        with pytest.raises(TierMisconfigured, match="NoSuchBucket"):
            absent.put("a", [b"1"])
        absent.close()


@pytest.mark.azure
def test_azure_by_azurite() -> None:
    with azure_by_azurite() as place:
        objects = open_objects(place.below("cold").url, place.options, PATIENT)
        assert check_objects(objects) == {}
        objects.close()
        absent = open_objects("azblob://nowhere", place.options, PATIENT)
        with pytest.raises(TierMisconfigured, match="ContainerNotFound"):
            absent.put("a", [b"1"])
        with pytest.raises(TierMisconfigured, match="ContainerNotFound"):
            list(absent.list(""))
        absent.close()
        wrong = {**place.options, "account_key": "bm90IHRoZSBrZXk="}
        objects = open_objects(place.url, wrong, PATIENT)
        with pytest.raises(TierMisconfigured):
            objects.put("a", [b"1"])
        objects.close()


def test_gcs_as_it_is_faked() -> None:
    with gcs_by_fake() as place:
        objects = open_objects(place.below("cold").url, place.options, PATIENT)
        assert set(check_objects(objects)) == FAKE_GCS_CANNOT
        assert check_ledgers(objects) == {}
        objects.close()


def test_redis() -> None:
    with redis_server(password="hush-hush-hush") as place:
        objects = open_objects(place.below("cold").url, place.options, PATIENT)
        assert check_objects(objects) == {}
        assert check_ledgers(objects) == {}
        assert list(objects.list("")) == []
        objects.close()
        # OpenDAL keeps trying with a wrong password, and never says so.
        limits = ObjectLimits(deadline_s=0.5)
        objects = open_objects(place.url, {"password": "wrong-wrong-wrong"}, limits)
        with pytest.raises(StorageFailed, match="timeout") as caught:
            objects.put("a", [b"1"])
        assert "wrong-wrong" not in caught.value.message
        objects.close()
