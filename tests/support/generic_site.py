"""A folder of pages with everything that a crawler may meet, and a server that misbehaves on
purpose.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def write_pages(folder: Path) -> dict[str, str]:
    """Write a small site. Returns its reachable pages: path -> title."""
    pages: dict[str, tuple[str, str]] = {
        "/": (
            "Home",
            '<a href="chapter-1.html">1</a> <a href=chapters/>2</a> <a href="broken.html">3</a>',
        ),
        "/chapter-1.html": (
            "One",
            '<a href="/">home</a> <a href="chapter-1.html#top">here</a> <a href="big.html">b</a>',
        ),
        "/chapters/": ("Two", '<a href="../chapter-1.html">1</a> <a href="a%20b.html?">space</a>'),
        "/chapters/a%20b.html": ("Space", '<a href="./">up</a> <a href="naïve.html">n</a>'),
        "/chapters/na%C3%AFve.html": (
            "Naïve",
            '<a href="../gone.html">gone</a> <a href="../notes.txt">notes</a>',
        ),
        "/big.html": ("Big", "word " * 300_000 + '<a href="empty.html">last</a>'),
        "/framed.html": ("Framed", "<p>in a frame"),
        "/refreshed.html": ("Refreshed", "done"),
    }
    for path, (title, body) in pages.items():
        name = path.lstrip("/").replace("%20", " ").replace("%C3%AF", "ï")
        file = folder / name / "index.html" if path.endswith("/") else folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f'<!doctype html><meta charset="utf-8"><title>{title}</title><body>{body}',
            encoding="utf-8",
        )
    (folder / "empty.html").write_bytes(b"")
    (folder / "broken.html").write_bytes(
        b"<html><head><title>Bro\xffken</title><body><a href='latin.html'><div><p></b></div><<a href=\"http://[bad\">"
        b"<a href='mailto:x@y'><a href='javascript:1'><a><iframe src=framed.html></iframe><a href='data:,x'>\0<table>"
    )
    (folder / "latin.html").write_bytes(
        b'<meta charset="iso-8859-1"><title>Caf\xe9</title><meta http-equiv="refresh" content="0; url=refreshed.html">'
    )
    (folder / "notes.txt").write_text("no page")
    (folder / "unlinked.html").write_text("<title>Nobody leads here</title>")
    (folder / ".hidden.html").write_text("<title>Hidden</title>")
    titles = {path: title for path, (title, _) in pages.items()}
    return titles | {"/empty.html": "", "/broken.html": "Bro\ufffdken", "/latin.html": "Café"}


class Most:
    """Limits how many requests are answered, in order; the others wait until the limit is lifted."""

    def __init__(self, requests: float = math.inf) -> None:
        self._most, self._come = requests, 0
        self._changed = threading.Condition()

    def come(self) -> None:
        """Record a request. Returns when it may be answered."""
        with self._changed:
            self._come += 1
            number = self._come
            self._changed.wait_for(lambda: number <= self._most)

    def lift(self) -> None:
        """Answer all requests."""
        with self._changed:
            self._most = math.inf
            self._changed.notify_all()


class _Nasty(BaseHTTPRequestHandler):
    """Traps: see the paths."""

    protocol_version = "HTTP/1.1"
    most: Most

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.most.come()
        path, _, query = self.path.partition("?")
        if path == "/robots.txt":
            self._answer(200, b"User-agent: *\nDisallow: /private", "text/plain")
        elif path == "/loop":
            self._answer(302, b"", location="/loop")
        elif path == "/chain":
            self._answer(302, b"", location=f"/chain?{int(query or 0) + 1}")
        elif path in LOOPS:
            self._answer(302, b"", location=LOOPS[path])
        elif path == "/loops":
            self._answer(200, "".join(f'<a href="{path}">x</a>' for path in sorted(LOOPS)).encode())
        elif path == "/later":
            self._later()
        elif path == "/giant":
            self._answer(200, b"<title>Giant</title>" + _giant(query))
        elif path == "/out":
            self._answer(301, b"", location="http://127.0.0.2:9/elsewhere")
        elif path == "/nowhere":
            self._answer(302, b"")
        elif path == "/calendar":
            day = int(query or 0)
            self._answer(
                200, f'<a href="?{day + 1}">next</a><a href="?{day + 2}">later</a>'.encode()
            )
        elif path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"<a href=/never>")
            self.close_connection = True
        elif path == "/image":
            self._answer(200, b"\x89PNG\r\n", "image/png")
        elif path == "/down":
            self._answer(503, b"<title>Down</title>")
        elif path == "/moved":
            self._answer(308, b"", location="/page?moved")
        elif path == "/huge":
            self._answer(200, b"<a href=/never>" + b"x" * 300_000)
        else:
            self._answer(200, f"<title>{self.path}</title>".encode() + START)

    def _later(self) -> None:
        """Wait for a second; whoever comes too early gets that response for ever."""
        now, not_before = time.monotonic(), getattr(self.server, "not_before", None)
        if not_before is None:
            self.server.not_before = now + 1  # type: ignore[attr-defined]
            self._answer(429, b"<title>Later</title>", retry_after="1")
        elif now < not_before:
            self.server.not_before = math.inf  # type: ignore[attr-defined]
            self._answer(429, b"<title>Too early</title>")
        else:
            self._answer(200, b"<title>In time</title>")

    def _answer(
        self,
        status: int,
        body: bytes,
        kind: str = "text/html",
        location: str | None = None,
        retry_after: str | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


#: Redirects without an end: to themselves, to each other, and into the loop of others.
LOOPS = {"/self": "/self?", "/one": "/two", "/two": "/one", "/into": "/one", "/far": "/into"}


@functools.cache
def _giant(name: str) -> bytes:
    """Return a page of some MB that costs a parser far more.

    It is made on request, which takes a second.
    """
    if name == "tags":
        return b"<a href=x>y</a>" * 700_000
    if name == "attributes":
        return b"<p " + b" ".join(b"a%d" % n for n in range(1_000_000)) + b">"
    assert name == "words", name
    return b"<p>" + b"word " * 2_000_000


TRAPS = ("loop", "chain", "out", "nowhere", "cut", "image", "down", "moved", "huge", "private/x")
START = "".join(f'<a href="/{trap}">x</a>' for trap in TRAPS).encode()


@contextmanager
def nasty_server(most: Most | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server full of traps: its address, and the paths that were requested."""
    most = most or Most()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Nasty", (_Nasty,), {"most": most}))
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.asked  # type: ignore[attr-defined]
    finally:
        most.lift()
        server.shutdown()
        thread.join()
        server.server_close()
