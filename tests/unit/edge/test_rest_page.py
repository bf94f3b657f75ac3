"""The page of the REST interface can be pasted from, wherever the broker listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.edge.rest.page import addressed, render

if TYPE_CHECKING:
    from danubius.edge.rest.endpoint import Endpoint

NONE: list[Endpoint] = []


def test_the_commands_name_the_address_of_the_request() -> None:
    page = addressed(render(NONE), "http://broker.example:8080")
    assert page.count("http://broker.example:8080/api/v1/topics/default/greetings/messages") == 2
    assert "6652" not in page


@pytest.mark.parametrize("base", ["http://x'$(touch y)'", "http://a<b>", "", "http://a b"])
def test_an_address_that_is_none_is_not_repeated(base: str) -> None:
    page = addressed(render(NONE), base)
    assert page.count("http://127.0.0.1:6652/api/v1/topics") == 2
    assert "touch" not in page
