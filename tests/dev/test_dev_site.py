"""``crawlctl dev --site FOLDER``: the quick start of docs/first-crawl.md as it is written, and what
is refused.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.story_checks import run_folder
from tests.dev.dev_support import ANSWER_S, ROOT, Dev, wait_until
from tests.support import in_process
from tests.support.generic_site import write_pages

QUICK_START = re.compile(
    r"```console\n\$ crawlctl dev (--site \./pages)\n.*?\$ crawlctl (start site[^\n]*)\n", re.DOTALL
)


def _items(stack: Dev, run_id: int) -> list[dict[str, Any]]:
    file = run_folder(stack.state_dir, run_id) / "0" / "1" / "files" / "items.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Dev]:
    """A stack with the usual state directory in an empty folder, with pages in it."""
    write_pages(tmp_path / "pages")
    # A proxy that reaches nothing, like many that do not reach the user's own machine.
    proxy = {
        "http_proxy": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "intranet.example",
    }
    stack = Dev(tmp_path / ".crawl", options=("--ports", "free"), env=proxy)
    yield stack
    stack.close()


def test_the_quick_start(empty: Dev) -> None:
    found = QUICK_START.search((ROOT / "docs" / "first-crawl.md").read_text())
    assert found is not None, "the quick start has left docs/first-crawl.md"
    empty.start(*found[1].split())
    site = empty.known["site"]
    assert f"site       {site}" in empty.spoken
    assert empty.spoken.rstrip().endswith("next: crawlctl start site")
    # Without --gateway: it is found through .crawl/dev.json, as for everybody who follows the page.
    command = [
        sys.executable,
        "-m",
        "crawler_lifecycle.cli",
        *found[2].split(),
        "--poll-minutes",
        "0.02",
        "-o",
        "name",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=empty.state_dir.parent, timeout=ANSWER_S
    )
    assert done.returncode == 0, done.stderr
    titles = write_pages(empty.state_dir.parent / "pages")
    items = _items(empty, 1)
    assert {
        item["url"].removeprefix(site): item["title"] for item in items if item["status"] == 200
    } == titles
    [run] = [json.loads(empty.crawlctl("describe", "1", "-o", "json").stdout)]
    assert (run["status"], run["outcome"], run["items"]) == (
        "COMPLETED",
        "finished",
        len(titles) + 1,
    )
    refused = empty.crawlctl(
        "start", "site", "-a", "max_pages=many", "--wait", "--poll-minutes", "0.02", check=False
    )
    assert refused.returncode == 5
    assert (
        "max_pages: 'many' is not allowed" in empty.crawlctl("describe", "2", "-o", "json").stdout
    )


SPIDER = """
import scrapy


class Products(scrapy.Spider):
    name = "products"
    start_urls = ["data:text/html,<title>pen</title>"]

    def parse(self, response):
        yield {"title": response.css("title::text").get()}
"""
#: The beginning of each case on the page, and the output of its last command.
CASES = {
    "**A Scrapy project**": "pen",
    "**A Python program**": "ink",
    "**If a run fails**": "named 'bs5'",
}
CASES |= {"**A Node program**": "nib"} if shutil.which("node") else {}


def test_the_readers_own_cases(serving: Dev, request: pytest.FixtureRequest) -> None:
    """The first commands of docs/first-crawl.md, typed as written, in one stack, which reads each
    catalogue.
    """
    page = (ROOT / "docs" / "first-crawl.md").read_text()
    here = serving.state_dir.parent
    _restore_catalogue(serving, request)
    _write_shop(here)
    (here / "broken.py").write_text("import bs5\n")
    for name, language in (("fetch.py", "python"), ("fetch.js", "js")):
        (here / name).write_text(page.partition(f"```{language}\n")[2].partition("```")[0])
    for begin, told in CASES.items():
        typed = _typed(page[page.index(begin) :])
        assert [words.split()[:2] for words in typed[1:3]] == [
            ["crawlctl", word] for word in ("dev", "start")
        ]
        subprocess.run(["sh", "-c", typed[0]], cwd=here, check=True, timeout=ANSWER_S)
        crawler = typed[2].split()[2]
        wait_until(lambda name=crawler: set(serving.crawlers()) == {name, "site"})
        number = _newest(serving)["run_id"] + 1
        last = typed[3].replace("items 1", f"items {number}")
        for line, more in ((typed[2], ["--poll-minutes", "0.02"]), (last, [])):
            done = in_process.crawlctl(*line.split()[1:], *more, env=os.environ, folder=here)
            assert done.returncode == (5 if "start broken" in line else 0), (line, done.stderr)
        assert told in done.stdout
        run = _newest(serving)
        assert (run["run_id"], run["items"]) == (number, None if crawler == "broken" else 1)


def _restore_catalogue(stack: Dev, request: pytest.FixtureRequest) -> None:
    """Write the catalogue again after the test."""
    catalogue = stack.state_dir.parent / "crawlers.yaml"
    before = catalogue.read_text()

    def back() -> None:
        catalogue.write_text(before)
        wait_until(lambda: set(stack.crawlers()) == {"quick", "site"})

    request.addfinalizer(back)


def _write_shop(here: Path) -> Path:
    """Write the project of the page. Return the path of its spider."""
    (here / "shop" / "shop").mkdir(parents=True, exist_ok=True)
    (here / "shop" / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (here / "shop" / "shop" / "settings.py").write_text("SPIDER_MODULES = ['shop.products']\n")
    spider = here / "shop" / "shop" / "products.py"
    spider.write_text(SPIDER)
    return spider


def _typed(text: str) -> list[str]:
    """Return the commands in the first console block of a text."""
    block = text.partition("```console\n")[2].partition("```")[0]
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    return [line for line in lines if not line.startswith("#")]


def test_the_page_about_deploys(serving: Dev, request: pytest.FixtureRequest) -> None:
    """docs/deploy-crawlers.md, typed as written.

    Its last block needs other projects' programs: tests/gateway/scrapyd/test_deploys.py sends what
    they send.
    """
    page = (ROOT / "docs" / "deploy-crawlers.md").read_text()
    here = serving.state_dir.parent
    _restore_catalogue(serving, request)
    request.addfinalizer(lambda: _said(serving, "crawlctl package delete shop"))
    spider = _write_shop(here)
    first, second = _typed(page), _typed(page[page.index("## Change") :])
    assert first[1] == "crawlctl dev"
    subprocess.run(["sh", "-c", first[0]], cwd=here, check=True, timeout=ANSWER_S)
    wait_until(lambda: "products" in serving.crawlers())
    said = [_said(serving, line) for line in first[2:4]]
    assert "v1" in said[0]
    assert "pen" in _said(serving, f"crawlctl items {_newest(serving)['run_id']}")
    spider.write_text(SPIDER.replace("pen", "ink"))
    executed = []
    for line in second:
        said.append(_said(serving, line))
        if "start" in line:
            run = _newest(serving)
            items = _said(serving, f"crawlctl items {run['run_id']}")
            executed.append((run["codes"][0]["version"], "ink" in items))
    assert executed == [("v2", True), ("v1", False), ("v2", True)]
    request.addfinalizer(lambda: _said(serving, "crawlctl crawler delete press"))
    for line in _typed(page[page.index("## Images") :]):
        said.append(_said(serving, line))
    assert "press:1" in _said(serving, "crawlctl crawler describe press -o json")
    (here / "fleet").mkdir()
    (here / "fleet" / "shop.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    request.addfinalizer(lambda: _said(serving, "crawlctl schedule delete nightly"))
    for line in _typed(page[page.index("## A folder") :]):
        said.append(_said(serving, line))
    assert "press:3" in _said(serving, "crawlctl crawler describe press -o json")
    assert "nightly" in _said(serving, "crawlctl schedule list")


def _said(stack: Dev, line: str) -> str:
    """Type a command. Return its output."""
    here = stack.state_dir.parent
    more = ["--poll-minutes", "0.02"] if " start " in line else []
    done = in_process.crawlctl(*shlex.split(line)[1:], *more, env=os.environ, folder=here)
    assert done.returncode == 0, (line, done.stderr)
    return str(done.stdout)


def _newest(stack: Dev) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(stack.crawlctl("list", "-o", "json").stdout)["runs"]
    return found[0] if found else {"run_id": 0}


def test_beside_a_catalogue_of_ones_own(serving: Dev) -> None:
    catalogue = serving.state_dir.parent / "crawlers.yaml"
    before = catalogue.read_text()
    assert set(serving.crawlctl("crawler", "list", "-o", "name").stdout.split()) == {
        "quick",
        "site",
    }
    # Read again, and it takes precedence.
    catalogue.write_text("- {name: site, kind: command, command: ['false']}\n")
    try:
        wait_until(lambda: serving.crawlers() == ["site"])
        assert (
            json.loads(serving.crawlctl("crawler", "describe", "site", "-o", "json").stdout)["kind"]
            == "command"
        )
    finally:
        catalogue.write_text(before)
    wait_until(lambda: set(serving.crawlers()) == {"quick", "site"})


@pytest.mark.parametrize(
    ("make", "words"),
    [(None, "does not exist"), ("file", "is not a folder"), ("folder", "has no HTML page")],
)
def test_what_is_no_site_is_refused_before_anything_starts(
    tmp_path: Path, make: str | None, words: str
) -> None:
    target = tmp_path / "target"
    if make == "file":
        target.write_text("x")
    elif make == "folder":
        target.mkdir()
    command = [sys.executable, "-m", "crawler_lifecycle.cli", "dev", "--site", "target"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=ANSWER_S,
        env=dict(os.environ),
    )
    assert done.returncode == 2
    assert "--site: target" in done.stderr
    assert words in done.stderr
    assert not (tmp_path / ".crawl").exists()
