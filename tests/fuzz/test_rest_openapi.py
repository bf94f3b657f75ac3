"""Requests made from /openapi.json against a live broker: no 5xx, every answer as described, bad requests refused.

Half of the cases fit the description and half break it somewhere. Most of those that fit are about things that exist,
so that they reach what lies behind the checks. An honest client works beside them all the time. In
`make prove` there are 10,000 cases.
"""

from __future__ import annotations

import asyncio
import collections
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis import checks as registry
from schemathesis.core.parameters import ParameterLocation

from e2e.traffic import bystander
from patience import HANG_S, SOON_S
from proving import sized

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

CASES: Final = sized(300, 10_000)
KNOWN: Final = {
    "namespace": ["fuzz"],
    "topic": ["plain", "parts", "parts-part-1", "volatile"],
    "subscription": ["s", "k"],
    "producer": ["p"],
    "consumer": ["c"],
}


class World:
    """What the cases are about; made again when one of them has deleted it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = requests.Session()
        self.session = ""
        self.statuses: collections.Counter[tuple[str, int]] = collections.Counter()

    def build(self) -> None:
        api = f"{self.url}/api/v1"
        self._do("PUT", f"{api}/namespaces/fuzz", {"exist_ok": True})
        self.http.patch(
            f"{api}/namespaces/fuzz", json={"policies": {"message_bytes_max": None}}, timeout=HANG_S
        )
        for topic, body in (
            ("plain", {}),
            ("parts", {"partitions": 3}),
            ("volatile", {"spec": {"dispatch": "non-reliable"}}),
        ):
            self._do("PUT", f"{api}/topics/fuzz/{topic}", body)
        for subscription, kind in (("s", "shared"), ("k", "key-shared")):
            path = f"{api}/topics/fuzz/plain/subscriptions/{subscription}"
            self._do("PUT", path, {"type": kind, "start": {"type": "earliest"}})
        messages = [{"text": "one", "key": "a"}, {"base64": "/w=="}, {"json": [1]}]
        self._do("POST", f"{api}/topics/fuzz/plain/messages", {"messages": messages})
        self._do("POST", f"{api}/topics/fuzz/parts/messages", {"messages": messages})
        opened = self._do(
            "POST", f"{api}/topics/fuzz/plain/subscriptions/s/consumers", {"type": "shared"}
        )
        self.session = opened.json().get("session", "")

    def _do(self, method: str, url: str, body: Any) -> requests.Response:
        answer = self.http.request(method, url, json=body, timeout=HANG_S)
        assert answer.status_code < 500, answer.text
        return answer

    def known(self, name: str) -> list[str]:
        return [self.session] if name == "session" else KNOWN.get(name, [])

    def run(self, case: Any) -> None:
        answer = case.call(session=self.http, timeout=HANG_S)
        mode: str = case.meta.generation.mode.name
        self.statuses[mode, answer.status_code] += 1
        case.validate_response(answer, excluded_checks=[_TOO_STRICT])
        if case.method in {"DELETE", "PATCH"} and answer.status_code < 300:
            self.build()

    @property
    def cases(self) -> int:
        return sum(self.statuses.values())


_checks: Any = registry
_checks.load_all_checks()
_TOO_STRICT: Any = _checks.CHECKS.get_one("positive_data_acceptance")
"""Rules that no schema can say, such as the range of a policy, may refuse what fits the schema."""


def _aim(case: Any, world: World, data: st.DataObject) -> None:
    """Make a case that fits be about what exists, and let none wait for long."""
    parts: dict[ParameterLocation, Any] = case.meta.components

    def fits(location: ParameterLocation) -> bool:
        part = parts.get(location)
        return part is None or part.mode is GenerationMode.POSITIVE

    if fits(ParameterLocation.PATH) and data.draw(st.integers(0, 9)) > 1:
        for name in case.path_parameters:
            if known := world.known(name):
                case.path_parameters[name] = data.draw(st.sampled_from(known))
    if fits(ParameterLocation.QUERY):
        if case.path.endswith("/tail"):
            case.query["duration_ms"] = 5
        if "wait_ms" in case.query:
            case.query["wait_ms"] = 5
    body: Any = case.body
    if fits(ParameterLocation.BODY) and isinstance(body, dict) and "wait_ms" in body:
        body["wait_ms"] = 5


def _fuzz(world: World, is_over: threading.Event) -> None:
    schema: Any = schemathesis.openapi.from_url(f"{world.url}/openapi.json")
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]
    # Some have fewer cases than this, because there is little to choose.
    each = -(-CASES * 6 // 5 // (2 * len(operations)))
    for operation in operations:
        described: dict[str, Any] = operation.definition.raw
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            is_open = described["parameters"] or "requestBody" in described
            if is_open or mode is GenerationMode.POSITIVE:
                _try_out(operation.as_strategy(generation_mode=mode), world, each)
            if is_over.is_set():
                return


def _try_out(cases: st.SearchStrategy[Any], world: World, count: int) -> None:
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
    @given(case=cases, data=st.data())
    def run(case: Any, data: st.DataObject) -> None:
        _aim(case, world, data)
        world.run(case)

    run()


@pytest.mark.grows
async def test_no_request_gets_a_server_error(start_broker: StartBroker, topic: str) -> None:
    broker: BrokerProcess = start_broker()
    world = World(broker.http_url)
    is_over = threading.Event()
    rounds = 0
    async with bystander(broker.url, topic) as other, asyncio.TaskGroup() as tasks:
        await asyncio.to_thread(world.build)
        fuzzing = tasks.create_task(asyncio.to_thread(_fuzz, world, is_over))
        try:
            while not fuzzing.done():
                await other.check(1, within_s=HANG_S)
                rounds += 1
                await asyncio.wait([fuzzing], timeout=4 * SOON_S)
        finally:
            is_over.set()
    sys.stdout.write(f"\n{world.cases:,} cases: {dict(world.statuses)}\n{rounds:,} rounds beside\n")
    assert world.cases >= CASES
    assert not [status for _, status in world.statuses if status >= 500]
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()
