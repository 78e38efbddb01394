"""The heads of HTTP/1.1 messages, as a forward proxy reads and sends them."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from typing import NamedTuple
from urllib.parse import urlsplit

#: The maximum size of a head, in bytes.
HEAD_MAX = 64 * 1024
#: Headers that are for one connection only (RFC 9110, 7.6.1).
_HOP = ("connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade")
_HOST = re.compile(r"(?=.{1,253}$)([a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}")


class Refusal(Exception):
    """A request that the proxy answers by itself, with this status and text."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class MessageHead(NamedTuple):
    """The beginning of a message: its first line, and its headers in order."""

    first: str
    headers: list[tuple[str, str]]

    def get(self, name: str) -> str | None:
        """Return the first header with this name (in lower case)."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def closing(self, first: str, *added: tuple[str, str]) -> bytes:
        """Return the head with another first line, for the last message on its connection."""
        named = (self.get("connection") or "").lower().split(",")
        dropped = {*_HOP, *(name.strip() for name in named)}
        kept = [line for line in self.headers if line[0].lower() not in dropped]
        lines = [f"{key}: {value}" for key, value in (*kept, *added, ("Connection", "close"))]
        return "\r\n".join([first, *lines, "", ""]).encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> MessageHead:
    """Read a head.

    Raises ``ValueError`` for bytes that are none or too many, and ``EOFError`` if the connection
    ended before its first byte.
    """
    lines: list[str] = []
    size = 0
    while True:
        line = await reader.readline()
        size += len(line)
        if not line and not lines:
            raise EOFError
        if not line.endswith(b"\n") or size > HEAD_MAX:
            raise ValueError(f"no end of the headers within {HEAD_MAX} bytes")
        text = line.decode("latin-1").rstrip("\r\n")
        if text:
            lines.append(text)
        elif lines:
            return MessageHead(lines[0], _headers(lines[1:]))


def _headers(lines: list[str]) -> list[tuple[str, str]]:
    """Return the headers in these lines. Like browsers, it joins a line that continues another, and
    ignores one without a name.
    """
    headers: list[tuple[str, str]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if line[0] in " \t":
            if headers:
                headers[-1] = (headers[-1][0], f"{headers[-1][1]} {line.strip()}")
        elif colon and name.strip():
            headers.append((name.strip(), value.strip()))
    return headers


class RequestTarget(NamedTuple):
    """The target of a request."""

    method: str
    host: str
    port: int
    path: str
    """What the site sees as its address; empty for a tunnel."""

    @property
    def authority(self) -> str:
        """Host and port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, head: MessageHead) -> RequestTarget:
        """Return the target of a request. Raises ``Refusal``."""
        words = head.first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise Refusal(
                "400 Bad Request", f"the first line is not an HTTP/1.1 request: {words[:3]}"
            )
        method = words[0]
        url = words[1]
        tunnel = method == "CONNECT"
        if not tunnel and not url.lower().startswith("http://"):
            raise Refusal("400 Bad Request", "this is a proxy: it needs the whole URL (http://…)")
        try:
            parts = urlsplit(f"//{url}" if tunnel else url)
            host = _host((parts.hostname or "").rstrip("."))
            port = parts.port or (443 if tunnel else 80)
        except ValueError as error:
            raise Refusal("400 Bad Request", f"the host or port is invalid: {error}") from None
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(method, host, port, "" if tunnel else path)


def _host(text: str) -> str:
    """Return a host in the form that the gateway accepts. Raises ``ValueError``."""
    if ":" in text:
        return ipaddress.IPv6Address(text).compressed
    if not _HOST.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not a host")
    return text


def body_size(head: MessageHead) -> int | None:
    """Return the size of a request's body in bytes; ``None`` if only the body itself says it.

    Raises ``Refusal`` for sizes that contradict each other.
    """
    sizes = {value for key, value in head.headers if key.lower() == "content-length"}
    if head.get("transfer-encoding") is not None:
        sizes.add("chunked")
    if sizes == {"chunked"}:
        return None
    if len(sizes) > 1 or not all(re.fullmatch("[0-9]{1,18}", size) for size in sizes):
        raise Refusal("400 Bad Request", f"the size of the body is unclear: {sorted(sizes)}")
    return int(sizes.pop()) if sizes else 0
