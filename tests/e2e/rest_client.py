"""A small client of the REST interface for tests: it knows the paths of topics, and shows what was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


class Rest:
    """Talks to one broker over HTTP."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.http = httpx.AsyncClient(base_url=broker.http_url, timeout=HANG_S)

    async def __aenter__(self) -> Rest:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    @staticmethod
    def path(topic: str, *rest: str) -> str:
        return "/".join(["/api/v1/topics" + topic, *rest])

    async def get(self, path: str, status: int = 200, **query: object) -> Any:
        return self._check(await self.http.get(path, params=_texts(query)), status)

    async def delete(self, path: str, status: int = 204, **query: object) -> Any:
        return self._check(await self.http.delete(path, params=_texts(query)), status)

    async def post(self, path: str, body: object = None, status: int = 200) -> Any:
        return self._check(await self.http.post(path, json=body or {}), status)

    async def put(self, path: str, body: object = None, status: int = 201) -> Any:
        return self._check(await self.http.put(path, json=body or {}), status)

    async def patch(self, path: str, body: object = None, status: int = 200) -> Any:
        return self._check(await self.http.patch(path, json=body or {}), status)

    async def publish(self, topic: str, *texts: str, status: int = 201, **more: object) -> Any:
        body = {"messages": [{"text": text} for text in texts], **more}
        return await self.post(self.path(topic, "messages"), body, status)

    async def open_consumer(self, topic: str, subscription: str = "s", **body: object) -> str:
        path = self.path(topic, "subscriptions", subscription, "consumers")
        opened = await self.post(path, {"start": {"type": "earliest"}} | body, 201)
        return f"/api/v1/sessions/{opened['session']}"

    async def receive(self, session: str, limit: int = 100, wait_ms: int = 20_000) -> list[Any]:
        body = {"limit": limit, "wait_ms": wait_ms}
        return (await self.post(session + "/receive", body))["messages"]

    @staticmethod
    def _check(answer: httpx.Response, status: int) -> Any:
        assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            problem = answer.json()
            assert problem["status"] == status
            assert problem["detail"]
        return answer.json() if answer.content else None


def _texts(query: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in query.items()}
