"""The crawler ``site``, run by our runner as the local cluster and pods do, against real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crawler_lifecycle.generic
import crawler_lifecycle.runner
from crawler_lifecycle.generic.site_crawler.scope import MAX_PAGES, Scope
from tests.support.generic_site import Most, nasty_server, write_pages

PROJECT = Path(crawler_lifecycle.generic.__file__).parent
RUNNER = Path(crawler_lifecycle.runner.__file__).parent


class Crawl:
    """One task's folders, and the runner around the crawler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(
        self, *, settings: dict[str, str] | None = None, resume: bool = False, **args: str
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", str(RUNNER), "scrapy", "--project", str(PROJECT), "--spider", "site"]
        env = {
            "PATH": os.environ["PATH"],
            "CRAWL_ARGS": json.dumps(args),
            "CRAWL_SETTINGS": json.dumps({"RETRY_TIMES": "0", "LOG_LEVEL": "INFO"} | (settings or {})),
            "CRAWL_FILES_DIR": str(self.folder / "files"),
            "CRAWL_STATE_DIR": str(self.folder / "state"),
            "CRAWL_SUMMARY_FILE": str(self.folder / "summary.json"),
            "CRAWL_STATS_FILE": str(self.folder / "stats.json"),
            "CRAWL_RESUME": "1" if resume else "0",
        }
        (self.folder / "state").mkdir(exist_ok=True)
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, **options: Any) -> dict[str, Any]:
        """Crawl to the end; the summary."""
        return self.finish(self.start(**options))

    def finish(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        with process:
            try:
                self.output, _ = process.communicate(timeout=150)
            finally:
                process.kill()
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "files" / name).read_text().splitlines()]

    @property
    def items(self) -> list[dict[str, Any]]:
        return self.lines("items.jsonl")

    @property
    def skipped(self) -> dict[str, str]:
        """Path -> why."""
        return {_path(each["url"]): each["why"] for each in self.lines("skipped.jsonl")}


def _path(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


@pytest.fixture
def crawl(tmp_path: Path) -> Crawl:
    return Crawl(tmp_path)


@pytest.fixture
def folder_site(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A folder that is served: its address, and the pages that can be reached."""
    pages = tmp_path / "pages"
    pages.mkdir()
    titles = write_pages(pages)
    command = [sys.executable, "-m", "crawler_lifecycle.cli.site", "--port", "0", "--folder", str(pages)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), titles
        server.terminate()


def test_an_item_for_every_page_of_a_folder(crawl: Crawl, folder_site: tuple[str, dict[str, str]]) -> None:
    site, titles = folder_site
    summary = crawl.run(start=site)
    assert (summary["exit"], summary["finish_reason"], summary["errors"]) == (0, "finished", 0)
    found = {_path(item["url"]): item for item in crawl.items}
    assert len(found) == len(crawl.items) == summary["items"]
    assert {path: item["title"] for path, item in found.items() if item["status"] == 200} == titles
    assert {path: item["referrer"] for path, item in found.items() if item["status"] != 200} == {
        "/gone.html": f"{site}/chapters/na%C3%AFve.html"
    }
    assert crawl.skipped == {"/notes.txt": "no HTML page: 200, text/plain; charset=utf-8"}
    big = found["/big.html"]
    assert (big["words"], big["links"], big["depth"]) == (300_001, 1, 2)
    assert found["/chapter-1.html"]["links"] == 3


def test_traps_end(crawl: Crawl) -> None:
    # One request at a time: what is endless cannot run ahead of a late answer, and take the places of the rest.
    settings = {"DOWNLOAD_MAXSIZE": "100000", "CONCURRENT_REQUESTS": "1"}
    with nasty_server() as (site, asked):
        summary = crawl.run(start=f"{site}/", max_pages="40", settings=settings)
    assert (summary["exit"], summary["finish_reason"]) == (0, "closespider_pagecount")
    assert len([path for path in asked if path != "/robots.txt"]) <= 40
    assert "/never" not in asked
    assert not any(path.startswith("/private") for path in asked)
    assert asked.count("/loop") == 1
    why = crawl.skipped
    assert why["/out"] == "301 leads out of the site: http://127.0.0.2:9/elsewhere"
    assert why["/nowhere"] == "302 leads nowhere: ''"
    assert why["/image"] == "no HTML page: 200, image/png"
    assert "robots.txt" in why["/private/x"]
    assert {"/cut", "/huge"} <= set(why)
    items = {_path(item["url"]): item for item in crawl.items}
    assert items["/down"]["status"] == 503


def test_a_redirect_inside_the_site_is_followed(crawl: Crawl) -> None:
    """Without the endless traps, whose pages would race with it for the last places."""
    with nasty_server() as (site, _):
        summary = crawl.run(start=f"{site}/", deny="calendar|chain", settings={"DOWNLOAD_MAXSIZE": "100000"})
    assert summary["finish_reason"] == "finished"
    items = {_path(item["url"]): item for item in crawl.items}
    assert items["/page?moved"]["referrer"] == f"{site}/moved"


def test_a_query_that_grows_is_bounded_by_pages_or_depth(crawl: Crawl) -> None:
    with nasty_server() as (site, _):
        # One request at a time: with eight, a machine that answers one of them late lets the others run ahead of it.
        summary = crawl.run(start=f"{site}/calendar", max_pages="25", settings={"CONCURRENT_REQUESTS": "1"})
        assert summary["finish_reason"] == "closespider_pagecount"
        depths = [item["depth"] for item in crawl.items]
        assert len(depths) == 25
        assert depths == sorted(depths), "breadth first"
        (crawl.folder / "files" / "items.jsonl").unlink()
        summary = crawl.run(start=f"{site}/calendar", max_depth="3", deny="[?]4$")
    assert summary["finish_reason"] == "finished"
    assert {_path(item["url"]) for item in crawl.items} == {f"/calendar{q}" for q in ("", "?1", "?2", "?3", "?5")}


def test_allow_is_for_what_is_followed(crawl: Crawl, folder_site: tuple[str, dict[str, str]]) -> None:
    site, _ = folder_site
    crawl.run(start=site, allow="/chapter")
    assert {_path(item["url"]) for item in crawl.items} == {
        *("/", "/chapter-1.html", "/chapters/", "/chapters/a%20b.html", "/chapters/na%C3%AFve.html")
    }


def test_stopped_it_goes_on_where_it_was_and_keeps_to_its_limit(crawl: Crawl) -> None:
    most = Most(8)
    with nasty_server(most) as (site, asked):
        first = crawl.start(start=f"{site}/calendar", max_pages="30")
        until = time.monotonic() + 60
        file = crawl.folder / "files" / "items.jsonl"
        while not file.exists() or len(file.read_text().splitlines()) < 5:
            assert time.monotonic() < until, "not within 60 s"
            time.sleep(0.02)
        first.send_signal(signal.SIGTERM)
        assert first.stdout is not None
        while (
            "Received SIGTERM" not in first.stdout.readline()
        ):  # at its end it says nothing more, and a line is missed
            assert first.poll() is None
        most.lift()
        summary = crawl.finish(first)
        assert (summary["exit"], summary["finish_reason"], summary["resumable"]) == (11, "shutdown", True)
        done = len(crawl.items)
        assert 5 <= done < 30
        summary = crawl.run(start=f"{site}/calendar", max_pages="30", resume=True)
    assert summary["finish_reason"] == "closespider_pagecount"
    urls = [item["url"] for item in crawl.items]
    assert len(urls) == len(set(urls)) == 30
    assert len(asked) == len(set(asked)) + 1  # robots.txt once each time


@pytest.mark.parametrize(
    "start", ["http://127.0.0.1:9/", "{site}/image", "{site}/down", "{site}/out", "{site}/private"]
)
def test_without_its_start_a_crawl_has_failed(crawl: Crawl, start: str) -> None:
    with nasty_server() as (site, _):
        summary = crawl.run(start=start.format(site=site))
    assert (summary["exit"], summary["finish_reason"]) == (1, "start_error")
    assert "the start http://" in crawl.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "start: missing"),
        ({"start": "ftp://x/"}, "start: 'ftp://x/' is no address"),
        ({"start": "http://x:99999/"}, "start: 'http://x:99999/' is no address"),
        ({"start": "http://x/", "max_pages": "0"}, "max_pages: '0' is not allowed"),
        ({"start": "http://x/", "max_depth": "-1"}, "max_depth: '-1' is not allowed"),
        ({"start": "http://x/", "delay": "nan"}, "delay: 'nan' is not allowed"),
        ({"start": "http://x/", "deny": "("}, "deny: '(' is no regular expression"),
    ],
)
def test_wrong_arguments_are_refused_by_name(args: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        Scope.read(**args)


def test_a_refusal_is_the_reason_of_the_end(crawl: Crawl) -> None:
    summary = crawl.run(start="http://127.0.0.1:9/", max_pages="many")
    assert summary["exit"] == 4
    assert summary["message"].startswith("Bad configuration: max_pages: 'many' is not allowed; give a whole number")


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("http://Host.example:80/x", True),
        ("https://host.example/x", True),
        ("http://host.example:8080/", False),
        ("http://www.host.example/", False),
        ("http://host.example.evil/", False),
        ("http://user@host.example/", True),
    ],
)
def test_one_site_is_one_host_and_port(address: str, inside: bool) -> None:
    assert Scope.read("http://host.example").inside(address) is inside


@given(st.text(max_size=60), st.sampled_from(["http://a/", "https://a:444/b/c?d"]))
def test_no_link_breaks_the_walk(link: str, base: str) -> None:
    scope = Scope.read(base)
    target = scope.target(base, link)
    if target is not None:
        assert target.startswith(("http://", "https://"))
        assert "#" not in target
        assert scope.wanted(target) in (True, False)


def test_defaults() -> None:
    scope = Scope.read("http://a")
    assert (scope.start, scope.max_pages, scope.max_depth, scope.delay) == ("http://a/", MAX_PAGES, None, 0)
