"""What may be shown, and how: `danubius.redaction`."""

from __future__ import annotations

import pickle

import pytest

from danubius.errors import InvalidArgument, StorageFailed
from danubius.redaction import (
    is_secret_name,
    redact,
    redact_address,
    shown_options,
    visible,
    visible_bytes,
)
from danubius.tier.opendal_objects import known_schemes

_SHOWN = frozenset(
    """
    account_id account_name addressing_style allow_anonymous assume_role_duration_seconds
    assume_role_session_tags atomic_write_dir authority_host batch_max_operations bucket bucket_id
    checksum_algorithm chunk_size client_id cluster_endpoints collection connection_pool_max_size container
    database datadir datafile db default_acl default_storage_class default_ttl delete_max_size
    disable_config_load disable_copy disable_create_dir disable_ec2_metadata disable_list_batch
    disable_list_objects_v2 disable_stat_with_override disable_vm_metadata disable_write_with_if_match
    download_mode drive_type email enable_append enable_conditional_read enable_copy enable_hns
    enable_request_payer enable_resolve_cache enable_user_metadata enable_versioning enable_virtual_host_style
    enable_write_with_append encryption_algorithm endpoint external_id filesystem index known_hosts_strategy
    max_capacity name name_node namespace_id oidc_provider_arn operator options predefined_acl
    presign_addressing_style presign_endpoint profile region repo_id repo_name repo_type revision role_arn
    role_session_name root scope segment server_side_encryption server_side_encryption_customer_algorithm
    service_account share_name sts_endpoint table team_id team_slug temp_url_hash_algorithm tenant_id
    time_to_idle time_to_live tree user user_metadata_prefix user_metadata_uri user_name username value_field
    version
    """.split()  # noqa: SIM905  # a list of so many would be a page
)


def test_every_option_of_every_object_store_is_hidden_or_known_to_be_harmless() -> None:
    options = {name for names in known_schemes().values() for name in names}
    assert {name for name in options if not is_secret_name(name)} <= _SHOWN


@pytest.mark.parametrize(
    "name", ["connection_string", "AWS_SECRET_ACCESS_KEY", "sas_token", "password", "X-Amz-Signature", "sig", "auth"]
)  # fmt: skip
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["region", "endpoint", "author", "connections_max", "design"])
def test_a_harmless_name_is_no_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:hush@host:6379/0", "redis://host:6379/0"),
        ("redis://:p@ss@host/0 is slow", "redis://host/0 is slow"),
        ("see https://me@host/a and http://x:y@z", "see https://host/a and http://z"),
        ("https://host/a?sig=abc&sv=1;token=z#f", "https://host/a?sig=***&sv=1;token=***#f"),
        ("mail me@home: no address", "mail me@home: no address"),
        ("http://host:80/a@b", "http://host:80/a@b"),
    ],
)
def test_addresses_in_a_text_lose_their_secrets(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_malformed_address_is_shown_without_what_may_be_its_password() -> None:
    assert redact_address("redis://me:hu/sh@host/0") == "redis://host/0"


def test_options_are_shown_without_secrets_in_their_values() -> None:
    options = {"connection_string": "AccountKey=hush", "endpoint": "http://me:hush@host"}
    assert shown_options(options) == {"connection_string": "***", "endpoint": "http://host"}


def test_an_error_never_repeats_a_password() -> None:
    error = StorageFailed("cannot reach redis://me:hush@host/0: refused")
    assert str(error) == error.message == "cannot reach redis://host/0: refused"
    assert str(pickle.loads(pickle.dumps(InvalidArgument("at http://a:b@c")))) == "at http://c"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain é 水", "plain é 水"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31mred\x9b\x7f\x00", r"\x1b[31mred\x9b\x7f\x00"),
        ("\u202eleft\u2028\ud800", r"\u202eleft\u2028\ud800"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_bytes_are_shown_as_text_as_far_as_they_are() -> None:
    assert visible_bytes(b"ok \xc3\xa9\t\xff\x1b[2J", keep="\t") == "ok é\t\\xff\\x1b[2J"
