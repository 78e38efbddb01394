"""Starts the demonstration site as a real process, for the tests in this folder."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """The response for one address; redirects are not followed."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class RunningSite:
    """A running site and its process."""

    url: str
    process: subprocess.Popen[str]

    def get(self, path: str) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read().decode())

    def requests(self) -> dict[str, int]:
        """Return how often each part of the site was requested."""
        counters: dict[str, int] = json.loads(self.get("/healthz").text)["requests"]
        return counters


@contextlib.contextmanager
def running_site(*options: str) -> Iterator[RunningSite]:
    """Start a site on a free port, and end it in any case."""
    command = [sys.executable, "-m", "examples.site", "--port", "0", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), (
                f"the site did not start (exit code {process.poll()})"
            )
            yield RunningSite(url, process)
        finally:
            process.kill()
