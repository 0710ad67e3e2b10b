"""A launcher process that starts two stand-in children, prints their pids and waits."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from baton.core.load import Role
from baton.runtime.child import NodeStart
from baton.runtime.config import load_config
from baton.runtime.logs import configure_logs
from baton.runtime.process import Program
from baton.runtime.supervisor import Supervisor


async def main() -> None:
    config = load_config()
    configure_logs(config.logging, "launcher")
    supervisor = Supervisor(config.supervise)
    program = Program((str(Path(__file__).with_name("standin.py")), "stubborn"))
    for index in range(2):
        start = NodeStart(
            role=Role.PREFILL, index=index, node_id="n", config=config, registries=(), threads=1
        )
        member = await supervisor.start(program, start)
        assert member.child is not None
        print(member.child.pid, flush=True)
    os.close(1)
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main())
