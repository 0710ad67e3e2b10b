"""Process entry of a node: `python -m baton.cli.node`, started by the launcher with a NodeStart message."""

from __future__ import annotations

import os
import sys

import structlog
import uvloop

from baton.core.errors import BatonError
from baton.node.app import NodeApp
from baton.runtime.child import NodeStart, read_start
from baton.runtime.logs import configure_logs
from baton.runtime.ready import report_failed, report_ready

log = structlog.get_logger(__name__)

# The event loop must get a turn between the engine's Python parts, or tokens wait for whole steps.
SWITCH_INTERVAL_S = 0.0005


async def _serve(start: NodeStart) -> int:
    app = NodeApp(start)
    try:
        try:
            ready = await app.start()
        except (BatonError, OSError) as error:
            log.debug("the node cannot start", reason=str(error))
            report_failed(error)
            return 1
        report_ready(ready)
        await app.run()
        if app.fault is not None:
            return 1
        await app.drain(start.config.router.drain_s)
        return 0
    finally:
        await app.stop()
        if app.engine_hangs:
            os._exit(1)  # a thread that never returns would keep the interpreter from ending


def main() -> None:
    start = read_start(NodeStart)
    configure_logs(start.config.logging, start.name)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sys.exit(uvloop.run(_serve(start)))


if __name__ == "__main__":
    main()
