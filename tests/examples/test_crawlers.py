"""The example crawlers, run as real processes against the demonstration site."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from tests.examples.demo_site import ROOT, RunningSite
from tests.support.scrapy_alone import without_pydantic

pytestmark = pytest.mark.processes

PROJECT = ROOT / "examples" / "crawlers"
OPERATIONS = {"sqs": 23, "dax": 21, "polly": 13, "glacier": 33}


@pytest.fixture(scope="module", autouse=True)
def as_in_the_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set up the environment of the image for all crawls of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", without_pydantic(tmp_path_factory.mktemp("image")))
        yield


def start(
    command: list[str], files: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """Start a crawler as a user would, with only the given variables of ours in its environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CRAWL_")}
    if files is not None:
        environment["CRAWL_FILES_DIR"] = str(files)
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=PROJECT,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a crawler's end. Return its exit code and output."""
    with process:
        try:
            output, _ = process.communicate(timeout=150)
        finally:
            process.kill()
    return process.returncode, output


def scrapy(spider: str, *options: str, delay: float = 0) -> list[str]:
    return ["-m", "scrapy", "crawl", spider, "-s", f"DOWNLOAD_DELAY={delay}", *options]


def finish_reason(output: str) -> str:
    """Return the reason that Scrapy itself reports at the end of its log."""
    (reason,) = re.findall(r"'finish_reason': '(.*?)'", output)
    return str(reason)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def document(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def wait_for_lines(file: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 150
    while not file.is_file() or len(file.read_text(encoding="utf-8").splitlines()) < count:
        assert process.poll() is None, f"ended too early: {finish(process)}"
        assert time.monotonic() < deadline, "not within 150 s"
        time.sleep(0.05)


def test_services(site: RunningSite, tmp_path: Path) -> None:
    # An injected extension must not damage the project.
    injected = '{"scrapy.extensions.debug.StackTraceDump": 10}'
    crawl = scrapy("services", "-a", f"site={site.url}", "-s", f"EXTENSIONS={injected}")
    code, output = finish(start(crawl, tmp_path))
    assert code == 0
    assert finish_reason(output) == "finished"
    assert "StackTraceDump" in output

    items = {item["id"]: item for item in lines(tmp_path / "items.jsonl")}
    assert {name: item["operations"] for name, item in items.items()} == OPERATIONS
    assert items["sqs"]["title"] == "Amazon Simple Queue Service"
    assert items["sqs"]["protocol"] == "json"
    assert all(item["description_length"] > 0 for item in items.values())

    summary = document(tmp_path / "summary.json")
    assert summary["finish_reason"] == "finished"
    assert summary["items"] == {"Service": 4}
    assert summary["responses"] == {"200": 6}  # robots.txt, the front page, four services
    assert len((tmp_path / "urls.txt").read_text().splitlines()) == 6
    assert len(list((tmp_path / "pages").glob("*.html"))) == 5
    assert not (tmp_path / "summary.json.tmp").exists()


def test_operations_by_letters(site: RunningSite, tmp_path: Path) -> None:
    crawl = scrapy(
        "operations", "-a", f"site={site.url}", "-a", "letters=o-r,s", "-a", "max_pages=30"
    )
    code, output = finish(start(crawl, tmp_path))
    assert (code, finish_reason(output)) == (0, "finished")
    items = lines(tmp_path / "items.jsonl")
    assert len({item["url"] for item in items}) == len(items) == 30  # of 36 in sqs and polly
    assert {item["service"] for item in items} == {"sqs", "polly"}


def test_operations_of_one_service(site: RunningSite, tmp_path: Path) -> None:
    crawl = scrapy("operations", "-a", f"site={site.url}", "-a", "service=sqs")
    code, output = finish(start(crawl, tmp_path))
    assert (code, finish_reason(output)) == (0, "finished")
    items = {item["operation"]: item for item in lines(tmp_path / "items.jsonl")}
    assert len(items) == OPERATIONS["sqs"]
    send = items["SendMessage"]
    assert send["required"] == ["QueueUrl", "MessageBody"]
    assert set(send["required"]) < set(send["inputs"])
    assert "MessageId" in send["outputs"]
    assert "QueueDoesNotExist" in send["errors"]


def test_sitemap_reports_every_address_and_obeys_robots(site: RunningSite, tmp_path: Path) -> None:
    before = site.requests()
    code, output = finish(start(scrapy("sitemap", "-a", f"site={site.url}"), tmp_path))
    assert (code, finish_reason(output)) == (0, "finished")

    items = lines(tmp_path / "items.jsonl")
    statuses = Counter(item["status"] for item in items)
    assert len({item["url"] for item in items}) == len(items)
    assert statuses[404] == 5
    assert statuses[302] == 4
    assert statuses[200] == len(items) - 9 > 100
    assert {item["location"] for item in items if item["status"] == 302} == {
        f"{site.url}/services/{name}/" for name in OPERATIONS
    }
    again = {item["url"].rpartition("/")[2] for item in items if item["retries"]}
    assert again == {"7", "14", "21"}

    # The sitemap lists a page that it should not.
    assert document(tmp_path / "summary.json")["forbidden_by_robots"] == 1
    assert site.requests().get("private", 0) == before.get("private", 0) == 0


def test_one_sigterm_ends_in_order_and_the_crawl_can_go_on(
    site: RunningSite, tmp_path: Path
) -> None:
    crawl = ("-a", f"site={site.url}", "-s", f"JOBDIR={tmp_path / 'job'}")
    first = start(scrapy("operations", *crawl, delay=0.5), tmp_path / "files")
    wait_for_lines(tmp_path / "files" / "items.jsonl", 5, first)
    first.send_signal(signal.SIGTERM)
    code, output = finish(first)
    assert (code, finish_reason(output)) == (0, "shutdown")
    assert document(tmp_path / "files" / "summary.json")["finish_reason"] == "shutdown"
    done = lines(tmp_path / "files" / "items.jsonl")
    assert 5 <= len(done) < sum(OPERATIONS.values())
    assert "unserializable" not in output.lower()

    code, output = finish(start(scrapy("operations", *crawl), tmp_path / "files"))
    assert (code, finish_reason(output)) == (0, "finished")
    everything = [item["url"] for item in lines(tmp_path / "files" / "items.jsonl")]
    assert len(everything) == len(set(everything)) == sum(OPERATIONS.values())


@pytest.mark.parametrize(
    ("spider", "arguments", "complaint"),
    [
        ("services", [], "give the site to crawl"),
        ("operations", ["site=ftp://x"], "not the address of a site"),
        ("operations", ["site=http://127.0.0.1:9", "letters=1-3"], "letters must look like"),
    ],
)
def test_wrong_arguments_are_refused(spider: str, arguments: list[str], complaint: str) -> None:
    options = [option for argument in arguments for option in ("-a", argument)]
    code, output = finish(start(scrapy(spider, *options)))
    assert code == 1
    assert complaint in output


def test_without_a_folder_nothing_is_written(site: RunningSite, tmp_path: Path) -> None:
    before = {path.name for path in PROJECT.iterdir()}
    feed = tmp_path / "feed.jsonl"
    crawl = scrapy("operations", "-a", f"site={site.url}", "-a", "service=polly", "-o", str(feed))
    code, output = finish(start(crawl))
    assert (code, finish_reason(output)) == (0, "finished")
    assert len(lines(feed)) == OPERATIONS["polly"]
    assert {path.name for path in PROJECT.iterdir()} == before


def test_the_scrapy_project_knows_nothing_of_this_service() -> None:
    for file in PROJECT.rglob("*.py"):
        imported = {
            name
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [each.name for each in node.names]
            )
        }
        assert not any(name.startswith("crawler_lifecycle") for name in imported), file


def test_plain_crawler(site: RunningSite, tmp_path: Path) -> None:
    arguments = json.dumps({"site": site.url, "max_pages": "12", "delay": "0.01"})
    stats = tmp_path / "stats.json"
    code, output = finish(
        start(
            ["plain_crawler.py"],
            tmp_path / "files",
            CRAWL_ARGS=arguments,
            CRAWL_STATS_FILE=str(stats),
        )
    )
    assert code == 0, output
    assert len(lines(tmp_path / "files" / "items.jsonl")) == 12
    assert document(tmp_path / "files" / "summary.json")["finish_reason"] == "finished"
    end = document(stats)
    assert (end["pages"], end["items"], end["finish_reason"], end["resumable"]) == (
        12,
        12,
        "finished",
        False,
    )
    assert end["bytes"] > 10_000


def test_plain_crawler_stops_in_order_and_goes_on(site: RunningSite, tmp_path: Path) -> None:
    command = ["plain_crawler.py", "--site", site.url, "--max-pages", "20"]
    state = {"CRAWL_STATE_DIR": str(tmp_path / "state")}
    first = start([*command, "--delay", "1"], tmp_path / "files", **state)
    wait_for_lines(tmp_path / "files" / "items.jsonl", 3, first)
    first.send_signal(signal.SIGTERM)
    code, output = finish(first)
    assert code == 11, output
    assert document(tmp_path / "files" / "summary.json")["finish_reason"] == "shutdown"

    code, output = finish(
        start([*command, "--delay", "0.01"], tmp_path / "files", CRAWL_RESUME="1", **state)
    )
    assert code == 0, output
    urls = [item["url"] for item in lines(tmp_path / "files" / "items.jsonl")]
    assert len(urls) == len(set(urls)) == 20


def test_plain_crawler_fails_with_a_reason(site: RunningSite, tmp_path: Path) -> None:
    code, output = finish(
        start(
            ["plain_crawler.py", "--site", site.url, "--fail-after", "2", "--delay", "0.01"],
            tmp_path,
        )
    )
    assert code == 1
    assert "on purpose after 2 pages" in output
    assert document(tmp_path / "summary.json")["finish_reason"] == "failed"

    code, output = finish(start(["plain_crawler.py", "--site", "http://127.0.0.1:9"]))
    assert code == 1
    assert "error:" in output

    for wrong in ([], ["--site", "file:///"], ["--site", site.url, "--max-pages", "x"]):
        code, output = finish(start(["plain_crawler.py", *wrong]))
        assert code == 4, output


def test_the_catalogue_declares_what_exists() -> None:
    catalogue = ROOT / "examples" / "crawlers.yaml"
    entries = pydantic.TypeAdapter(list[CrawlerDefinition]).validate_python(
        yaml.safe_load(catalogue.read_text())
    )
    assert [entry.name for entry in entries] == [
        "services",
        "operations",
        "sitemap",
        "plain",
        "broken",
    ]
    for entry in entries:
        project = catalogue.parent / (entry.project or ".")
        if entry.kind is CrawlerKind.SCRAPY:
            assert (project / "scrapy.cfg").is_file()
            assert (project / "apidocs" / "spiders" / f"{entry.spider_name}.py").is_file()
        else:
            assert entry.command[0] == "python"
            assert (project / entry.command[1]).is_file()
        assert entry.args["site"].default == "http://127.0.0.1:8400"
