"""A crawler without a framework, in one file that uses only the standard library. It shows what a
command must do to be a good crawler.

It reads these variables from its environment. Each of them may be missing:

- ``CRAWL_ARGS``: a JSON object with ``site``, ``max_pages``, ``delay`` and ``fail_after``;
  command-line options override it
- ``CRAWL_FILES_DIR``: the folder for ``items.jsonl`` and ``summary.json``
- ``CRAWL_STATE_DIR`` and ``CRAWL_RESUME=1``: the folder for its position after a stop, and whether
  the crawl continues from this position
- ``CRAWL_STATS_FILE``: the file for counters, which is replaced about once a second

The exit codes are 0 (finished), 1 (failed), 4 (wrong arguments) and 11 (stopped in an orderly way
by SIGTERM or SIGINT).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections import deque
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen
from urllib.robotparser import RobotFileParser

FINISHED, FAILED, BAD_ARGUMENTS, STOPPED = 0, 1, 4, 11
AGENT = "plain-crawler/1.0 (example crawler of a demonstration site; obeys robots.txt)"
PLACE = "place.json"


class Page(HTMLParser):
    """The title, the links and the number of words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.title = ""
        self.links: list[str] = []
        self.words = 0
        self._in_title = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title"
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.links.append(href)

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        self.words += len(data.split())


class Crawl:
    """A breadth-first crawl of one site that can be stopped between any two pages."""

    def __init__(self, site: str, max_pages: int, delay: float, fail_after: int | None) -> None:
        self.site = site.rstrip("/") + "/"
        self.max_pages = max_pages
        self.delay = delay
        self.fail_after = fail_after
        self.pages = self.items = self.errors = self.bytes = 0
        self.waiting: deque[str] = deque([self.site])
        self.known: set[str] = {self.site}
        self.stopping = False
        self.resumed = False
        self.started_at = _now()
        self._files = _folder("CRAWL_FILES_DIR")
        self._state = _folder("CRAWL_STATE_DIR")
        self._told = 0.0

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Request the end of the crawl, which comes after the current page."""
        self.stopping = True

    def run(self) -> int:
        """Crawl, and return the exit code."""
        self._find_place()
        try:
            robots = self._robots()
            while self.waiting and self.pages < self.max_pages and not self.stopping:
                if self.fail_after is not None and self.pages >= self.fail_after:
                    raise RuntimeError(f"failing on purpose after {self.pages} pages")
                # The address leaves the queue only when its page is done, so a stop loses nothing.
                if robots.can_fetch(AGENT, self.waiting[0]):
                    self._visit(self.waiting[0])
                    self._tell()
                    self._pause()
                self.waiting.popleft()
        except (OSError, RuntimeError) as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            self._end("failed")
            return FAILED
        if self.stopping:
            self._keep_place()
            self._end("shutdown")
            return STOPPED
        self._end("finished")
        return FINISHED

    def _robots(self) -> RobotFileParser:
        """Read the robots.txt of the site.

        Without a robots.txt, everything is allowed. If it cannot be read, the crawl ends.
        """
        robots = RobotFileParser()
        try:
            robots.parse(self._fetch(urljoin(self.site, "/robots.txt"))[1].splitlines())
        except HTTPError as error:
            if error.code >= 500:
                raise
            robots.allow_all = True  # type: ignore[attr-defined]  # typeshed does not list it
        return robots

    def _visit(self, url: str) -> None:
        try:
            final, text = self._fetch(url)
        except HTTPError as error:
            self.errors += 1
            print(f"{error.code} {url}", flush=True)
            return
        if final != url:
            if final in self.known or not self._belongs(final):
                return  # a redirect to a page with its own turn, or to another site
            self.known.add(final)
        self.pages += 1
        self.bytes += len(text)
        page = Page(text)
        self.items += 1
        print(f"200 {final}", flush=True)
        if self._files:
            with (self._files / "items.jsonl").open("a", encoding="utf-8") as stream:
                item = {
                    "url": final,
                    "title": page.title,
                    "words": page.words,
                    "links": len(page.links),
                }
                stream.write(json.dumps(item, ensure_ascii=False) + "\n")
        for href in page.links:
            target = urldefrag(urljoin(final, href)).url
            if self._belongs(target) and target not in self.known:
                self.known.add(target)
                self.waiting.append(target)

    def _belongs(self, url: str) -> bool:
        return urlsplit(url)[:2] == urlsplit(self.site)[:2]

    @staticmethod
    def _fetch(url: str) -> tuple[str, str]:
        request = Request(url, headers={"User-Agent": AGENT})  # noqa: S310
        for tries_left in (2, 1, 0):
            try:
                with urlopen(request, timeout=20) as response:  # noqa: S310
                    return response.url, response.read().decode("utf-8", errors="replace")
            except (URLError, TimeoutError) as error:
                # A connection can be lost while a request is sent. A request that the site has
                # answered is not repeated.
                if isinstance(error, HTTPError) or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _pause(self) -> None:
        """Pause to be polite, but wake up soon after a signal."""
        until = time.monotonic() + self.delay
        while not self.stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _find_place(self) -> None:
        place = self._state / PLACE if self._state else None
        if not place or not place.is_file():
            return
        kept = json.loads(place.read_text(encoding="utf-8"))
        # The state is valid for one start: a crawl that is killed later has no position from which
        # it could continue.
        place.unlink()
        if os.environ.get("CRAWL_RESUME") == "1":
            self.resumed = True
            self.waiting = deque(kept["waiting"])
            self.known = set(kept["known"])
            self.pages, self.items, self.errors, self.bytes = kept["counters"]
            print(f"continuing after {self.pages} pages", flush=True)

    def _keep_place(self) -> None:
        if self._state:
            counters = [self.pages, self.items, self.errors, self.bytes]
            _replace(
                self._state / PLACE,
                {"waiting": list(self.waiting), "known": sorted(self.known), "counters": counters},
            )

    def _tell(self, **end: Any) -> None:
        """Publish the counters, at most once a second except at the end."""
        stats = os.environ.get("CRAWL_STATS_FILE")
        if stats and (end or time.monotonic() - self._told >= 1):
            self._told = time.monotonic()
            counters = {
                "pages": self.pages,
                "items": self.items,
                "errors": self.errors,
                "bytes": self.bytes,
            }
            _replace(Path(stats), counters | {"resumed": self.resumed, "updated_at": _now()} | end)

    def _end(self, reason: str) -> None:
        resumable = reason == "shutdown" and self._state is not None
        self._tell(finish_reason=reason, finished_at=_now(), resumable=resumable)
        if self._files:
            counters = {
                "pages": self.pages,
                "items": self.items,
                "errors": self.errors,
                "left": len(self.waiting),
            }
            walk = {"site": self.site, "max_pages": self.max_pages, "finish_reason": reason}
            times = {"started_at": self.started_at, "finished_at": _now()}
            _replace(self._files / "summary.json", walk | counters | times)
        print(
            f"{reason}: {self.pages} pages, {self.errors} errors, {len(self.waiting)} "
            "addresses left",
            flush=True,
        )


class Arguments(argparse.ArgumentParser):
    """An argument parser that uses the agreed exit code for invalid arguments."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_ARGUMENTS, f"{self.prog}: error: {message}\n")


def main() -> int:
    """Read the arguments, crawl, and return the exit code."""
    parser = Arguments(
        prog="plain_crawler.py", description="A small crawler that needs nothing but Python."
    )
    parser.add_argument(
        "--site", help="address of the site to crawl (required here or in CRAWL_ARGS)"
    )
    parser.add_argument(
        "--max-pages", type=int, help="end as finished after this many pages (default: 25)"
    )
    parser.add_argument("--delay", type=float, help="seconds between two pages (default: 0.1)")
    parser.add_argument("--fail-after", type=int, metavar="N", help="fail on purpose after N pages")
    options = parser.parse_args()
    try:
        given: dict[str, Any] = json.loads(os.environ.get("CRAWL_ARGS") or "{}")
        given |= {name: value for name, value in vars(options).items() if value is not None}
        fail_after = int(given["fail_after"]) if given.get("fail_after") else None
        crawl = Crawl(
            str(given.get("site") or ""),
            int(given.get("max_pages") or 25),
            float(given.get("delay") or 0.1),
            fail_after,
        )
    except (ValueError, TypeError, AttributeError) as error:
        parser.error(str(error))
    if not re.match(r"https?://[^/]", crawl.site):
        parser.error("--site must be the http or https address of a site")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, crawl.stop)
    return crawl.run()


def _folder(variable: str) -> Path | None:
    """Return the folder that a variable names, and create it if it does not exist."""
    if not (name := os.environ.get(variable)):
        return None
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _replace(file: Path, content: dict[str, Any]) -> None:
    """Write a file so that a reader sees either the old or the new content."""
    unfinished = file.with_name(file.name + ".tmp")
    unfinished.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(file)


def _now() -> str:
    return datetime.now(UTC).isoformat()


if __name__ == "__main__":
    sys.exit(main())
