"""Danube's own client while its broker is killed and restarted, again and again: it goes on, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from e2e.danube_process import danube_client

if TYPE_CHECKING:
    from e2e.conftest import StartBroker

KILLS = 10


def test_ten_kills_under_load_lose_nothing_that_was_acknowledged(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(grpc=True)
    single, parted = "/default/single", "/default/parted"
    with danube_client(broker.grpc_url) as client, danube_client(broker.grpc_url) as reader:
        client.do("open_producer", name="one", topic=single)
        client.do("open_producer", name="many", topic=parted, partitions=3)
        consumers = {
            "a": (single, "shared"), "b": (single, "shared"), "c": (single, "exclusive"),
            "d": (single, "failover"), "e": (single, "key_shared"), "f": (parted, "shared"),
        }  # fmt: skip
        for name, (topic, kind) in consumers.items():
            reader.do("subscribe", name=name, topic=topic, subscription=kind, kind=kind)
        reader.do("begin_taking", names=list(consumers))
        client.do("begin_sending", name="one", width=6, keys=7)
        client.do("begin_sending", name="many", width=6)
        for _ in range(KILLS):
            client.do("await_sent", name="one", more=20)
            client.do("await_sent", name="many", more=20)
            broker.kill()
            broker.start()
        client.do("await_sent", name="one", more=20)
        client.do("await_sent", name="many", more=20)
        sent = client.do("end_sending")
        assert sent["errors"] == []
        ones = [one for one in sent["stored"] if one.startswith("one-")]
        others = [one for one in sent["stored"] if one.startswith("many-")]
        assert len(ones) >= KILLS * 20
        assert len(others) >= KILLS * 20
        for names, payloads in (
            (["a", "b"], ones), (["c"], ones), (["d"], ones), (["e"], ones), (["f"], others),
        ):  # fmt: skip
            left = reader.do("await_taken", names=names, payloads=payloads)
            assert left == {"missing": [], "errors": []}, names
