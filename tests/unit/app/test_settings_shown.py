"""No face of the settings shows a secret, and no setting that may be one goes unmarked."""

from __future__ import annotations

import pytest

from danubius.app.settings import KEYS, Given, as_text, from_environment, merge, render
from danubius.errors import InvalidArgument
from danubius.model.setting_marks import needs_mark

HUSH = "hush-hush"
GIVEN = [
    Given("tier.url", f"redis://me:{HUSH}@store:6379/0", "--tier-url"),
    Given("tier.options", {"connection_string": f"AccountKey={HUSH}", "region": "eu-1"}, "a.toml:3"),
    Given("ledger_store.kind", "object", "--ledger-store"),
    Given("ledger_store.url", f"redis://:{HUSH}@other/0", "--ledger-store-url"),
    Given("server.connect_url", f"http://me:{HUSH}@proxy:6650", "--set"),
]  # fmt: skip


def test_the_printed_configuration_shows_no_secret() -> None:
    text = render(merge(GIVEN))
    assert HUSH not in text
    assert 'url = "redis://store:6379/0"' in " ".join(text.split())
    assert 'connect_url = "http://proxy:6650"' in " ".join(text.split())


def test_the_described_settings_show_no_secret() -> None:
    values = merge(GIVEN).values
    shown = {path: as_text(key, values[path]) for path, key in KEYS.items()}
    assert HUSH not in str(shown)
    assert shown["tier.options"] == "connection_string=***,region=eu-1"


def test_what_is_in_force_keeps_its_secrets() -> None:
    assert HUSH in merge(GIVEN).settings.tier.url


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DANUBIUS_TIER_OPTIONS", f"password:{HUSH}"),
        ("DANUBIUS_TIER_UPLOADS_AT_ONCE", f"http://me:{HUSH}@x"),
    ],
)
def test_the_sentence_about_a_wrong_value_shows_no_secret(variable: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        merge(from_environment({variable: value}))
    assert HUSH not in caught.value.message


def test_a_setting_that_sounds_like_a_secret_says_how_it_is_shown() -> None:
    """A new one gets a type of `danubius.model.setting_marks`: Secret, Address, Options or Harmless."""
    assert [path for path, key in KEYS.items() if needs_mark(path) and not key.mark] == []


@pytest.mark.parametrize("name", ["tls.private_key", "auth.token", "proxy.url", "s3.options"])
def test_such_names_need_a_mark(name: str) -> None:
    assert needs_mark(name)
