"""Deployed code: how soon a deployed version executes, what a start from a package costs compared
with a start from a folder, and how fast a gateway answers among 500 crawlers with 50 versions each.

``BENCHMARK_PARTS`` selects parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import sqlalchemy as sa

from benchmarks.sizes import size
from benchmarks.stack import running_stack
from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.features.catalogue.store.tables import catalogue_change, catalogue_entry
from tests.support.filling import patient_engine

FILES = size(200, 20)
DEPLOYS = size(5, 1)
STARTS = size(30, 2)
CRAWLERS = size(500, 10)
VERSIONS = size(50, 3)
READS = size(15, 2)
#: A spider and what it imports: each module has some kilobytes, as those of real projects.
_MODULE = "\n".join(
    f"def parse_{n}(response):\n"
    f"    for row in response.css('div.product-{n}'):\n"
    "        name, price = row.css('h2::text').get(), row.css('.price::text').get()\n"
    "        if name and price:\n"
    "            yield {'name': name.strip(), 'price': float(price.strip('€ '))}\n"
    for n in range(8)
)
#: The first thing that a spider does is to note the time.
_SPIDER = """
import os, time
import scrapy

class Products(scrapy.Spider):
    name = "products"

    async def start(self):
        with open(os.path.join(os.environ["CRAWL_FILES_DIR"], "executed"), "w") as file:
            file.write(str(time.time()))
        return
        yield
"""


@dataclass
class Harness:
    """A stack, and the project that is deployed to it."""

    stack: Stack
    project: Path

    @property
    def url(self) -> str:
        """The address of the gateway."""
        return str(self.stack.addresses["gateway"])

    def cli(self, *words: str) -> None:
        """Execute a command of crawlctl."""
        command = [sys.executable, "-m", "crawler_lifecycle.cli", *words, "--gateway", self.url]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def executed(self, run_id: int) -> float:
        """Wait until the spider of a run executes, and return that time in seconds since the
        epoch. Raises ``TimeoutError``.
        """
        until = time.monotonic() + 60
        while time.monotonic() < until:
            tasks = self.stack.state_dir / "cluster" / "tasks"
            for file in tasks.glob(f"{run_id}-*/0/1/files/executed"):
                if text := file.read_text():
                    return float(text)
            time.sleep(0.02)
        raise TimeoutError(f"run {run_id} did not execute")


@contextlib.contextmanager
def harness() -> Iterator[Harness]:
    """A stack whose catalogue has the same spider in a folder and in a package."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = write_project(folder / "shop")
        scrapy = {"kind": "scrapy", "spider": "products"}
        entries = [
            {"name": "folder", "project": str(project), **scrapy},
            {"name": "package", "package": "shop", **scrapy},
        ]
        (folder / "crawlers.yaml").write_text(json.dumps(entries))
        with running_stack(folder) as stack:
            yield Harness(stack, project)


def write_project(project: Path) -> Path:
    """Write a Scrapy project of ``FILES`` files, and return its folder."""
    package = project / "shop"
    spiders = package / "spiders"
    spiders.mkdir(parents=True)
    (project / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (package / "__init__.py").touch()
    (package / "settings.py").write_text('SPIDER_MODULES = ["shop.spiders"]\n')
    (spiders / "__init__.py").touch()
    for n in range(FILES - 5):
        (spiders / f"parser_{n}.py").write_text(_MODULE)
    (spiders / "products.py").write_text(_SPIDER)
    return project


def deploy(bench: Harness) -> None:
    """Print the time from a deploy until the first run with that version executes."""
    waits = []
    for n in range(DEPLOYS):
        spider = bench.project / "shop" / "spiders" / "products.py"
        spider.write_text(f"{_SPIDER}\n# {n}\n")
        began = time.time()
        bench.cli("deploy", str(bench.project), "--version", f"v{n}")
        deployed = time.time()
        bench.cli("start", "package", "--version", f"v{n}")
        waits.append((deployed - began, bench.executed(_newest(bench)) - began))
    _print(f"crawlctl deploy, {FILES} files", "-", [wait[0] for wait in waits])
    _print("from that command until the first run executes", "<= 5 s", [wait[1] for wait in waits])


def start(bench: Harness) -> None:
    """Print the time from the start of a run until its spider executes, in turns."""
    bench.cli("deploy", str(bench.project), "--version", "start")
    waits: dict[str, list[float]] = {"folder": [], "package": []}
    with Gateway(bench.url, timeout_s=60) as gateway:
        for n in range(2 + STARTS):
            for crawler, found in waits.items():
                began = time.time()
                run = gateway.start({"crawler": crawler}, f"{began}")
                found.append(bench.executed(int(str(run["run_id"]))) - began)
                if n < 2:  # fills all caches
                    found.clear()
                while gateway.runs(status=["INITIALIZING", "PROCESSING"]):
                    time.sleep(0.05)
    for crawler, found in waits.items():
        _print(f"start from a {crawler}", "-", found)
    more = statistics.median(waits["package"]) - statistics.median(waits["folder"])
    print(
        f"| a start from a package takes longer by | <= 50 ms | {more * 1000:.0f} ms |", flush=True
    )


def catalogue(bench: Harness) -> None:
    """Print how fast the gateway answers among many entries with many versions."""
    _fill(bench.stack.layout.database_file)
    pages = {
        "Fleet, the list of crawlers (page)": "/",
        "start form (page)": "/runs/new?crawler=entry-7",
        "page of a crawler": "/crawlers/entry-7",
        "its versions (page)": "/crawlers/entry-7/versions",
        "GET /v1/entries": "/v1/entries",
        "GET /v1/crawlers": "/v1/crawlers",
        "GET /v1/crawlers/NAME": "/v1/crawlers/entry-7",
        "GET /v1/crawlers/NAME/history": "/v1/crawlers/entry-7/history",
    }
    with httpx.Client(base_url=bench.url, timeout=60, trust_env=False) as http:
        for title, path in pages.items():
            _get(http, path)
            _print(
                title,
                "<= 0.1 s",
                [_timed(lambda path=path: _get(http, path)) for _ in range(READS)],
            )


def _fill(database: Path) -> None:
    now = datetime.now(UTC)
    entries = []
    changes = []
    for n in range(CRAWLERS):
        name = f"entry-{n}"
        entries.append({"name": name, "number": VERSIONS, "changed_at": now})
        for number in range(1, VERSIONS + 1):
            document = {"kind": "command", "command": ["true", str(number)]}
            document |= {"args": {"shelf": {"default": "a"}}}
            row = {"name": name, "number": number, "document": document, "changed_at": now}
            changes.append(row)
    engine = patient_engine(f"sqlite:///{database}")
    with engine.begin() as conn:
        conn.execute(sa.insert(catalogue_entry), entries)
        conn.execute(sa.insert(catalogue_change), changes)
    engine.dispose()


def _get(http: httpx.Client, path: str) -> None:
    http.get(path).raise_for_status()


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _newest(bench: Harness) -> int:
    with Gateway(bench.url, timeout_s=60) as gateway:
        return int(str(gateway.runs(limit=1)[0]["run_id"]))


def _print(what: str, target: str, seconds: list[float]) -> None:
    middle, most = statistics.median(seconds), max(seconds)
    print(f"| {what} | {target} | {middle:.3f} s, at most {most:.3f} s |", flush=True)


PARTS: dict[str, Callable[[Harness], None]] = {
    "deploy": deploy,
    "start": start,
    "catalogue": catalogue,
}


def _measure() -> None:
    with harness() as bench:
        for part in os.environ.get("BENCHMARK_PARTS", ",".join(PARTS)).split(","):
            PARTS[part](bench)


async def main() -> None:
    """Print the figures of all parts."""
    await asyncio.to_thread(_measure)
