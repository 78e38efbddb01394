"""The site that the crawls of ``polite`` visit. It writes down what reaches it.

``python -m benchmarks.polite_site PORT CONTROL_PORT`` listens on loopback. Each page answers after
20 to 80 ms and links to three pages that nobody has seen yet. The control port has ``/close?for=S``,
after which the site answers 429 with ``Retry-After`` for S seconds, ``/slow?by=S``, after which
each answer takes S seconds longer, ``/hosts?name=A&name=B``, after which its pages link to these
hosts, to odd statuses and to redirects between the hosts, and ``/journal``, which returns
everything since the last call as JSON. Any other path returns how many requests that is. All times
are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

ANSWER_S = (0.02, 0.08)
LINKS = 3
#: A status that HTTP does not define, and the kinds of pages at several hosts.
ODD = 999
KINDS = ("p", "p", "moved", "odd")
#: Each is a separate site for crawlers.
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
#: The maximum number of bytes of an unfinished request, after which its connection is closed.
HEAD_MAX = 65_536


@dataclass(slots=True)
class Site:
    """What the site has seen, and until when it is closed."""

    requests: list[list[Any]] = field(default_factory=list)
    """Arrival, end of the answer or null, status, path, user agent, and host."""
    connections: list[list[float | None]] = field(default_factory=list)
    """Begin, and end or null."""
    closings: list[list[float]] = field(default_factory=list)
    """Begin and end."""
    slow_s: float = 0.0
    hosts: list[str] = field(default_factory=list)
    pages: itertools.count[int] = field(default_factory=itertools.count)
    delays: random.Random = field(default_factory=lambda: random.Random(65))

    def answer(self, path: str, port: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body. ``port`` is where the site listens."""
        until = self.closings[-1][1] if self.closings else 0.0
        left = until - time.monotonic()
        if left > 0:
            return 429, {"Retry-After": str(math.ceil(left))}, "slow down"
        if path == "/robots.txt":
            return 200, {"Content-Type": "text/plain"}, "User-agent: *\nDisallow:\n"
        if path.startswith("/moved/"):
            return 302, {"Location": self._link(port, ["p"])}, ""
        links = "".join(f"<a href='{self._link(port, KINDS)}'>next</a>" for _ in range(LINKS))
        status = ODD if path.startswith("/odd/") else 200
        return status, {"Content-Type": "text/html"}, f"<title>{path}</title>{links}"

    def _link(self, port: str, kinds: Sequence[str]) -> str:
        """Return the address of a page that nobody has seen yet, at the next host."""
        number = next(self.pages)
        if not self.hosts:
            return f"/p/{number}"
        host = self.hosts[number % len(self.hosts)]
        return f"http://{host}:{port}/{kinds[number // len(self.hosts) % len(kinds)]}/{number}"

    def close(self, seconds: float) -> dict[str, float]:
        """Answer 429 from now on, for this time."""
        now = time.monotonic()
        self.closings.append([now, now + seconds])
        return {"at": now}

    def take(self) -> dict[str, Any]:
        """Return the journal, and begin another one. What is still open is in both."""
        taken = {
            "requests": self.requests,
            "connections": self.connections,
            "closings": self.closings,
        }
        self.requests = [one for one in self.requests if one[1] is None]
        self.connections = [one for one in self.connections if one[1] is None]
        self.closings = [one for one in self.closings if one[1] > time.monotonic()]
        return taken


class Connection(asyncio.Protocol):
    """One connection of a crawler."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.read = b""
        self.transport: asyncio.Transport
        self.entry: list[float | None]
        self.asked: list[list[Any]] = []
        """The entries of requests without an answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.entry = [time.monotonic(), None]
        self.site.connections.append(self.entry)

    def connection_lost(self, error: Exception | None) -> None:
        now = time.monotonic()
        self.entry[1] = now
        for entry in self.asked:
            entry[1] = now

    def data_received(self, data: bytes) -> None:
        self.read += data
        while b"\r\n\r\n" in self.read:
            head, _, self.read = self.read.partition(b"\r\n\r\n")
            self._begin(head.decode("latin-1"))
        if len(self.read) > HEAD_MAX:
            self.transport.close()

    def _begin(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        path = urlsplit(first.split(" ")[1]).path
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        host, _, port = headers.get("host", "").partition(":")
        status, answered, body = self.site.answer(path, port)
        entry = [time.monotonic(), None, status, path, headers.get("user-agent", ""), host]
        self.site.requests.append(entry)
        self.asked.append(entry)
        keep = headers.get("connection", "").lower() != "close"
        answered |= {"Content-Length": str(len(body))} | ({} if keep else {"Connection": "close"})
        written = "".join(f"{name}: {value}\r\n" for name, value in answered.items())
        text = f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}\r\n{written}\r\n{body}"
        delay = self.site.delays.uniform(*ANSWER_S) + self.site.slow_s
        asyncio.get_running_loop().call_later(delay, self._end, entry, text.encode(), keep)

    def _end(self, entry: list[Any], text: bytes, keep: bool) -> None:
        if self.transport.is_closing():
            return
        entry[1] = time.monotonic()
        self.asked.remove(entry)
        self.transport.write(text)
        if not keep:
            self.transport.close()


async def _control(site: Site, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one call of the benchmark."""
    head = await reader.readuntil(b"\r\n\r\n")
    url = urlsplit(head.decode("latin-1").split(" ")[1])
    if url.path == "/close":
        told: dict[str, Any] = site.close(float(parse_qs(url.query)["for"][0]))
    elif url.path == "/slow":
        site.slow_s = float(parse_qs(url.query)["by"][0])
        told = {}
    elif url.path == "/hosts":
        site.hosts = parse_qs(url.query)["name"]
        told = {}
    elif url.path == "/journal":
        told = site.take()
    else:
        told = {"requests": len(site.requests)}
    body = json.dumps(told).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body))
    writer.write(b"Connection: close\r\n\r\n" + body)
    await writer.drain()
    writer.close()


async def main(port: int, control: int) -> None:
    """Serve until the process ends."""
    # The times in the journal are those of this process, which must not wait behind forty crawlers.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    site = Site()
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(site), ADDRESSES, port, backlog=1024)
    server = await asyncio.start_server(
        lambda reader, writer: _control(site, reader, writer), "127.0.0.1", control
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
