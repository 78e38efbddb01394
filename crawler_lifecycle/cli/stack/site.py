"""``python -m crawler_lifecycle.cli.stack.site``: serves a folder of HTML pages on this machine.

Starlette provides index pages, content types, validators, HEAD and ranges. Hidden files and files
outside the folder are not served, even if a path or a symbolic link leads to them. Folders are not
listed, with one exception: a top folder without a start page gets a page that lists its pages,
because a crawl needs a page from which to start.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from crawler_lifecycle.cli.machine import LOOPBACK
from crawler_lifecycle.web.origins import Gate, programs_only

INDEX = "index.html"
#: The path of the start page that we generate. No file in the folder can have this path, because
#: hidden names are not served.
HEALTH = "/.healthz"
PAGE_SUFFIXES = (".html", ".htm", ".xhtml")
#: The maximum number of pages that this start page lists.
NAMED_MAX = 10_000
#: According to the HTML standard, a page must declare its encoding within this many bytes.
_DECLARED_WITHIN = 1024


class Unusable(ValueError):
    """Raised if the folder cannot be served. The text contains the reason and the fix."""


def pages(folder: Path) -> Iterator[Path]:
    """Yield the sorted paths of the HTML pages below a folder, excluding hidden files and symbolic
    links.
    """
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(where, name)
            named = not name.startswith(".") and name.lower().endswith(PAGE_SUFFIXES)
            if named and os.path.isfile(path) and not path.is_symlink():
                yield path.relative_to(folder)


def check(folder: Path) -> Path:
    """Return the resolved path of the folder.

    Raises ``Unusable`` if it has no HTML page that can be served.
    """
    try:
        whole = folder.resolve(strict=True)
        if not whole.is_dir():
            raise Unusable(f"{folder} is not a folder; give the folder with the pages")
        os.listdir(whole)
    except FileNotFoundError:
        raise Unusable(f"{folder} does not exist; give the folder with the pages") from None
    except (OSError, RuntimeError) as error:  # no permission, or a loop of symbolic links
        raise Unusable(f"{folder} cannot be read ({error}); give a readable folder") from None
    if next(pages(whole), None) is None:
        raise Unusable(
            f"{folder} has no HTML page ({', '.join(PAGE_SUFFIXES)}); give the folder with "
            "the pages"
        )
    return whole


class Pages(StaticFiles):
    """The files in one folder, excluding hidden files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True, follow_symlink=False)
        self._root = os.path.realpath(folder)

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file as the base class does, but treat hidden names in any spelling as missing."""
        full, found = super().lookup_path(path)
        inside = os.path.relpath(os.path.realpath(full), self._root) if found is not None else "."
        hidden = any(
            part.startswith(".") and part != "."
            for name in (path, inside)
            for part in name.split(os.sep)
        )
        return ("", None) if hidden else (full, found)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer as the base class does, but if the folder has no start page, serve a list of its
        pages.
        """
        if path != "." and scope["path"].endswith("/") and await self._is_page(path):
            # If the address ended with a slash, the page's relative links would be wrong.
            raise HTTPException(404)
        try:
            response = await super().get_response(path, scope)
            status = response.status_code
        except HTTPException as error:
            # This process may not read the file, so a login would not help.
            if error.status_code == 401:
                raise HTTPException(403) from None
            if error.status_code != 404 or path != ".":
                raise
            status = 404
        if status == 404 and path == ".":
            return HTMLResponse(await to_thread.run_sync(start_page, Path(self._root)))
        return response

    async def _is_page(self, path: str) -> bool:
        try:
            _, found = await to_thread.run_sync(self.lookup_path, path)
        except (OSError, ValueError):
            return False
        return found is not None and stat.S_ISREG(found.st_mode)

    def file_response(self, full_path: Any, *args: Any, **kwargs: Any) -> Response:
        """Answer with a file as the base class does, but omit the charset if the page declares its
        own encoding.
        """
        if not os.access(full_path, os.R_OK):
            raise HTTPException(403)
        response = super().file_response(full_path, *args, **kwargs)
        if response.headers.get(
            "content-type"
        ) == "text/html; charset=utf-8" and _declares_encoding(full_path):
            response.headers["content-type"] = "text/html"
        return response


def _declares_encoding(path: str | os.PathLike[str]) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(_DECLARED_WITHIN)
    except OSError:
        return False
    marked = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    return (
        marked
        or re.search(rb"<(?:meta\b[^>]*\bcharset|\?xml\b[^>]*\bencoding)\s*=", head, re.IGNORECASE)
        is not None
    )


def start_page(root: Path) -> str:
    """Return an HTML page that lists the pages in the folder."""
    names = islice(pages(root), NAMED_MAX)
    links = []
    for name in names:
        readable = str(name).encode("utf-8", "replace").decode()  # a name may not be valid UTF-8
        links.append(f'<li><a href="/{quote(os.fsencode(name))}">{html.escape(readable)}</a></li>')
    return _page("Pages", f"<ul>{''.join(links)}</ul>")


def _page(title: str, body: str) -> str:
    head = (
        '<!doctype html><html lang="en"><head><meta '
        f'charset="utf-8"><title>{html.escape(title)}</title></head>'
    )
    return f"{head}<body><h1>{html.escape(title)}</h1>{body}</body></html>"


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = html.escape(request.url.path)
    return HTMLResponse(
        _page(f"{error.status_code} {error.detail}", f"<p>{path}</p>"),
        error.status_code,
        error.headers,
    )


async def _healthy(request: Request) -> Response:
    return PlainTextResponse("ok")


def create_app(folder: Path) -> Starlette:
    """Return the website. Raises ``Unusable``."""
    routes = [Route(HEALTH, _healthy), Mount("/", Pages(check(folder)))]
    return Starlette(routes=routes, exception_handlers={HTTPException: _problem})


def main() -> int:
    """Serve until SIGTERM or SIGINT, then end with exit code 0."""
    parser = argparse.ArgumentParser(description="Serve a folder of HTML pages as a website.")
    parser.add_argument("--port", type=int, required=True, help="port; 0 picks a free one")
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on")
    parser.add_argument("--folder", type=Path, required=True, help="the folder to serve")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    # asyncio disables Nagle's algorithm (40 ms per page) only if the socket has an explicit
    # protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        # Only local programs may read the folder, so check the host name of each request.
        app = Gate(create_app(options.folder), programs_only(options.host))
        listener.bind((options.host, options.port))
        listener.listen(128)
    except (Unusable, OSError, OverflowError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    print(f"http://{options.host}:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
