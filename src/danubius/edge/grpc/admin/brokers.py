"""BrokerAdmin, ClusterAdmin and SecurityAdmin, as one broker that trusts whoever can connect answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.edge.grpc.admin.asking import bounded
from danubius.edge.grpc.messages import danube_admin
from danubius.edge.grpc.servicer import Servicer
from danubius.edge.grpc.status import Code, Refused

if TYPE_CHECKING:
    from danubius.edge.grpc.admin.asking import Office
    from danubius.edge.grpc.servicer import Context

ALONE: Final = "this broker runs alone"
NO_CLUSTER: Final = (
    f"{ALONE}: there is no cluster to add brokers to, to promote them in or to remove them from"
)
NO_SECURITY: Final = (
    "this broker has neither roles nor bindings: it serves whoever can connect to it"
)


class BrokerAdmin:
    """Who serves what: this broker, everything."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def servicer(self) -> Servicer:
        return Servicer(
            danube_admin.service("BrokerAdmin"),
            {
                "ListBrokers": self.list_brokers,
                "GetLeaderBroker": self.get_leader,
                "ListNamespaces": self.list_namespaces,
                "UnloadBroker": self.unload,
                "ActivateBroker": self.activate,
                "GetClusterBalance": self.get_balance,
                "TriggerRebalance": self.rebalance,
            },
        )

    async def list_brokers(self, request: Any, context: Context) -> Any:
        del request, context
        addresses = self._office.addresses()
        info = danube_admin.BrokerInfo(
            broker_id=self._office.number_text,
            broker_addr=addresses.broker,
            broker_role="Cluster_Leader",
            admin_addr=addresses.admin,
            metrics_addr=addresses.metrics,
            broker_status="active",
        )
        return danube_admin.BrokerListResponse(brokers=[info])

    async def get_leader(self, request: Any, context: Context) -> Any:
        del request, context
        return danube_admin.BrokerResponse(leader=self._office.number_text)

    async def list_namespaces(self, request: Any, context: Context) -> Any:
        del request, context
        names = await self._office.namespaces()
        return bounded(danube_admin.NamespaceListResponse(namespaces=names))

    async def unload(self, request: Any, context: Context) -> Any:
        del context
        self._office.check_broker(request.broker_id)
        raise Refused(
            Code.FAILED_PRECONDITION,
            f"{ALONE}: there is no other that its topics could go to",
        )

    async def activate(self, request: Any, context: Context) -> Any:
        """It is active as long as it runs."""
        del context
        self._office.check_broker(request.broker_id)
        return danube_admin.ActivateBrokerResponse(success=True)

    async def get_balance(self, request: Any, context: Context) -> Any:
        del request, context
        topics = self._office.topic_count
        load = float(topics)
        one = danube_admin.BrokerLoadInfo(
            broker_id=self._office.number, load=load, topic_count=topics
        )
        return danube_admin.ClusterBalanceResponse(
            mean_load=load,
            max_load=load,
            min_load=load,
            broker_count=1,
            brokers=[one],
            assignment_strategy="fair",
        )

    async def rebalance(self, request: Any, context: Context) -> Any:
        """One broker is in balance: there is nothing to move, dry run or not."""
        del request, context
        return danube_admin.RebalanceResponse(success=True)


class ClusterAdmin:
    """A cluster of one, led by itself."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def servicer(self) -> Servicer:
        methods = {"ClusterStatus": self.status}
        return Servicer(danube_admin.service("ClusterAdmin"), methods, refusal=NO_CLUSTER)

    async def status(self, request: Any, context: Context) -> Any:
        del request, context
        number = self._office.number
        return danube_admin.ClusterStatusResponse(
            leader_id=number,
            current_term=self._office.epoch,
            voters=[number],
            self_node_id=number,
        )


def security_servicer() -> Servicer:
    return Servicer(danube_admin.service("SecurityAdmin"), {}, refusal=NO_SECURITY)
