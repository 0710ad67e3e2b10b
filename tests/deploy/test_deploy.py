"""The example deployments fit the product: every config, command, probe and metric name in them exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from baton.cli.main import main
from baton.core.load import Role
from baton.runtime.config import ClusterConfig, load_config
from baton.runtime.metrics import NodeMetrics, RequestFigures, RouterMetrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yaml").read_text())
MANIFESTS = [
    item
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for item in yaml.safe_load_all(path.read_text())
]
OURS = [name for name, service in COMPOSE["services"].items() if service["image"] == "baton"]


def run_serve(monkeypatch: pytest.MonkeyPatch, args: list[str]) -> ClusterConfig:
    """What `baton ARGS` would serve."""
    found: list[ClusterConfig] = []
    monkeypatch.setattr("baton.cli.serve.serve", lambda config, as_json: found.append(config))
    monkeypatch.setattr("sys.argv", ["baton", *args])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    return found[0]


def manifest(kind: str, name: str) -> Any:
    return next(m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize("path", sorted((DEPLOY / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_configs_are_right(path: Path) -> None:
    load_config(path)


def test_multi_host_configs_fit_together() -> None:
    parts = {
        role: load_config(DEPLOY / f"configs/multi-host-{role}.yaml")
        for role in ("router", "prefill", "decode")
    }
    assert parts["router"].node_count == 0
    for role in (Role.PREFILL, Role.DECODE):
        config = parts[role.value]
        assert (config.router.processes, config.node_count, config.nodes(role).size) == (0, 1, 1)
        assert config.registries == (f"router.example:{parts['router'].router.registry_port}",)
        assert config.transfer.kinds == ("tcp",)
        assert config.model == parts["router"].model


@pytest.mark.parametrize("name", OURS)
def test_compose_commands_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = COMPOSE["services"][name]
    config = run_serve(monkeypatch, service["command"])
    router = run_serve(monkeypatch, COMPOSE["services"]["router"]["command"])
    probe = re.search(r"127\.0\.0\.1:(\d+)(/health/\w+)", service["healthcheck"]["test"][-1])
    assert probe is not None
    assert probe[2] in ("/health/live", "/health/ready")
    if name == "router":
        assert (config.router.processes, config.node_count) == (1, 0)
        ports = {int(mapping.split(":")[1]) for mapping in service["ports"]}
        assert ports == {config.router.port, config.router.http.port, config.router.metrics_port}
        assert int(probe[1]) == config.router.metrics_port
    else:
        nodes = config.nodes(Role(name))
        assert (config.router.processes, config.node_count, nodes.size) == (0, 1, 1)
        assert config.registries == (f"router:{router.router.registry_port}",)
        assert nodes.advertise_host == name
        assert int(probe[1]) == nodes.metrics_port
        assert "shm" not in config.transfer.kinds  # containers share no /dev/shm


def test_prometheus_scrapes_what_the_containers_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    targets = {
        t for job in config["scrape_configs"] for group in job["static_configs"] for t in group["targets"]
    }
    wanted = set()
    for name in OURS:
        served = run_serve(monkeypatch, COMPOSE["services"][name]["command"])
        port = served.router.metrics_port if name == "router" else served.nodes(Role(name)).metrics_port
        wanted.add(f"{name}:{port}")
    assert targets == wanted


@pytest.mark.parametrize("component", ["router", "prefill", "decode"])
def test_kubernetes_pods_fit_their_configs(component: str, tmp_path: Path) -> None:
    pod = manifest("Deployment", f"baton-{component}")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["args"] == ["serve", f"--config=/etc/baton/{component}.yaml"]
    path = tmp_path / "c.yaml"
    path.write_text(manifest("ConfigMap", "baton")["data"][f"{component}.yaml"])
    variables = {item["name"]: "10.0.0.9" for item in container.get("env", [])}
    config = load_config(path, environ=variables)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    if component == "router":
        router = config.router
        assert ports == {
            "grpc": router.port,
            "http": router.http.port,
            "registry": router.registry_port,
            "metrics": router.metrics_port,
        }
    else:
        nodes = config.nodes(Role(component))
        assert ports == {"grpc": nodes.port, "metrics": nodes.metrics_port}
        assert nodes.advertise_host == "10.0.0.9"
        assert config.registries == ("baton-registry:8471",)
    assert container["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": "metrics"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": "metrics"}
    assert config.supervise.stop_grace_s < pod["terminationGracePeriodSeconds"]
    assert config.router.drain_s < config.supervise.stop_grace_s


def test_nodes_find_the_router_before_it_is_ready() -> None:
    service = manifest("Service", "baton-registry")["spec"]
    assert service["publishNotReadyAddresses"] is True
    assert [port["port"] for port in service["ports"]] == [8471]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    router, node = RouterMetrics("m"), NodeMetrics("m")
    router.request_ended(RequestFigures("stop", 1, 2, 1.0))
    router.request_rejected("X")
    node.transferred("tcp", 1, 0.1)
    node.fetched(8)
    text = generate_latest(router.registry).decode() + generate_latest(node.registry).decode()
    there = set(re.findall(r"^([\w:]+)[{ ]", text, re.MULTILINE))
    board = json.loads((DEPLOY / "grafana/baton.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = set(re.findall(r"(?:vllm:|baton_)\w+", " ".join(queries)))
    assert len(asked) >= 12
    assert asked <= there


def test_the_image_runs_a_command_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    command = json.loads(next(line for line in lines if line.startswith("CMD")).removeprefix("CMD"))
    config = run_serve(monkeypatch, command)
    exposed = next(line for line in lines if line.startswith("EXPOSE")).split()[1:]
    assert {str(config.router.port), str(config.router.http.port)} <= set(exposed)
    assert 'ENTRYPOINT ["baton"]' in lines
