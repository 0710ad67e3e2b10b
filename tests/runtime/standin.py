"""A child process that stands in for a node: does what its first argument says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from baton.core.errors import InvalidArgument
from baton.runtime.child import NodeStart, Ready, read_start
from baton.runtime.ready import report_failed, report_ready


def main(mode: str, *args: str) -> None:
    if mode == "dies-early":
        sys.exit(7)
    if mode == "silent":
        time.sleep(60)
    start = read_start(NodeStart)
    match mode:
        case "fails":
            report_failed(InvalidArgument("no such model", field="model"))
            time.sleep(60)  # its parent ends it
        case "rubbish":
            os.write(int(os.environ["BATON_READY_FD"]), b"hello\n")
            time.sleep(60)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            serve(start)
        case "with-grandchild":
            grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            Path(args[0]).write_text(str(grandchild.pid))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            serve(start)
        case "dies-later":
            report_ready(Ready(address="127.0.0.1:1"))
            sys.exit(3)
        case "dies-once":
            first = not Path(args[0]).exists()
            Path(args[0]).touch()
            report_ready(Ready(address=f"127.0.0.1:{1 if first else 2}"))
            time.sleep(0 if first else 60)
        case "serves":
            serve(start)


def serve(start: NodeStart) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    report_ready(Ready(address=f"{start.node_id}:{os.getpid()}"))
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
