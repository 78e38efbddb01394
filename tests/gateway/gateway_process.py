"""A gateway in a process of its own."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Collects no garbage during its imports, like `crawlctl gateway`. It is no outage if a starved
#: machine delays Temporal or the database.
CODE = """
import gc, os, sys
gc.disable()
from crawler_lifecycle.gateway import health
from crawler_lifecycle.gateway.serve import serve
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.settings import Settings
health.READY_TIMEOUT_S = 60.0
Workflows.__init__.__kwdefaults__["timeout_s"] = 60.0
gc.freeze()
gc.enable()
code = serve(Settings.load())
sys.stderr.flush()
os._exit(code)
"""
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Gateway:
    """A running gateway."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Settings of a gateway without authentication.

    Nobody listens on port 9, so Temporal and the scheduler service are down.
    """
    return {
        "PATH": os.environ["PATH"],
        "TEMPORAL_ADDRESS": "127.0.0.1:9",
        "LIFECYCLE_GATEWAY__PORT": "0",
        "LIFECYCLE_GATEWAY__AUTH_DISABLED": "true",
        "LIFECYCLE_SCHEDULER__URL": "http://127.0.0.1:9",
        "LIFECYCLE_DATABASE__URL": f"sqlite:///{folder}/missing/runs.db",
        **more,
    }


@contextmanager
def gateway(settings: dict[str, str], folder: Path) -> Iterator[Gateway]:
    """Start a gateway and wait until it listens; kill it at the end."""
    log = folder / f"gateway-{next(_numbers)}.log"
    with log.open("wb") as sink:
        # Into a file: a pipe that nobody reads would block it.
        process = subprocess.Popen(
            [sys.executable, "-c", CODE], env=settings, stderr=sink, cwd=folder
        )
    try:
        until = time.monotonic() + 150
        while not (found := re.search(r"listens on (http://[^\s\"]+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.02)
        yield Gateway(process, found[1], log)
    finally:
        process.kill()
        process.wait()


def refused(settings: dict[str, str], folder: Path) -> str:
    """Return the output of a gateway that does not start."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=settings,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr
