"""Forward proxy on loopback that keeps the limits of sites for crawlers that do not ask for leases.

``crawl_runner_proxy.py [--port N] -- COMMAND...`` starts the proxy as a child process, and becomes
COMMAND, so that process id, signals and exit code are those of the crawler. Without a command, it
prints the address of the proxy, and serves until a signal ends it.

A plain HTTP request holds a lane of its site until its response has ended, and one for robots.txt
gets the file that one task fetches for all. A tunnel (CONNECT, for HTTPS) holds a lane as long as
it is open, because nobody sees the requests inside.

It needs only the standard library, like all parts of the runner, so that it works in each image.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hmac
import http.client
import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from crawl_runner_heads import HEAD_MAX, MessageHead, Refusal, RequestTarget, body_size, read_head
from crawl_runner_leases import SiteLeases
from crawl_runner_retry_after import response_wait
from crawl_runner_robots import SharedRobots
from crawl_runner_turns import known_robots, turn_at

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
EXCEPTIONS = ("NO_PROXY", "no_proxy")
#: The maximum number of connections of the crawler.
CONNECTIONS_MAX = 400
#: Seconds for the crawler to send a head, and for a site to accept a connection.
HEAD_S = 30.0
CONNECT_S = 30.0
#: Seconds for which a request waits until its site allows it.
WAIT_S = 600.0
#: Seconds without any data after which a connection ends.
SILENCE_S = 300.0
#: A tunnel is idle if nothing has come for ``IDLE_S`` seconds after the site last sent something.
#: An idle tunnel ends if a request here waits for its lane, or if it is older than ``TUNNEL_S``
#: seconds, because other tasks may wait. A shorter ``IDLE_S`` would cut responses of slow sites.
TUNNEL_S = 4.0
IDLE_S = 1.0
#: Seconds between two checks whether the crawler is still running.
ALIVE_S = 0.25
_CHUNK = 64 * 1024


class Proxy:
    """The proxy. Each connection carries one request, or one tunnel."""

    def __init__(self, leases: SiteLeases, password: str) -> None:
        self._leases = leases
        self._robots = SharedRobots(leases)
        self._password = _basic(f"crawler:{password}")
        self._connections = 0
        self._waiting: Counter[str] = Counter()
        """The number of requests that wait for a lane, by host."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._connections += 1
        full = self._connections > CONNECTIONS_MAX
        try:
            await self._serve(reader, writer, full=full)
        except Refusal as refusal:
            with contextlib.suppress(OSError):
                await _answer(writer, refusal.status, f"crawl proxy: {refusal}\n".encode())
        except (OSError, EOFError, asyncio.TimeoutError):  # noqa: UP041 (Python 3.9)
            pass  # one of the two has gone, and the other one sees that its connection ends
        finally:
            self._connections -= 1
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, full: bool
    ) -> None:
        try:
            head = await asyncio.wait_for(read_head(reader), HEAD_S)
        except ValueError as error:
            raise Refusal("431 Request Header Fields Too Large", str(error)) from None
        if full:
            raise Refusal("503 Service Unavailable", f"more than {CONNECTIONS_MAX} connections")
        given = head.get("proxy-authorization") or ""
        if not hmac.compare_digest(given.encode(), self._password.encode()):
            text = "use the user and the password of the variable HTTP_PROXY"
            raise Refusal("407 Proxy Authentication Required", text)
        exchange = Exchange(head, RequestTarget.of(head), reader, writer)
        host = exchange.target.host
        self._robots.agent = head.get("user-agent") or self._robots.agent
        scheme = "http" if exchange.target.path else "https"
        self._robots.visit(scheme, exchange.target.authority)
        if exchange.target.path == "/robots.txt" and exchange.target.method == "GET":
            known = await known_robots(self._robots, scheme, exchange.target.authority)
            if known is not None:
                status = f"{known.status} {http.client.responses.get(known.status, '')}"
                await _answer(writer, status, known.body)
                return
        lane = await self._turn(exchange)
        returns_at = time.monotonic() + TUNNEL_S

        def wanted() -> bool:
            return self._waiting[host] > 0 or time.monotonic() > returns_at

        try:
            await exchange.carry(wanted if self._leases.is_exclusive(host) else None)
        finally:
            self._leases.end(host, lane, exchange.status, exchange.retry_after)
            if exchange.response is not None:
                self._robots.note(scheme, exchange.target.authority, exchange.response.get)

    async def _turn(self, exchange: Exchange) -> int | None:
        """Wait until the request may begin, and return its lane. Raises ``EOFError`` if the crawler
        does not wait any more.
        """
        host = exchange.target.host
        turn: asyncio.Future[int | None] = asyncio.ensure_future(turn_at(self._leases, host))
        until = time.monotonic() + WAIT_S
        self._waiting[host] += 1
        try:
            while not turn.done():
                await asyncio.wait({turn}, timeout=1.0)
                if exchange.abandoned:
                    raise EOFError
                if time.monotonic() > until:
                    text = f"{host} has allowed no request for {WAIT_S:.0f} s"
                    raise Refusal("503 Service Unavailable", text)
            return turn.result()
        except BaseException:
            if turn.done():
                self._leases.abandon(host, turn.result())
            turn.cancel()
            raise
        finally:
            self._waiting[host] -= 1


class Exchange:
    """One request or tunnel, between the crawler and a site."""

    def __init__(
        self,
        head: MessageHead,
        target: RequestTarget,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.target = target
        self.status: int | None = None
        """The status of the response; 200 for a tunnel through which the site has sent data."""
        self.retry_after: float | None = None
        self.response: MessageHead | None = None
        self._head = head
        self._body = body_size(head)
        self._reader = reader
        self._writer = writer
        self._moved_at = time.monotonic()
        self._answered = False
        """True if the crawler has got the beginning of a response."""
        self._idle = False
        """True if the last data came from the site."""

    @property
    def abandoned(self) -> bool:
        """True if the crawler has closed its connection."""
        return self._reader.at_eof() or self._reader.exception() is not None

    async def carry(self, wanted: Callable[[], bool] | None) -> None:
        """Connect to the site, and carry everything until one of the two sides ends.

        An idle tunnel ends if ``wanted`` says that others want its lane; it is ``None`` if the site
        does not limit connections. Raises ``Refusal`` if the crawler has got nothing of a response,
        and else ``EOFError``.
        """
        try:
            await self._carry(wanted)
        except Refusal as refusal:
            if self._answered:
                raise EOFError from refusal
            raise

    async def _carry(self, wanted: Callable[[], bool] | None) -> None:
        tunnel = self.target.method == "CONNECT"
        streams = await self._connect()
        reader = streams[0]
        writer = streams[1]
        try:
            if tunnel:
                await self._send(self._writer, b"HTTP/1.1 200 Connection established\r\n\r\n")
                down = self._download(reader)
                up = self._upload(writer, None)
            else:
                down = self._respond(reader)
                up = self._upload(writer, self._body)
            await self._until_one_ends(down, up, wanted if tunnel else None)
        finally:
            # Nobody waits for what is still to be sent, and the lane belongs to others next.
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the site or to the proxy before it. Send the head of a plain request."""
        target = self.target
        tunnel = target.method == "CONNECT"
        try:
            proxy = (
                None if proxy_bypass(target.authority) else _proxy("https" if tunnel else "http")
            )
            address = (target.host, target.port) if proxy is None else proxy.address
            streams = await asyncio.wait_for(
                asyncio.open_connection(*address, limit=HEAD_MAX), CONNECT_S
            )
        except (OSError, ValueError, asyncio.TimeoutError) as error:  # noqa: UP041 (Python 3.9)
            reason = str(error) or f"no answer within {CONNECT_S:.0f} s"
            text = f"cannot connect to {target.authority}: {reason}"
            raise Refusal("502 Bad Gateway", text) from None
        if proxy is None and not tunnel:
            line = f"{target.method} {target.path} HTTP/1.1"
            streams[1].write(self._head.closing(line))
        elif proxy is not None and not tunnel:
            streams[1].write(self._head.closing(self._head.first, *proxy.headers))
        elif proxy is not None:
            await _ask_for_tunnel(streams, target, proxy)
        return streams

    async def _until_one_ends(
        self, down: Awaitable[None], up: Awaitable[None], wanted: Callable[[], bool] | None
    ) -> None:
        tasks = {asyncio.ensure_future(down), asyncio.ensure_future(up)}
        try:
            ended: set[asyncio.Future[None]] = set()
            while not ended:
                ended, _ = await asyncio.wait(
                    tasks,
                    timeout=SILENCE_S if wanted is None else IDLE_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                now = time.monotonic()
                idle = self._idle and now - self._moved_at > IDLE_S
                if wanted is not None and idle and wanted():
                    return
                if now - self._moved_at > SILENCE_S:
                    raise Refusal("504 Gateway Timeout", f"no data for {SILENCE_S:.0f} s")
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _upload(self, writer: asyncio.StreamWriter, most: int | None) -> None:
        """Send what the crawler sends, at most this number of bytes, until the crawler ends."""
        while data := await self._reader.read(_CHUNK):
            sent = data if most is None else data[:most]
            most = None if most is None else most - len(sent)
            self._idle = False
            try:
                await self._send(writer, sent)
            except OSError:
                # The site has closed its end, but it may have sent a response before.
                most = 0

    async def _respond(self, reader: asyncio.StreamReader) -> None:
        """Send the site's response to the crawler."""
        informs = True
        while informs:
            try:
                head = await read_head(reader)
                status = int(head.first.split(" ")[1])
            except (ValueError, IndexError, EOFError, OSError) as error:
                text = f"{self.target.host} did not answer with HTTP/1.1: {error}"
                raise Refusal("502 Bad Gateway", text) from None
            informs = 100 <= status < 200
            sent = (
                f"{head.first}\r\n\r\n".encode("latin-1") if informs else head.closing(head.first)
            )
            await self._send(self._writer, sent)
        self.status = status
        self.response = head
        self.retry_after = response_wait(head.get("retry-after"), head.get("date"))
        await self._download(reader)

    async def _download(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_CHUNK):
            self._idle = True
            self.status = self.status or 200
            await self._send(self._writer, data)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self._moved_at = time.monotonic()
        self._answered = self._answered or writer is self._writer
        writer.write(data)
        await writer.drain()


class ParentProxy(NamedTuple):
    """The proxy behind this one."""

    address: tuple[str, int]
    headers: list[tuple[str, str]]


def _proxy(scheme: str) -> ParentProxy | None:
    """Return the proxy of the environment. Raises ``ValueError`` for an address that is invalid."""
    url = getproxies().get(scheme)
    if not url:
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"the {scheme}_proxy of the environment has to begin with http://")
    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    headers = [("Proxy-Authorization", _basic(user))] if parts.username else []
    return ParentProxy((parts.hostname, parts.port or 80), headers)


async def _ask_for_tunnel(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    target: RequestTarget,
    proxy: ParentProxy,
) -> None:
    line = f"CONNECT {target.authority} HTTP/1.1"
    head = MessageHead(line, []).closing(line, ("Host", target.authority), *proxy.headers)
    streams[1].write(head)
    try:
        answer = await asyncio.wait_for(read_head(streams[0]), CONNECT_S)
        first = answer.first
    except (OSError, ValueError, EOFError, asyncio.TimeoutError):  # noqa: UP041 (Python 3.9)
        first = "nothing"
    if first.split(" ")[1:2] != ["200"]:
        streams[1].close()
        raise Refusal("502 Bad Gateway", f"the proxy of the environment says {first}")


def _basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


async def _answer(writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
    """Send a response of the proxy itself."""
    head = MessageHead(
        "", [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    )
    if status.startswith("407"):
        head.headers.append(("Proxy-Authenticate", "Basic realm=crawl"))
    writer.write(head.closing(f"HTTP/1.1 {status}") + body)
    await asyncio.wait_for(writer.drain(), HEAD_S)


async def _run(listener: socket.socket, password: str, crawler: int | None) -> NoReturn:
    """Serve, and exit when a signal comes, or when our parent ``crawler`` has ended."""
    leases = SiteLeases(os.environ["CRAWL_LEASES_URL"], os.environ["CRAWL_LEASES_TOKEN"])
    stopped = asyncio.Event()
    if crawler is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = await asyncio.start_server(
        Proxy(leases, password).serve, sock=listener, limit=HEAD_MAX
    )
    while not stopped.is_set() and (crawler is None or os.getppid() == crawler):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopped.wait(), ALIVE_S)
    server.close()
    leases.close()
    # Without a report about each connection that is still open.
    os._exit(0)


def main(argv: list[str]) -> None:
    """Start the proxy, and become the command, if there is one."""
    parser = argparse.ArgumentParser(prog="crawl_runner_proxy.py", description="Forward proxy.")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: any)")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the crawler")
    chosen = parser.parse_args(argv)
    for name in ("CRAWL_LEASES_URL", "CRAWL_LEASES_TOKEN"):
        if not os.environ.get(name):
            sys.exit(
                f"crawl proxy: {name} is not set; use the proxy in the command of a crawler, and "
                "set LIFECYCLE_GATEWAY__TASK_KEY for the scheduler service"
            )
    try:
        listener = socket.create_server(("127.0.0.1", chosen.port), backlog=CONNECTIONS_MAX)
    except (OSError, OverflowError) as error:
        sys.exit(f"crawl proxy: --port: {chosen.port} cannot be used: {error}")
    password = secrets.token_urlsafe(16)
    address = f"http://crawler:{password}@127.0.0.1:{listener.getsockname()[1]}"
    if not chosen.command:
        print(address, flush=True)
        asyncio.run(_run(listener, password, None))
    crawler = os.getpid()
    if os.fork() == 0:
        # The crawler decides when it ends after a signal; the proxy ends with it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        asyncio.run(_run(listener, password, crawler))
    listener.close()
    os.environ.update(dict.fromkeys(VARIABLES, address))
    for name in EXCEPTIONS:
        # These hosts have limits, too. This process keeps the exceptions for the proxy behind it.
        os.environ.pop(name, None)
    os.environ.setdefault("NODE_USE_ENV_PROXY", "1")  # Node ignores the others without it
    try:
        os.execvp(chosen.command[0], chosen.command)  # noqa: S606
    except OSError as error:
        print(f"crawl proxy: {chosen.command[0]} cannot be executed: {error}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
