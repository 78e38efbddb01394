"""The crawler ``site``, run by our runner as the local cluster and pods do, with real servers."""

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
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crawler_lifecycle.generic
import crawler_lifecycle.runner
from crawler_lifecycle.generic.site_crawler.retry_after import PAUSE_MAX_S, seconds_of
from crawler_lifecycle.generic.site_crawler.scope import MAX_PAGES, Redirects, Scope
from tests.support.generic_site import LOOPS, Most, nasty_server, write_pages
from tests.support.scrapy_alone import without_pydantic

PROJECT = Path(crawler_lifecycle.generic.__file__).parent
RUNNER = Path(crawler_lifecycle.runner.__file__).parent


class Crawl:
    """One task's folders, and the runner around the crawler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(
        self, *, settings: dict[str, str] | None = None, resume: bool = False, **args: str
    ) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-I",
            "-S",
            str(RUNNER),
            "scrapy",
            "--project",
            str(PROJECT),
            "--spider",
            "site",
        ]
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": without_pydantic(self.folder),
            "CRAWL_ARGS": json.dumps(args),
            "CRAWL_SETTINGS": json.dumps(
                {"RETRY_TIMES": "0", "LOG_LEVEL": "INFO"} | (settings or {})
            ),
            "CRAWL_FILES_DIR": str(self.folder / "files"),
            "CRAWL_STATE_DIR": str(self.folder / "state"),
            "CRAWL_SUMMARY_FILE": str(self.folder / "summary.json"),
            "CRAWL_STATS_FILE": str(self.folder / "stats.json"),
            "CRAWL_RESUME": "1" if resume else "0",
        }
        (self.folder / "state").mkdir(exist_ok=True)
        return subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, **options: Any) -> dict[str, Any]:
        """Crawl to the end. Return the summary."""
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
        return [
            json.loads(line) for line in (self.folder / "files" / name).read_text().splitlines()
        ]

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
    """A folder that is served. Gives its address, and the pages that can be reached."""
    pages = tmp_path / "pages"
    pages.mkdir()
    titles = write_pages(pages)
    command = [
        sys.executable,
        "-m",
        "crawler_lifecycle.cli.stack.site",
        "--port",
        "0",
        "--folder",
        str(pages),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield server.stdout.readline().strip(), titles
        server.terminate()


@pytest.mark.processes
def test_an_item_for_every_page_of_a_folder(
    crawl: Crawl, folder_site: tuple[str, dict[str, str]]
) -> None:
    site, titles = folder_site
    summary = crawl.run(start=site)
    assert (summary["exit"], summary["finish_reason"], summary["errors"]) == (0, "finished", 0)
    found = {_path(item["url"]): item for item in crawl.items}
    assert len(found) == len(crawl.items) == summary["items"]
    assert {path: item["title"] for path, item in found.items() if item["status"] == 200} == titles
    assert {path: item["referrer"] for path, item in found.items() if item["status"] != 200} == {
        "/gone.html": f"{site}/chapters/na%C3%AFve.html"
    }
    assert crawl.skipped == {"/notes.txt": "not an HTML page: 200, text/plain; charset=utf-8"}
    big = found["/big.html"]
    assert (big["words"], big["links"], big["depth"]) == (300_001, 1, 2)
    assert found["/chapter-1.html"]["links"] == 3


@pytest.mark.processes
def test_traps_end(crawl: Crawl) -> None:
    # One request at a time, so that endless pages cannot overtake a late response, and use up the
    # limit.
    settings = {"DOWNLOAD_MAXSIZE": "100000", "CONCURRENT_REQUESTS": "1"}
    with nasty_server() as (site, asked):
        summary = crawl.run(start=f"{site}/", max_pages="25", settings=settings)
    assert (summary["exit"], summary["finish_reason"]) == (0, "closespider_pagecount")
    pages = [path for path in asked if path != "/robots.txt"]
    assert len(pages) <= 25
    assert summary["pages"] < len(pages), "a page that was cut off was never received"
    assert "/never" not in asked
    assert not any(path.startswith("/private") for path in asked)
    assert asked.count("/loop") == 1
    why = crawl.skipped
    assert why["/loop"] == f"302 redirects into a loop: {site}/loop"
    assert why["/out"] == "301 redirects to a different site: http://127.0.0.2:9/elsewhere"
    assert why["/nowhere"] == "302 redirects to no valid URL: ''"
    assert why["/image"] == "not an HTML page: 200, image/png"
    assert "robots.txt" in why["/private/x"]
    assert {"/cut", "/huge"} <= set(why)
    items = {_path(item["url"]): item for item in crawl.items}
    assert items["/down"]["status"] == 503


@pytest.mark.processes
def test_a_redirect_inside_the_site_is_followed(crawl: Crawl) -> None:
    """Without the endless traps, whose pages would compete for the last places."""
    with nasty_server() as (site, _):
        summary = crawl.run(
            start=f"{site}/", deny="calendar|chain[?]", settings={"DOWNLOAD_MAXSIZE": "100000"}
        )
    assert summary["finish_reason"] == "finished"
    items = {_path(item["url"]): item for item in crawl.items}
    assert items["/page?moved"]["referrer"] == f"{site}/moved"
    assert items["/page?moved"]["depth"] == 1, "a redirect is no link"
    assert crawl.skipped["/chain"].startswith(
        "302 redirects to a URL that allow or deny excludes: http://"
    )


@pytest.mark.processes
def test_everything_that_leads_into_a_loop_of_redirects_is_on_record(crawl: Crawl) -> None:
    with nasty_server() as (site, _):
        crawl.run(start=f"{site}/loops")
    assert {f"/{name}" for name in ("self", "one", "two", "into", "far")} <= set(crawl.skipped)
    assert all(
        "redirects into a loop" in why for path, why in crawl.skipped.items() if path in LOOPS
    )
    lines = [line["url"] for line in crawl.lines("skipped.jsonl")]
    assert len(lines) == len(set(lines)), "each once"


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 9), min_size=1),
    st.randoms(use_true_random=False),
)
def test_loops_of_redirects_are_found_in_any_order(targets: dict[int, int], order: Random) -> None:
    """Checked afterwards, by following each redirect to its end."""
    state: dict[str, Any] = {}
    caught: list[str] = []
    came = list(targets.items())
    order.shuffle(came)
    for source, target in came:
        found = Redirects(state).add(bytes([source]), bytes([target]), (str(source), 0, None))
        caught += [name for name, _, _ in found]

    def ends(place: int) -> bool:
        for _ in range(len(targets) + 1):
            if place not in targets:
                return True
            place = targets[place]
        return False

    assert sorted(caught) == sorted(str(source) for source in targets if not ends(source))


@pytest.mark.processes
@pytest.mark.parametrize("what", ["tags", pytest.param("attributes", marks=pytest.mark.slow)])
def test_a_page_that_is_too_much_for_a_parser_is_skipped(crawl: Crawl, what: str) -> None:
    """The crawler has at most 256 MiB; parsing the page takes more, or minutes."""
    with nasty_server() as (site, _):
        settings = {
            "MEMUSAGE_ENABLED": "1",
            "MEMUSAGE_LIMIT_MB": "256",
            "MEMUSAGE_CHECK_INTERVAL_SECONDS": "0.2",
        }
        summary = crawl.run(start=f"{site}/giant?{what}", settings=settings)
    assert (summary["exit"], summary["finish_reason"]) == (1, "start_error")
    assert "too large to be read: " in summary["message"]
    assert crawl.skipped[f"/giant?{what}"].startswith("too large to be read: ")
    assert summary["peak_memory"] < 400 * 2**20


@pytest.mark.processes
def test_a_large_page_of_words_is_a_page(crawl: Crawl) -> None:
    with nasty_server() as (site, _):
        summary = crawl.run(start=f"{site}/giant?words")
    assert (summary["exit"], [item["words"] for item in crawl.items]) == (0, [2_000_000])


@pytest.mark.processes
def test_a_server_that_names_a_time_is_left_alone_until_then(crawl: Crawl) -> None:
    with nasty_server() as (site, asked):
        summary = crawl.run(start=f"{site}/later", settings={"RETRY_TIMES": "2"})
    assert (summary["exit"], [item["title"] for item in crawl.items]) == (0, ["In time"])
    assert asked.count("/later") == 2


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (b"7", 7.0),
        (b"Thu, 01 Jan 1970 00:16:47 GMT", 7.0),
        (b"Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        *(
            (text, PAUSE_MAX_S)
            for text in (b"99999", b"9" * 5000, b"Fri, 31 Dec 9999 23:59:59 GMT")
        ),
        *(
            (text, 0.0)
            for text in (
                None,
                b"",
                b"-3",
                b"1.5",
                b"nan",
                b"\xb2",
                b"soon",
                b"Thu, 99 Jan 1970 00:16:47 GMT",
            )
        ),
    ],
)
def test_retry_after_is_seconds_or_a_date_within_bounds(
    header: bytes | None, seconds: float
) -> None:
    assert seconds_of(header, 1000.0) == seconds


@given(st.binary(max_size=40))
def test_no_retry_after_breaks_the_walk(header: bytes) -> None:
    assert 0 <= seconds_of(header, 1000.0) <= PAUSE_MAX_S


@pytest.mark.processes
@pytest.mark.parametrize("save", ["html", "text"])
def test_pages_are_kept(crawl: Crawl, folder_site: tuple[str, dict[str, str]], save: str) -> None:
    site, _ = folder_site
    crawl.run(start=site, save=save, allow="chapter-1|gone|nowhere")
    kept = {
        _path(item["url"]): (crawl.folder / "files" / item["file"]).read_bytes()
        for item in crawl.items
    }
    assert set(kept) == {"/", "/chapter-1.html"}
    if save == "html":
        assert kept["/chapter-1.html"] == (crawl.folder / "pages" / "chapter-1.html").read_bytes()
    else:
        assert kept["/chapter-1.html"] == b"home\nhere\nb"
    assert "body" not in crawl.items[0]


@pytest.mark.processes
def test_a_query_that_grows_is_bounded_by_pages_or_depth(crawl: Crawl) -> None:
    with nasty_server() as (site, _):
        # One request at a time: with eight, a machine that delays one response lets the others
        # overtake it.
        summary = crawl.run(
            start=f"{site}/calendar", max_pages="25", settings={"CONCURRENT_REQUESTS": "1"}
        )
        assert summary["finish_reason"] == "closespider_pagecount"
        depths = [item["depth"] for item in crawl.items]
        assert len(depths) == 25
        assert depths == sorted(depths), "breadth first"
        (crawl.folder / "files" / "items.jsonl").unlink()
        summary = crawl.run(start=f"{site}/calendar", max_depth="3", deny="[?]4$")
    assert summary["finish_reason"] == "finished"
    assert {_path(item["url"]) for item in crawl.items} == {
        f"/calendar{q}" for q in ("", "?1", "?2", "?3", "?5")
    }


@pytest.mark.processes
def test_allow_is_for_what_is_followed(
    crawl: Crawl, folder_site: tuple[str, dict[str, str]]
) -> None:
    site, _ = folder_site
    crawl.run(start=site, allow="/chapter")
    assert {_path(item["url"]) for item in crawl.items} == {
        *("/", "/chapter-1.html", "/chapters/", "/chapters/a%20b.html", "/chapters/na%C3%AFve.html")
    }


@pytest.mark.processes
def test_stopped_it_goes_on_where_it_was_and_keeps_to_its_limit(crawl: Crawl) -> None:
    most = Most(8)
    with nasty_server(most) as (site, asked):
        first = crawl.start(start=f"{site}/calendar", max_pages="30")
        until = time.monotonic() + 150
        file = crawl.folder / "files" / "items.jsonl"
        while not file.exists() or len(file.read_text().splitlines()) < 5:
            assert time.monotonic() < until, "not within 150 s"
            time.sleep(0.02)
        first.send_signal(signal.SIGTERM)
        while (
            "Received SIGTERM" not in first.stdout.readline()
        ):  # at its end it prints nothing more, and a line is missing
            assert first.poll() is None
        most.lift()
        summary = crawl.finish(first)
        assert (summary["exit"], summary["finish_reason"], summary["resumable"]) == (
            11,
            "shutdown",
            True,
        )
        done = len(crawl.items)
        assert 5 <= done < 30
        summary = crawl.run(start=f"{site}/calendar", max_pages="30", resume=True)
    assert summary["finish_reason"] == "closespider_pagecount"
    urls = [item["url"] for item in crawl.items]
    assert len(urls) == len(set(urls)) == 30
    assert (summary["items"], summary["pages"]) == (30, 30), "those of both attempts"
    assert len(asked) == len(set(asked)) + 1  # robots.txt once each time


@pytest.mark.processes
@pytest.mark.parametrize(
    ("start", "more"),
    [
        *(
            (start, {})
            for start in ("http://127.0.0.1:9/", "{site}/image", "{site}/down", "{site}/private")
        ),
        ("{site}/far", {}),
        *(
            pytest.param(f"{{site}}/{path}", {}, marks=pytest.mark.slow)
            for path in ("out", "loop", "one", "chain", "nowhere")
        ),
        ("{site}/moved", {"max_pages": "1"}),
        ("{site}/one", {"max_depth": "0", "allow": "elsewhere"}),
    ],
)
def test_without_its_start_a_crawl_has_failed(
    crawl: Crawl, start: str, more: dict[str, str]
) -> None:
    """This includes redirects that lead nowhere, whatever the limits."""
    with nasty_server() as (site, _):
        summary = crawl.run(start=start.format(site=site), **more)
    assert (summary["exit"], summary["finish_reason"]) == (1, "start_error")
    assert summary["message"].startswith(f"the start {start.format(site=site)} cannot be used: ")
    assert summary["message"] in crawl.output


@pytest.mark.processes
def test_a_start_that_moved_is_followed_whatever_is_allowed(crawl: Crawl) -> None:
    with nasty_server() as (site, _):
        summary = crawl.run(start=f"{site}/moved", max_depth="0", allow="elsewhere")
    assert (summary["exit"], [_path(item["url"]) for item in crawl.items]) == (0, ["/page?moved"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "start: missing"),
        ({"start": "ftp://x/"}, "start: 'ftp://x/' is not the address"),
        ({"start": "http://x:99999/"}, "start: 'http://x:99999/' is not the address"),
        ({"start": "http://x/", "max_pages": "0"}, "max_pages: '0' is not allowed"),
        ({"start": "http://x/", "max_depth": "-1"}, "max_depth: '-1' is not allowed"),
        ({"start": "http://x/", "delay": "nan"}, "delay: 'nan' is not allowed"),
        ({"start": "http://x/", "save": "pdf"}, "save: 'pdf' is not allowed; give html or text"),
        ({"start": "http://x/", "deny": "("}, "deny: '(' is not a valid regular expression"),
    ],
)
def test_wrong_arguments_are_refused_by_name(args: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        Scope.read(**args)


@pytest.mark.processes
def test_a_refusal_is_the_reason_of_the_end(crawl: Crawl) -> None:
    summary = crawl.run(start="http://127.0.0.1:9/", max_pages="many")
    assert summary["exit"] == 4
    assert summary["message"].startswith(
        "Bad configuration: max_pages: 'many' is not allowed; give a whole number"
    )


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
    assert (scope.start, scope.max_pages, scope.max_depth, scope.delay) == (
        "http://a/",
        MAX_PAGES,
        None,
        0,
    )
