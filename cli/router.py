"""Process entry of a router: `python -m baton.cli.router`, started by the launcher with a RouterStart."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys

import structlog
import uvloop

from baton.core.errors import BatonError
from baton.engine.weights.locate import locate
from baton.engine.weights.vocabulary import tokenizer_digest
from baton.router.app import RouterApp, RouterSettings
from baton.router.http.keys import ApiKeys, read_keys
from baton.router.http.server import HttpOptions
from baton.router.machine_config import RouterConfig
from baton.router.planner import PlannerConfig
from baton.router.text.load import load_tokenizer
from baton.runtime.addresses import join_address, reachable, split_address
from baton.runtime.child import Ready, RouterStart, read_start
from baton.runtime.config import RouterConfig as RouterSection
from baton.runtime.config import effective_json
from baton.runtime.grpc_channel import TransportOptions
from baton.runtime.health import Health, HealthServer
from baton.runtime.logs import configure_logs
from baton.runtime.ready import report_failed, report_ready

log = structlog.get_logger(__name__)

READY_POLL_S = 0.1

# Long prompts are tokenized and checked on threads, which must not keep the event loop waiting.
SWITCH_INTERVAL_S = 0.0005


class RouterProcess:
    """A RouterApp with its probes. `start`, `run` until told to stop, `stop` in every case."""

    def __init__(self, start: RouterStart) -> None:
        self._start = start
        self._health = Health()
        self._server: HealthServer | None = None
        self._app: RouterApp | None = None
        self._probe: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> Ready:
        """BatonError says what is wrong with the model's files or the ports."""
        config = self._start.config
        path = await asyncio.to_thread(locate, config.model)
        tokenizer = await asyncio.to_thread(load_tokenizer, str(path))
        digest = await asyncio.to_thread(tokenizer_digest, path)
        self._app = app = RouterApp(settings(self._start, digest), tokenizer)
        if config.metrics.enabled:
            self._server = HealthServer(
                self._health, app.metrics.registry, config.metrics.host, self._start.metrics_port
            )
        await app.start()
        self._health.watch_loop()
        self._probe = asyncio.create_task(self._follow(app))
        return Ready(
            address=self._reachable(app.address, None),
            http=self._reachable(app.http_address, None) if app.http_address else "",
            registry=self._reachable(app.registry_address, config.router.advertise_host),
            metrics=self._server.address if self._server else "",
        )

    async def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._stopping.wait()

    async def stop(self) -> None:
        """Finish what runs within `router.drain_s`, then go."""
        if self._probe is not None:
            self._probe.cancel()
        self._health.set_not_ready("draining")
        if self._app is not None and self._probe is not None:
            await self._app.stop(self._start.config.router.drain_s)
        await self._health.stop()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)

    async def _follow(self, app: RouterApp) -> None:
        """Ready as long as some pair of nodes could take a request."""
        while True:
            if trouble := app.trouble():
                self._health.set_not_ready(trouble)
            else:
                self._health.set_ready()
            await asyncio.sleep(READY_POLL_S)

    @staticmethod
    def _reachable(address: str, advertise_host: str | None) -> str:
        host, port = split_address(address)
        return join_address(reachable(host, advertise_host), port)


def settings(start: RouterStart, digest: str = "") -> RouterSettings:
    """What the app is told, from the deployment's configuration. digest: of the router's own vocabulary, that
    of every node must equal it; "": those of the nodes must equal each other."""
    config = start.config
    router = config.router
    return RouterSettings(
        model=config.name,
        host=router.host,
        port=start.port,
        reuse_port=start.share_port,
        processes=router.processes,
        http=_http(start),
        registry_host=router.registry_host,
        registry_port=start.registry_port,
        transport=TransportOptions(**config.grpc.model_dump()),
        machine=machine_config(router, start.index, fetch=config.transfer.fetch),
        default_timeout_s=router.default_timeout_s,
        joining_s=router.lease_s,  # nodes come round several times in one
        tokenizer_digest=digest,
        event_log=_event_log(router.event_log, start.index),
        config_json=effective_json(config),
        process=start.name,
    )


def _http(start: RouterStart) -> HttpOptions | None:
    """InvalidArgument: the file of keys."""
    router = start.config.router
    if not router.http.enabled:
        return None
    path = router.http.api_keys_file
    keys = ApiKeys() if path is None else read_keys(path)
    return HttpOptions(router.http.host or router.host, start.http_port, start.share_port, keys)


def machine_config(router: RouterSection, index: int, *, fetch: bool = True) -> RouterConfig:
    """Of the router process with that number: only the first one plans roles."""
    planner = router.planner
    plans = PlannerConfig(
        every_s=planner.every_s,
        patience=planner.patience,
        pause_s=planner.pause_s,
        horizon_s=planner.horizon_s,
    )
    return RouterConfig(
        lease_s=router.lease_s,
        max_queued=router.queue_limit,
        max_node_wait_s=router.max_node_wait_s,
        max_retries=router.max_retries,
        order=router.order,
        ttft_s=router.slo.ttft_s,
        tpot_s=router.slo.tpot_s,
        admission=router.admission.policy,
        least_chance=router.admission.least_chance,
        planner=plans if planner.enabled and index == 0 else None,
        fetch=fetch,
    )


def _event_log(path: str | None, index: int) -> str:
    """Each router process has a file of its own."""
    return "" if path is None else path if index == 0 else f"{path}.{index}"


async def _serve(start: RouterStart) -> int:
    process = RouterProcess(start)
    try:
        try:
            ready = await process.start()
        except (BatonError, OSError) as error:
            log.debug("the router cannot start", reason=str(error))
            report_failed(error)
            return 1
        report_ready(ready)
        gc.collect()
        gc.freeze()  # what was loaded stays: collections need not look at it, which takes a tenth of a second
        await process.run()
        return 0
    finally:
        await process.stop()


def main() -> None:
    """Run one router until a signal ends it."""
    start = read_start(RouterStart)
    configure_logs(start.config.logging, start.name)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sys.exit(uvloop.run(_serve(start)))


if __name__ == "__main__":
    main()
