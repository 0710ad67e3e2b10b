"""A target in a process of its own, for tests that stop or kill it. One JSON line per answer.

python target_process.py KIND       commands on stdin: open ID SOURCE BLOCK...   |   count VALUE
python target_process.py segments DIRECTORY BYTES    on each line a child that makes a segment and waits
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from baton.kv_transfer.segment import SharedPool
from tests.kv_transfer.rig import LARGE, Rig


def serve(kind: str) -> None:
    rig = Rig(kind)
    node = rig.node(f"pid-{os.getpid()}", LARGE, fill=0.0)
    peer = node.peer()
    say(
        {"incarnation": peer.incarnation, "layout": asdict(peer.layout), "params": dict(peer.endpoint.params)}
    )
    for line in sys.stdin:
        command, *words = line.split()
        if command == "open":
            node.transport.open(int(words[0]), words[1], [int(word) for word in words[2:]])
            say({})
        else:
            say({"count": int((node.tensor == float(words[0])).sum())})
    rig.close()


def make_segments(directory: Path, nbytes: int) -> None:
    """Forks (before any thread exists) because twenty imports of torch would take half a minute."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    say({})
    for _ in sys.stdin:
        if (pid := os.fork()) == 0:
            shared = SharedPool.create(nbytes, "someone", directory)
            written = directory / f"written-{os.getpid()}"
            written.write_text(shared.path.name)
            written.rename(directory / f"ready-{os.getpid()}")  # whoever sees it can read all of it
            signal.pause()
        say({"pid": pid})


def say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "segments":
        make_segments(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        serve(sys.argv[1])
