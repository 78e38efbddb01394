"""docs/foreign-crawlers.md: its crawlers are installed as it says, crawl, are stopped, are killed,
and continue.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.clusters.local.processes.identity import Identity
from crawler_lifecycle.runner.signs import below
from examples.story_checks import run_folder
from tests.dev.dev_support import ROOT, Dev, wait_until
from tests.runner.lease_gateway import JournalSite, LeaseGateway
from tests.runner.runner_fixture import RUNNER
from tests.support.gated_site import FREE, PAGES, GatedSite, gated_site
from tests.ui.browser import executable

pytestmark = pytest.mark.timeout(1800)

PAGE = (ROOT / "docs" / "foreign-crawlers.md").read_text()
#: Each crawler, and the words in its log that show that it received its stop.
CRAWLERS = {
    "crawlee-node": "Pausing...",
    "crawlee-python": "Pausing...",
    "playwright": "stopping after this page",
    "browsertrix": "gracefully finishing current pages",
}
#: Far longer than it takes to fetch and unpack 240 MB.
INSTALLED_S = 900.0
BRIEF = {"poll_minutes": [0.02]}


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """A stack in a copy of the folder, in which the commands of the page were typed."""
    executable()
    folder = tmp_path_factory.mktemp("foreign") / "foreign"
    ignored = shutil.ignore_patterns("node_modules", ".venv", ".crawl")
    shutil.copytree(ROOT / "examples" / "foreign", folder, ignore=ignored)
    typed = re.findall(r"^\$ ((?:npm|python3|\.venv/bin/pip) .*)$", PAGE, re.M)
    assert len(typed) == 3
    node, *python = typed
    stack = Dev(folder / ".crawl", env={"LIFECYCLE_CLUSTER__SLOTS": "16"})
    env = os.environ | {"PIP_NO_COMPILE": "1"}
    steps = [
        subprocess.Popen(["bash", "-ec", words], cwd=folder, env=env)
        for words in (node, "\n".join(python))
    ]
    try:
        stack.start()
        assert [step.wait(INSTALLED_S) for step in steps] == [0, 0]
        yield stack
    finally:
        for step in steps:
            step.kill()
            step.wait()
        stack.close()


def start(dev: Dev, crawler: str, **args: str) -> int:
    request = {"crawler": crawler, "args": args, **BRIEF}
    with Gateway(dev.known["gateway"]) as gateway:
        return int(gateway.start(request, uuid.uuid4().hex)["run_id"])


def run(dev: Dev, number: int) -> dict[str, Any]:
    with Gateway(dev.known["gateway"]) as gateway:
        return dict(gateway.run(number))


def wait_for_end(dev: Dev, number: int) -> dict[str, Any]:
    wait_until(lambda: run(dev, number)["status"] in ("COMPLETED", "FAILED"))
    return run(dev, number)


def attempt(dev: Dev, number: int, which: int) -> Path:
    return run_folder(dev.state_dir, number) / "0" / str(which)


def log(dev: Dev, number: int, which: int) -> str:
    return (attempt(dev, number, which) / "log").read_text()


def stop(dev: Dev, crawler: str, number: int, site: GatedSite, name: str) -> None:
    """Stop it in the middle of a page, which is served only when the crawler has received the stop."""
    with Gateway(dev.known["gateway"]) as gateway:
        gateway.stop(number, reason="enough", requested_by="Ada")
    wait_until(lambda: CRAWLERS[crawler] in log(dev, number, 1))
    site.open(name)
    found = wait_for_end(dev, number)
    assert (found["status"], found["outcome"]) == ("FAILED", "cancelled"), (name, found["cause"])


def kill(dev: Dev, crawler: str, number: int, site: GatedSite, name: str) -> None:
    """Kill only the first process of the crawler: the processes that it started must be found and
    ended.
    """
    runner = json.loads((attempt(dev, number, 1) / "process.json").read_text())["pid"]
    family = [Identity.of(pid) for pid in below(runner)]
    os.kill(
        int(Path(f"/proc/{runner}/task/{runner}/children").read_text().split()[0]), signal.SIGKILL
    )
    found = wait_for_end(dev, number)
    assert (found["status"], found["outcome"]) == ("FAILED", "failed"), (name, found["cause"])
    assert not [one for one in family if one.alive()], name
    site.open(name)


@pytest.mark.slow
def test_all_go_on_after_a_stop_and_after_a_kill(dev: Dev) -> None:
    """Only pages that the crawler was processing are requested again."""
    with gated_site() as site:
        runs = {}
        for way in (stop, kill):
            for crawler in CRAWLERS:
                name = f"{crawler}-{way.__name__}"
                more = (
                    {"options": "--saveStateInterval 0"}
                    if crawler == "browsertrix"
                    else {"max_pages": "1000"}
                )
                runs[name] = (way, crawler, start(dev, crawler, site=site.address(name), **more))
        in_hand = {}
        for name, (way, crawler, number) in runs.items():
            wait_until(lambda name=name: site.waiting[name])
            in_hand[name] = set(site.waiting[name])
            way(dev, crawler, number, site, name)
            in_hand[name] |= site.waiting[name]
        for _, _, number in runs.values():
            with Gateway(dev.known["gateway"]) as gateway:
                gateway.resume(number)
        for name, (_, crawler, number) in runs.items():
            found = wait_for_end(dev, number)
            told = (name, found["cause"], found["resumption"], log(dev, number, 2)[-3000:])
            assert (found["status"], found["outcome"]) == ("COMPLETED", "finished"), told
            assert [row["resumed"] for row in found["resumption"]] == [True], told
            assert set(site.asked[name]) == set(range(PAGES)), told
            assert {page for page, times in site.asked[name].items() if times > 1} <= in_hand[
                name
            ], told
            judge_files(attempt(dev, number, 2) / "files", crawler)
            # A kill loses what was counted since the last time that it was saved.
            assert (PAGES - FREE if "kill" in name else PAGES - 4) <= found["pages"] <= PAGES, told


def judge_files(files: Path, crawler: str) -> None:
    if crawler == "browsertrix":
        with zipfile.ZipFile(files / "crawl.wacz") as wacz:
            assert wacz.testzip() is None
            assert {"datapackage.json", "indexes/index.cdxj", "pages/pages.jsonl"} <= set(
                wacz.namelist()
            )
    elif crawler == "playwright":
        assert len(list((files / "pages").glob("*.png"))) == len(
            (files / "items.jsonl").read_text().splitlines()
        )
    else:
        assert {item["title"] for item in json.loads((files / "items.json").read_text())} == set(
            map(str, range(PAGES))
        )


#: Options of browsertrix, and the result of the exit code to which they lead.
ENDS = {
    "--collection a/b": (4, "FAILED", "failed"),
    "--failOnFailedLimit 1 --pageLoadTimeout 0.001": (12, "FAILED", "failed"),
    "--sizeLimit 2000": (14, "COMPLETED", "size_limit"),
    "--timeLimit 1 --delay 0.4": (15, "COMPLETED", "time_limit"),
    "--diskUtilization 1": (3, "FAILED", "diskusage_exceeded"),
    "--standInExit 3": (3, "FAILED", "diskusage_exceeded"),
    "--standInExit 9": (9, "FAILED", "failed"),
    "--standInExit 10": (10, "FAILED", "failed"),
    "--standInExit 11": (11, "FAILED", "interrupted"),
    "--standInExit 13": (13, "FAILED", "interrupted"),
    "--standInExit 17": (17, "FAILED", "failed"),
    "--standInExit 18": (18, "FAILED", "banned"),
}


@pytest.mark.slow
def test_exit_codes_of_browsertrix_mean_what_the_page_says(dev: Dev) -> None:
    runs = {
        options: start(dev, "browsertrix", site=dev.known["site"] + "/", options=options)
        for options in ENDS
    }
    ends = {}
    for options, number in runs.items():
        found = wait_for_end(dev, number)
        with Gateway(dev.known["gateway"]) as gateway:
            (task,) = gateway.tasks(number)
        ends[options] = (task["exit_code"], found["status"], found["outcome"])
    assert ends == ENDS


@pytest.mark.slow
def test_a_site_that_hangs_holds_up_no_stop(dev: Dev) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        site = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        runs = {crawler: start(dev, crawler, site=site) for crawler in CRAWLERS}
        for number in runs.values():
            wait_until(lambda number=number: run(dev, number)["tasks"].get("RUNNING"))
        with Gateway(dev.known["gateway"]) as gateway:
            for number in runs.values():
                gateway.stop(number)
        for crawler, number in runs.items():
            found = wait_for_end(dev, number)
            assert (found["status"], found["outcome"]) == ("FAILED", "cancelled"), crawler
            assert "was killed" not in found["cause"], (found["cause"], log(dev, number, 1)[-2000:])


#: A program that sends its requests with the client that uses leases.
LEASED = """
import asyncio, sys
from crawl_runner_crawlee import LeasedHttpClient
from crawlee import ConcurrencySettings
from crawlee.crawlers import HttpCrawler

async def main():
    crawler = HttpCrawler(
        http_client=LeasedHttpClient(),
        concurrency_settings=ConcurrencySettings(max_concurrency=10, desired_concurrency=10),
    )

    @crawler.router.default_handler
    async def handle(context):
        pass

    found = await crawler.run([f"{sys.argv[1]}{page}" for page in range(30)])
    print(found.requests_finished)

asyncio.run(main())
"""


#: A program whose requests are redirected to another site. It prints what it got.
REDIRECTED = """
import asyncio, sys
from crawl_runner_crawlee import LeasedHttpClient
from crawlee.crawlers import HttpCrawler

async def main():
    client = LeasedHttpClient()
    crawler = HttpCrawler(http_client=client)

    @crawler.router.default_handler
    async def handle(context):
        sent = await context.send_request(context.request.url)
        async with client.stream(context.request.url) as response:
            parts = [part async for part in response.read_stream()]
        print(context.request.loaded_url, sent.status_code, len(b"".join(parts)))

    await crawler.run([sys.argv[1]])

asyncio.run(main())
"""
#: A program that sends requests to a site with HTTP/2, and waits.
SECURE = """
import asyncio, functools, sys
import crawl_runner_crawlee
from crawlee.http_clients import ImpitHttpClient

crawl_runner_crawlee.ImpitHttpClient = functools.partial(ImpitHttpClient, verify=False)

async def main():
    client = crawl_runner_crawlee.LeasedHttpClient()
    for _ in range(5):
        response = await client.send_request(sys.argv[1])
        print(response.http_version, (await response.read()).decode())
        await asyncio.sleep(0.2)

asyncio.run(main())
"""
#: A site with HTTP/2, which answers how many other connections are open, and how many there were.
SECURE_SITE = """
const http2 = require('http2'), fs = require('fs');
const [key, cert] = process.argv.slice(1).map((file) => fs.readFileSync(file));
let all = 0, open = 0;
const site = http2.createSecureServer({key, cert});
site.on('request', (request, answer) => answer.end(`${open - 1} ${all - 1}`));
site.on('session', (session) => {
  all += 1; open += 1;
  session.on('close', () => { open -= 1; });
});
site.listen(0, '127.0.0.1', () => console.log(site.address().port));
setTimeout(() => process.exit(), 60000);
"""


def crawlee(python: Path, storage: Path, gateway: LeaseGateway, program: str, url: str) -> str:
    """Run a program with Crawlee that leases its requests. Return what it printed."""
    done = subprocess.run(
        [python, "-c", program, url],
        env={
            **os.environ,
            **gateway.environment(),
            "PYTHONPATH": str(RUNNER / "inject"),
            "CRAWLEE_STORAGE_DIR": str(storage),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def python_of(dev: Dev) -> Path:
    """Return the interpreter with Crawlee."""
    return dev.state_dir.parent / ".venv/bin/python"


@pytest.mark.slow
def test_crawlee_keeps_the_limits_of_a_site(dev: Dev, tmp_path: Path) -> None:
    gateway = LeaseGateway(connections=3, requests_per_s=10)
    site = JournalSite()
    printed = crawlee(python_of(dev), tmp_path, gateway, LEASED, site.url)
    assert printed.split()[-1] == "30"
    assert site.most_in_a_second() <= 11
    assert site.most_open <= 3
    assert {headers["connection"] for headers in site.headers} == {"close"}


@pytest.mark.slow
def test_crawlee_asks_the_site_of_each_redirect(dev: Dev, tmp_path: Path) -> None:
    gateway = LeaseGateway(connections=3, requests_per_s=10)
    site = JournalSite()
    last = f"http://localhost:{site.server_address[1]}/page"
    printed = crawlee(python_of(dev), tmp_path, gateway, REDIRECTED, f"{site.url}to/{last}")
    assert f"{last} 200 200\n" in printed
    assert gateway.statuses() == {"127.0.0.1": {"302": 3}, "localhost": {"200": 3}}


@pytest.mark.slow
def test_crawlee_keeps_no_connection_of_http_2(dev: Dev, tmp_path: Path) -> None:
    files = [tmp_path / "key.pem", tmp_path / "cert.pem"]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    options = ["-keyout", files[0], "-out", files[1]]
    subprocess.run([*words, *options], check=True, capture_output=True)
    gateway = LeaseGateway(connections=3)
    with subprocess.Popen(
        ["node", "-e", SECURE_SITE, *files], stdout=subprocess.PIPE, text=True
    ) as site:
        assert site.stdout is not None
        url = f"https://127.0.0.1:{int(site.stdout.readline())}/"
        printed = crawlee(python_of(dev), tmp_path, gateway, SECURE, url)
        site.kill()
    assert printed.splitlines() == [f"HTTP/2 0 {before}" for before in range(5)]


@pytest.mark.slow
def test_all_keep_the_contract(dev: Dev) -> None:
    for crawler in CRAWLERS:
        more = (
            ["options=--pageLimit 60 --delay 0.3"]
            if crawler == "browsertrix"
            else ["max_pages=60", "delay_ms=500"]
        )
        words = [word for text in (f"site={dev.known['site']}/", *more) for word in ("-a", text)]
        dev.crawlctl("crawler", "check", crawler, *words)
