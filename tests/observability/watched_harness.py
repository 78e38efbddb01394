"""The three services as real processes on a real Temporal server, with canaries wherever a secret
goes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]

PASSWORD = "canary-scheduler-password-8"
#: Where each secret enters. Every value is a canary, which must not appear anywhere.
CANARIES = {
    "LIFECYCLE_GATEWAY__TOKEN": "canary-gateway-token-1",
    "LIFECYCLE_GATEWAY__TASK_KEY": "canary/task+key=2/of/at+least/32/bytes",
    "LIFECYCLE_PUSHER__SECRET": "canary-pusher-secret-3",
    "AWS_SECRET_ACCESS_KEY": "canary/aws+secret/4",
    "AWS_SESSION_TOKEN": "canary-aws-session-5",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-key=canary-otlp-header-6",
    "CRAWL_SHOP_LOGIN": "canary-crawler-login-7",
    "SCHEDULER_PASSWORD": PASSWORD,
}
VALUES = [value.removeprefix("x-key=") for value in CANARIES.values()]

CATALOGUE = """
- name: good
  kind: command
  command: [python, -c, "import time; time.sleep(0.5); print('done')"]
  secrets: {LOGIN: "env:CRAWL_SHOP_LOGIN"}
- name: bad
  kind: command
  command: [python, -c, "import sys, time; time.sleep(0.3); sys.exit(9)"]
  secrets: {LOGIN: "env:CRAWL_SHOP_LOGIN"}
- name: long
  kind: command
  command: [python, -c, "import time; time.sleep(600)"]
  secrets: {LOGIN: "env:CRAWL_SHOP_LOGIN"}
"""


def reserve_port() -> socket.socket:
    """Reserve a port, which nobody else gets while this is open; a server may bind it by number."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def get(url: str) -> str:
    """Return the body of a page, or nothing while nobody responds."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def until(condition: Callable[[], T], seconds: float = 150) -> T:
    """Return the first true value of ``condition``."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {value!r}"
        time.sleep(0.05)
    return value


class Collector(ThreadingHTTPServer):
    """An OTLP endpoint that stores what it receives."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        received = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Any]:
        """Return every received span, with its resource."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        found = []
        for body in self.bodies:
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                found += [span for scope in group.scope_spans for span in scope.spans]
        return found


@dataclass
class Watched:
    """The processes, and their output."""

    folder: Path
    temporal: str
    namespace: str
    collector: Collector
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._held = {
            name: reserve_port() for name in ("health", "metrics", "scheduler", "gateway")
        }
        self.ports = {name: int(held.getsockname()[1]) for name, held in self._held.items()}
        (self.folder / "crawlers.yaml").write_text(CATALOGUE)
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TEMPORAL_", "LIFECYCLE_", "OTEL_"))
        }
        self.env = {
            **clean,
            **CANARIES,
            "TEMPORAL_ADDRESS": self.temporal,
            "TEMPORAL_NAMESPACE": self.namespace,
            "TEMPORAL_WORKER_BUILD_ID": "build-of-the-tests",
            "LIFECYCLE_DATABASE__URL": f"sqlite:///{self.folder / 'runs.db'}",
            "LIFECYCLE_CLUSTER__STATE_DIR": str(self.folder / "cluster"),
            "LIFECYCLE_CATALOGUE": str(self.folder / "crawlers.yaml"),
            "LIFECYCLE_ARCHIVE__URL": (self.folder / "archive").as_uri(),
            "LIFECYCLE_EVENTS__URL": (self.folder / "events.jsonl").as_uri(),
            "LIFECYCLE_SCHEDULER__URL": f"http://me:{PASSWORD}@127.0.0.1:{self.ports['scheduler']}",
            "LIFECYCLE_SCHEDULER__PORT": str(self.ports["scheduler"]),
            "LIFECYCLE_WORKER__HEALTH_PORT": str(self.ports["health"]),
            "LIFECYCLE_WORKER__METRICS_PORT": str(self.ports["metrics"]),
            "LIFECYCLE_GATEWAY__URL": f"http://127.0.0.1:{self.ports['gateway']}",
            "LIFECYCLE_GATEWAY__PORT": str(self.ports["gateway"]),
            "LIFECYCLE_GATEWAY__AUTH_DISABLED": "true",
            # One runs every quarter of an hour by the clock, and concerns no run.
            "LIFECYCLE_AUDIT__INTERVAL_S": "0",
            "LIFECYCLE_LOG__LEVEL": "DEBUG",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }

    def start(self, name: str) -> None:
        """Start a service by its verb, with its own output file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "crawler_lifecycle.cli", name], cwd=self.folder, env=self.env,
                stdout=log, stderr=log,
            )  # fmt: skip
        port = self.ports["health" if name == "worker" else name]
        until(
            lambda: (
                '"ready":true' in get(f"http://127.0.0.1:{port}/readyz").replace(" ", "")
                or self.died(name)
            )
        )

    def died(self, name: str) -> bool:
        code = self.processes[name].poll()
        assert code is None, (code, self.log(name))
        return False

    def stop(self) -> None:
        """Send SIGTERM to all, and wait."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(120)
        for held in self._held.values():
            held.close()
        self.collector.shutdown()
        self.collector.server_close()

    def end(self, *which: str) -> None:
        """Send SIGTERM to some, which then send their last spans."""
        for name in which:
            self.processes[name].send_signal(signal.SIGTERM)
            assert self.processes[name].wait(120) == 0, self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return every line that a process wrote, each one JSON."""
        return [json.loads(line) for line in self.log(name).rpartition("\n")[0].splitlines()]

    def scrape(self, name: str = "metrics") -> str:
        return get(f"http://127.0.0.1:{self.ports[name]}/metrics")

    def value(self, metric: str, **labels: str) -> float:
        """Return the sum over all series of a metric that have these labels."""
        total = 0.0
        for line in self.scrape().splitlines():
            found = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line)
            if (
                found
                and found[1] == metric
                and all(f'{k}="{v}"' in found[2] for k, v in labels.items())
            ):
                total += float(found[3])
        return total
