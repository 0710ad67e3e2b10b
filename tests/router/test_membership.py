"""Who may join, who counts as lost, and what health and operators are told of it."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from baton.core.load import Role
from baton.proto.v1 import admin_pb2, inference_pb2, node_pb2, registry_pb2, registry_pb2_grpc
from baton.router.machine_config import RouterConfig
from baton.runtime.bus import Publisher
from baton.runtime.codec_node import registration_to_proto
from baton.runtime.grpc_channel import channel
from baton.runtime.grpc_errors import from_rpc_error
from tests.fakes import Cluster, StubConfig, StubNode, eventually, router_with
from tests.relay import Relay

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(cluster: Cluster, service: str = "") -> int:
    stub: Any = health_pb2_grpc.HealthStub(cluster.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def cluster_state(cluster: Cluster) -> dict[str, Any]:
    answer = await cluster.admin.GetCluster(admin_pb2.GetClusterRequest())
    return {node.registration.node_id: node for node in answer.nodes}


async def refused(cluster: Cluster, registration: registry_pb2.Registration) -> Exception:
    async with channel(cluster.app.registry_address) as to_router:
        stub: Any = registry_pb2_grpc.RegistryStub(to_router)
        call = stub.Announce()
        await call.write(registry_pb2.AnnounceRequest(registration=registration))
        with pytest.raises(grpc.RpcError) as caught:
            await call.read()
        return from_rpc_error(caught.value)


async def test_health_is_true_at_every_moment() -> None:
    prefill, decode = (
        StubNode("p", StubConfig(role=Role.PREFILL)),
        StubNode("d", StubConfig(role=Role.DECODE)),
    )
    async with router_with() as cluster:
        watch = health_pb2_grpc.HealthStub(cluster.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == NOT_SERVING
        await prefill.start(cluster.app.registry_address)
        await eventually(lambda: cluster.app.membership.members)
        assert await health(cluster) == NOT_SERVING  # half a pair serves nobody
        await decode.start(cluster.app.registry_address)
        assert (await watch.read()).status == SERVING
        assert await health(cluster, "baton.v1.Inference") == SERVING
        with pytest.raises(grpc.RpcError):
            await health(cluster, "no.such.Service")
        await decode.stop()
        assert (await watch.read()).status == NOT_SERVING
        decode = StubNode("d", StubConfig(role=Role.DECODE))
        await decode.start(cluster.app.registry_address)
        assert (await watch.read()).status == SERVING
        stopping = asyncio.ensure_future(cluster.app.stop())
        assert (await watch.read()).status == NOT_SERVING
        await stopping
        await prefill.stop()
        await decode.stop()


async def test_reflection_under_both_names() -> None:
    async with router_with() as cluster:
        for name in ("v1", "v1alpha"):
            call = cluster.channel.stream_stream(
                f"/grpc.reflection.{name}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            answer = await call.read()
            names = {service.name for service in answer.list_services_response.service}
            assert {"baton.v1.Inference", "baton.v1.Admin", "grpc.health.v1.Health"} <= names
            await call.write(
                reflection_pb2.ServerReflectionRequest(file_containing_symbol="baton.v1.Inference")
            )
            assert (await call.read()).file_descriptor_response.file_descriptor_proto
            call.cancel()
        assert reflection_pb2_grpc


async def test_a_node_of_another_model_is_refused_by_name_of_what_differs() -> None:
    node, other = StubNode("a"), StubNode("b")
    async with router_with(node) as cluster:
        await other.start()
        facts = other.registration()
        for item in (field.name for field in fields(facts.model.fingerprint)):
            fingerprint = replace(facts.model.fingerprint, **{item: "another"})
            wrong = replace(facts, model=replace(facts.model, fingerprint=fingerprint))
            error = await refused(cluster, registration_to_proto(wrong))
            assert isinstance(error, FailedPrecondition)
            assert item in error.message
            assert "another" in error.message
        assert list(cluster.app.membership.members) == ["a"]
        await other.stop()


async def test_the_routers_own_tokenizer_decides_from_the_first_node_on() -> None:
    node = StubNode("a")
    async with router_with(tokenizer_digest="mine") as cluster:
        await node.start()
        error = await refused(cluster, registration_to_proto(node.registration()))
        assert isinstance(error, FailedPrecondition)
        assert "tokenizer (t0 against mine)" in error.message
        await node.stop()


async def test_senseless_registrations_are_refused() -> None:
    node = StubNode("a")
    async with router_with() as cluster:
        await node.start()
        wrong = registration_to_proto(node.registration())
        wrong.layout.block_size = 0
        error = await refused(cluster, wrong)
        assert isinstance(error, InvalidArgument)
        assert error.field == "layout.block_size"
        nowhere = registration_to_proto(node.registration())
        nowhere.address = "127.0.0.1:1"
        error = await refused(cluster, nowhere)
        assert isinstance(error, Unavailable)
        assert "127.0.0.1:1" in error.message
        await node.stop()


async def test_a_silent_node_is_lost_after_its_lease() -> None:
    node = StubNode("a", StubConfig(report_s=60.0))
    async with router_with(node, machine=RouterConfig(lease_s=0.2)) as cluster:
        await eventually(lambda: not cluster.app.membership.members, 3.0)
        assert (await cluster_state(cluster)).get("a") is None or not cluster.app.ready


async def test_a_vanished_node_is_noticed_and_comes_back() -> None:
    node, stand_in = StubNode("a", StubConfig(report_s=0.05)), StubNode("a", StubConfig(report_s=0.05))
    async with router_with(node, machine=RouterConfig(lease_s=0.3)) as cluster:
        await node.stop()
        await eventually(lambda: not cluster.app.membership.members, 3.0)
        await stand_in.start(cluster.app.registry_address)
        await eventually(lambda: cluster.app.ready)
        incarnation = (await cluster_state(cluster))["a"].registration.incarnation
        assert incarnation == stand_in.incarnation
        await stand_in.stop()


async def test_a_black_hole_between_router_and_node_moves_the_request() -> None:
    nodes = (StubNode("a", StubConfig(step_s=0.01)), StubNode("b", StubConfig(step_s=0.01)))
    async with router_with(machine=RouterConfig(lease_s=0.3)) as cluster:
        async with Relay(cluster.app.registry_address) as relay:
            await nodes[0].start(relay.address)
            await eventually(lambda: cluster.app.ready)
            request = inference_pb2.GenerateRequest(text="x", max_tokens=100)
            call = cluster.inference.Generate(request)
            ids = list((await call.read()).token_ids)
            relay.black_hole()
            await nodes[1].start(cluster.app.registry_address)
            while (message := await call.read()) is not grpc.aio.EOF:
                ids += message.token_ids
            assert ids == [3 + i for i in range(100)]
            assert message is grpc.aio.EOF
        for node in nodes:
            await node.stop()


async def test_operators_drain_nodes_and_change_roles() -> None:
    nodes = (StubNode("a"), StubNode("b"))
    async with router_with(*nodes, config_json='{"a": 1}') as cluster:
        await cluster.admin.DrainNode(admin_pb2.DrainNodeRequest(node_id="a", draining=True))
        await eventually(lambda: nodes[0].draining)
        for _ in range(5):
            request = inference_pb2.GenerateRequest(text="x", max_tokens=2)
            async for _message in cluster.inference.Generate(request):
                pass
        assert (len(nodes[0].received), len(nodes[1].received)) == (0, 5)
        assert (await cluster_state(cluster))["a"].state == "draining"
        await cluster.admin.DrainNode(admin_pb2.DrainNodeRequest(node_id="a", draining=False))
        await eventually(lambda: not nodes[0].draining)
        role = admin_pb2.SetNodeRoleRequest(node_id="b", role=1)
        await cluster.admin.SetNodeRole(role)
        await eventually(lambda: nodes[1].role is Role.PREFILL)
        assert (await cluster.admin.GetConfig(admin_pb2.GetConfigRequest())).json == '{"a": 1}'
        for bad, code in (("", "INVALID_ARGUMENT"), ("zzz", "NOT_FOUND")):
            with pytest.raises(grpc.RpcError) as caught:
                await cluster.admin.DrainNode(admin_pb2.DrainNodeRequest(node_id=bad))
            assert caught.value.code().name == code
        with pytest.raises(grpc.RpcError) as caught:
            await cluster.admin.SetNodeRole(admin_pb2.SetNodeRoleRequest(node_id="a"))
        assert from_rpc_error(caught.value).field == "role"


class CachingNode(StubNode):
    """A node with a bus and a snapshot."""

    keys: tuple[bytes, ...] = (b"k1", b"k2")

    def open_bus(self) -> Publisher:
        self.bus = Publisher(self.node_id, self.incarnation)
        return self.bus

    def registration(self) -> Any:
        return replace(super().registration(), bus_endpoint=self.bus.endpoint)

    async def KvSnapshot(self, request: Any, context: Any) -> node_pb2.KvSnapshotResponse:
        return node_pb2.KvSnapshotResponse(
            incarnation=self.incarnation, bus_seq=self.bus.seq, block_size=16, keys=self.keys
        )


async def test_cache_contents_are_followed_through_gaps() -> None:
    node = CachingNode("a")
    bus = node.open_bus()
    async with router_with(node) as cluster:

        def cached() -> int:
            (status,) = cluster.app.machine.nodes(cluster.app.driver.now())
            return status.cached_blocks

        await eventually(lambda: cached() == 2)
        bus.publish([b"k3"], [])
        node.keys = (b"k1", b"k2", b"k3")

        def published() -> bool:
            bus.beat()  # a subscriber that was late learns of what it missed
            return cached() == 3

        await eventually(published)
        bus.publish([], [b"k1", b"k2"])
        node.keys = (b"k3",)
        await eventually(lambda: cached() == 1)
        bus.seq += 5  # five messages were lost
        node.keys = tuple(b"n%d" % i for i in range(7))
        bus.publish([b"n6"], [])
        await eventually(lambda: cached() == 7)
    bus.close()
