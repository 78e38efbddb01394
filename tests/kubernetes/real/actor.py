"""A crawler without a framework that does what its argument ``do`` says: everything that containers
can do to their observers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ARGS: dict[str, str] = json.loads(os.environ.get("CRAWL_ARGS") or "{}")
EAT = "blocks = []\nwhile True: blocks.append(bytearray(b'x' * (8 << 20)))"


def say(text: str) -> None:
    print(text, flush=True)


def tell(**counters: object) -> None:
    """Write counters, as a crawler does."""
    if path := os.environ.get("CRAWL_STATS_FILE"):
        unfinished = Path(f"{path}.new")
        unfinished.write_text(json.dumps(counters))
        unfinished.replace(path)


def finish() -> int:
    tell(pages=3, items=2, errors=1, bytes=500)
    say("three pages, two of them with something on")
    return int(ARGS.get("code", "0"))


def eat() -> int:
    say("eating")
    exec(EAT)
    return 0


def child_eats() -> int:
    done = subprocess.run([sys.executable, "-c", EAT])
    say(f"my child ended with {done.returncode}")
    return int(ARGS.get("code", "0"))


def obey() -> int:
    def leave(number: int, frame: FrameType | None) -> NoReturn:
        say("leaving as I was asked to")
        tell(pages=7, items=7, errors=0, bytes=700)
        sys.exit(11)

    signal.signal(signal.SIGTERM, leave)
    return wait()


def ignore() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return wait()


def wait() -> int:
    tell(pages=1, items=1, errors=0, bytes=100)
    say("waiting")
    while True:
        time.sleep(0.2)


def look_around() -> int:
    """Print what the container permits, as one line of JSON."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found: dict[str, Any] = {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups()}
    found |= {name: status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
    for place in (
        "/",
        "/app",
        "/etc",
        "/opt/crawl-runner",
        "/tmp",
        os.environ.get("CRAWL_FILES_DIR", "/crawl/files"),
    ):
        try:
            probe = Path(place) / "probe"
            probe.write_text("x")
            found[place] = "written"
        except OSError as error:
            found[place] = error.strerror
    found["token"] = Path("/var/run/secrets/kubernetes.io").exists()
    say(json.dumps(found))
    return 0


ACTS = {
    "finish": finish,
    "eat": eat,
    "child eats": child_eats,
    "obey": obey,
    "ignore": ignore,
    "wait": wait,
}

if __name__ == "__main__":
    sys.exit((ACTS | {"look around": look_around})[ARGS["do"]]())
