"""Three ways to run the same crawls: this service, scrapyd, and a process for each.

A third of the crawls are those of a Scrapy project, a third those of Crawlee for Python, and a
third are a program that knows nothing of sites, which this service starts behind the proxy. Scrapyd
can only run the first. All keep the limits of the site as far as one process can:
``DOWNLOAD_DELAY`` and ``CONCURRENT_REQUESTS_PER_DOMAIN``, ``max_tasks_per_minute`` and
``max_concurrency``, and one request at a time. A crawl follows links until its time is over.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from benchmarks.polite_journal import Journal
from benchmarks.sizes import SMALL
from benchmarks.stack import running_stack
from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.stack.processes import free_port
from crawler_lifecycle.cli.stack.stack import Stack
from tests.kubernetes.cluster import binaries
from tools.faults.scrapyd import program

HOST = "127.0.0.1"
#: A domain whose hosts are this machine, for crawls of Scrapy.
DOMAIN = "polite.example"
RATE = 10.0
CONNECTIONS = 4
#: The limits of each site.
LIMITS = {HOST: {"requests_per_s": RATE, "connections": CONNECTIONS}}
#: Slots for tasks: more than there are crawls, so that nothing else limits them.
SLOTS = 128
ROOT = Path(__file__).parents[1]
#: A crawler starts again with the clock that ``env`` names. The catalogue refuses ``LD_PRELOAD``. One
#: whose settings contain ``unleased`` asks for no leases, and ``closing`` lets connections end.
_SETTINGS = f"""
import os, socket, sys
library = os.environ.get("CLOCK_LIBRARY", "")
if os.environ.get("LD_PRELOAD", "") != library:
    os.execve(sys.executable, sys.orig_argv, os.environ | {{"LD_PRELOAD": library}})
SPIDER_MODULES = ["polite_project"]
ROBOTSTXT_OBEY = True
DOWNLOAD_DELAY = {1 / RATE}
RANDOMIZE_DOWNLOAD_DELAY = False
CONCURRENT_REQUESTS_PER_DOMAIN = {CONNECTIONS}
TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "INFO"
HTTPERROR_ALLOW_ALL = True
told = os.environ.get("CRAWL_SETTINGS", "")
if "unleased" in told:
    os.environ.pop("CRAWL_LEASES_URL", None)
if "closing" in told:
    DEFAULT_REQUEST_HEADERS = {{"Connection": "close"}}

def local(find):
    return lambda host, *more, **named: find(
        "127.0.0.1" if str(host).endswith(".{DOMAIN}") else host, *more, **named
    )

socket.getaddrinfo = local(socket.getaddrinfo)
socket.gethostbyname = local(socket.gethostbyname)
"""
_SPIDER = """
import scrapy

class PoliteSpider(scrapy.Spider):
    name = "polite"

    async def start(self):
        for n in range(4):
            yield scrapy.Request(f"{self.site}/start/{self.number}/{n}")

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")
"""
#: It gets its arguments in the variables of this service, or as options like Scrapy.
_WANDERER = """
import json, os, re, sys, time, urllib.error, urllib.parse, urllib.request

words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
args = words | json.loads(os.environ.get("CRAWL_ARGS", "{}"))
settings = words | json.loads(os.environ.get("CRAWL_SETTINGS", "{}"))
until = time.monotonic() + float(settings["CLOSESPIDER_TIMEOUT"])
pages = [f"{args['site']}/start/{args['number']}/0"]
while time.monotonic() < until:
    url = pages.pop(0)
    try:
        with urllib.request.urlopen(url, timeout=120) as response:
            links = re.findall("href='([^']+)'", response.read().decode())
        pages += [urllib.parse.urljoin(url, link) for link in links]
        del pages[100:]
    except urllib.error.HTTPError as error:
        pages.append(url)
        time.sleep(float(error.headers.get("Retry-After", 1)) if error.code == 429 else 1)
    time.sleep(0.1)
"""
#: The same arguments. Without this service, its client does not exist.
_ROAMER = f"""
import asyncio, json, os, sys
from datetime import timedelta
from crawlee import ConcurrencySettings
from crawlee.crawlers import ParselCrawler
from crawlee.http_clients import ImpitHttpClient

try:
    from crawl_runner_crawlee import LeasedHttpClient as HttpClient
except ImportError:
    HttpClient = ImpitHttpClient
words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
args = words | json.loads(os.environ.get("CRAWL_ARGS", "{{}}"))
settings = words | json.loads(os.environ.get("CRAWL_SETTINGS", "{{}}"))

async def main():
    crawler = ParselCrawler(
        http_client=HttpClient(),
        navigation_timeout=timedelta(minutes=5),
        request_handler_timeout=timedelta(minutes=5),
        concurrency_settings=ConcurrencySettings(
            max_concurrency={CONNECTIONS},
            desired_concurrency=1,
            max_tasks_per_minute={RATE * 60},
        ),
    )

    @crawler.router.default_handler
    async def handle(context):
        await context.enqueue_links()

    seconds = float(settings["CLOSESPIDER_TIMEOUT"])
    asyncio.get_running_loop().call_later(seconds, crawler.stop)
    await crawler.run([f"{{args['site']}}/start/{{args['number']}}/0"])

asyncio.run(main())
"""


@dataclass(frozen=True)
class Kind:
    """One kind of crawl: the entry of the catalogue, and the command without this service."""

    entry: dict[str, Any]
    command: list[str]


def crawlee() -> str:
    """Return the interpreter of a venv with the Crawlee of the examples, which is made if it does
    not exist.
    """
    lock = ROOT / "examples" / "foreign" / "requirements.lock"
    version = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    folder = binaries.cache_root().with_name("faults") / f"crawlee-{version}"
    python = folder / "bin" / "python"
    made = folder / "made"
    if not made.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(lock)], check=True)
        made.touch()
    return str(python)


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return the kinds between which crawls alternate. The arguments of a crawl are its site,
    number and seconds.
    """
    of_project = {"kind": "command", "project": "project"}
    proxied = ["crawlctl", "site", "proxy", "--", "python", "wanderer.py"]
    found = {
        "scrapy": Kind(
            {"kind": "scrapy", "project": "project", "spider": "polite"},
            [sys.executable, "-m", "scrapy", "crawl", "polite"],
        ),
        "command": Kind({**of_project, "command": proxied}, [sys.executable, "wanderer.py"]),
    }
    if not SMALL:  # a smoke test has no environment for Crawlee
        words = [crawlee(), "roamer.py"]
        entry = {**of_project, "command": words, "ends": "crawlee", "stop_signal": "SIGINT"}
        found["crawlee"] = Kind(entry, words)
    return found


@dataclass
class Target:
    """The site as a separate process."""

    folder: Path
    port: int = field(default_factory=free_port)
    control: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """The address for crawls."""
        return f"http://{HOST}:{self.port}"

    def ask(self, path: str) -> Any:
        """Call the control port."""
        url = f"http://{HOST}:{self.control}{path}"
        return httpx.get(url, timeout=60, trust_env=False).json()

    def journal(self) -> Journal:
        """Return the journal since the last call."""
        return Journal.from_json(self.ask("/journal"))


@contextlib.contextmanager
def target(folder: Path) -> Iterator[Target]:
    """A site that runs until the end of the block."""
    site = Target(folder)
    words = ["-m", "benchmarks.polite_site", str(site.port), str(site.control)]
    with process([sys.executable, *words], folder / "site.log", cwd=ROOT):
        wait(lambda: site.ask("/") is not None, 30)
        yield site


@contextlib.contextmanager
def process(command: list[str], log: Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with log.open("ab") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, **more)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait(condition: Any, seconds: float) -> None:
    """Wait until this holds. A call without an answer does not hold.

    Raises ``TimeoutError``.
    """
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if condition():
                return
        if time.monotonic() > until:
            raise TimeoutError(f"did not come within {seconds:g} s")
        time.sleep(0.2)


class Fleet(Protocol):
    """One of the ways to run crawls."""

    name: str

    def start(self, number: int, seconds: float) -> None:
        """Start a crawl that ends after this time."""

    def alive(self) -> int:
        """Return how many crawls have not ended."""

    def failed(self) -> int | None:
        """Return how many crawls failed; ``None`` if this is not known."""

    def stop(self) -> None:
        """Stop all crawls, and wait for their end."""


def write_project(folder: Path) -> Path:
    """Write the Scrapy project. Return its folder."""
    project = folder / "project"
    package = project / "polite_project"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "settings.py").write_text(_SETTINGS)
    (package / "spider.py").write_text(_SPIDER)
    (project / "wanderer.py").write_text(_WANDERER)
    (project / "roamer.py").write_text(_ROAMER)
    names = "".join(f"{name} = polite_project.settings\n" for name in ("default", "polite"))
    (project / "scrapy.cfg").write_text(f"[settings]\n{names}")
    return project


class Plain:
    """A process for each crawl."""

    name = "plain"

    def __init__(self, folder: Path, site: Target) -> None:
        self.folder = folder
        self.site = site
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, number: int, seconds: float) -> None:
        """See ``Fleet``."""
        commands = [kind.command for kind in kinds().values()]
        words = [*commands[number % len(commands)]]
        words += ["-a", f"site={self.site.url}", "-a", f"number={number}"]
        words += ["-s", f"CLOSESPIDER_TIMEOUT={seconds:.0f}"]
        with (self.folder / f"plain-{number}.log").open("wb") as log:
            env = os.environ | {"CRAWLEE_STORAGE_DIR": str(self.folder / f"crawlee-{number}")}
            where = self.folder / "project"
            running = subprocess.Popen(words, cwd=where, env=env, stdout=log, stderr=log)
            self.processes.append(running)

    def alive(self) -> int:
        """See ``Fleet``."""
        return sum(one.poll() is None for one in self.processes)

    def failed(self) -> int:
        """See ``Fleet``."""
        return sum(one.poll() not in (None, 0) for one in self.processes)

    def stop(self) -> None:
        """See ``Fleet``."""
        for one in self.processes:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
        for one in self.processes:
            try:
                one.wait(60)
            except subprocess.TimeoutExpired:
                one.kill()


class Scrapyd:
    """The crawls as jobs of scrapyd."""

    name = "scrapyd"

    def __init__(self, site: Target, url: str) -> None:
        self.site = site
        self.url = url

    def start(self, number: int, seconds: float) -> None:
        """See ``Fleet``."""
        form = {"project": "polite", "spider": "polite", "site": self.site.url}
        form |= {"number": str(number), "setting": f"CLOSESPIDER_TIMEOUT={seconds:.0f}"}
        told = httpx.post(f"{self.url}/schedule.json", data=form, timeout=60, trust_env=False)
        if told.json()["status"] != "ok":
            raise RuntimeError(told.text)

    def _jobs(self) -> Any:
        url = f"{self.url}/listjobs.json?project=polite"
        return httpx.get(url, timeout=60, trust_env=False).json()

    def alive(self) -> int:
        """See ``Fleet``."""
        jobs = self._jobs()
        return len(jobs["pending"]) + len(jobs["running"])

    def failed(self) -> None:
        """See ``Fleet``. scrapyd does not report it."""

    def stop(self) -> None:
        """See ``Fleet``."""
        jobs = self._jobs()
        for job in jobs["pending"] + jobs["running"]:
            form = {"project": "polite", "job": job["id"]}
            httpx.post(f"{self.url}/cancel.json", data=form, timeout=60, trust_env=False)
        wait(lambda: not self.alive(), 90)


@contextlib.contextmanager
def scrapyd(folder: Path, site: Target) -> Iterator[Scrapyd]:
    """A scrapyd that runs until the end of the block."""
    port = free_port()
    project = folder / "project"
    places = "".join(f"{name}_dir = {folder / name}\n" for name in ("logs", "eggs", "dbs"))
    options = f"http_port = {port}\nmax_proc = {SLOTS}\npoll_interval = 0.2\n"
    (project / "scrapyd.conf").write_text(f"[scrapyd]\n{options}{places}")
    # It starts each crawl in its own working directory, which is the project.
    with process([str(program()), "-m", "scrapyd"], folder / "scrapyd.log", cwd=project):
        fleet = Scrapyd(site, f"http://{HOST}:{port}")
        status = f"{fleet.url}/daemonstatus.json"
        wait(lambda: httpx.get(status, trust_env=False).status_code == httpx.codes.OK, 60)
        yield fleet


@contextlib.contextmanager
def plain(folder: Path, site: Target) -> Iterator[Plain]:
    """Processes that end with the block."""
    fleet = Plain(folder, site)
    try:
        yield fleet
    finally:
        fleet.stop()


class Ours:
    """The crawls as runs of this service, with limits for the site."""

    name = "ours"

    def __init__(self, site: Target, stack: Stack) -> None:
        self.site = site
        self.stack = stack
        self.gateway = Gateway(str(stack.addresses["gateway"]), timeout_s=60)
        self.stamp = time.time_ns()
        self.kinds = list(kinds())
        self.url = site.url
        """The address at which crawls begin."""

    def start(self, number: int, seconds: float) -> None:
        """See ``Fleet``."""
        kind = self.kinds[number % len(self.kinds)]
        self.crawl(kind, self.url, number, CLOSESPIDER_TIMEOUT=f"{seconds:.0f}")

    def crawl(self, kind: str, url: str, number: int, **settings: str) -> int:
        """Start a crawl of a site with these settings. Return its run."""
        request = {
            "crawler": kind,
            "args": {"site": url, "number": str(number)},
            "settings": settings,
        }
        return int(str(self.gateway.start(request, f"{self.stamp}-{number}")["run_id"]))

    def limit(self, name: str, limits: Mapping[str, Any]) -> None:
        """Give a site these limits."""
        self.gateway.put(f"/v1/sites/{name}", limits)

    def crawlers(self) -> dict[int, int]:
        """Return the process id of each crawler that is running, by its run."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"crawl_runner_boot" not in (folder / "cmdline").read_bytes():
                    continue
                environment = (folder / "environ").read_bytes().split(b"\0")
                names = dict(line.partition(b"=")[::2] for line in environment)
                if os.fsdecode(names[b"CRAWL_FILES_DIR"]).startswith(str(self.stack.state_dir)):
                    found[int(names[b"CRAWL_RUN_ID"])] = int(folder.name)
        return found

    def alive(self) -> int:
        """See ``Fleet``."""
        return len(self._runs("INITIALIZING", "PROCESSING", "STOPPING"))

    def failed(self) -> int:
        """See ``Fleet``."""
        return sum(run["outcome"] != "cancelled" for run in self._runs("FAILED"))

    def _runs(self, *statuses: str) -> list[dict[str, Any]]:
        return self.gateway.runs(status=statuses)

    def stop(self) -> None:
        """See ``Fleet``."""
        for run in self._runs("INITIALIZING", "PROCESSING"):
            self.gateway.stop(int(str(run["run_id"])), reason="end of a measurement")
        wait(lambda: not self.alive(), 90)


@contextlib.contextmanager
def ours(
    folder: Path,
    site: Target,
    limits: Mapping[str, Any] = LIMITS,
    env: Mapping[str, str] | None = None,
) -> Iterator[Ours]:
    """A stack of real processes that runs until the end of the block. ``env`` is for crawlers."""
    more = {"args": {"site": {}, "number": {}}, "env": dict(env or {})}
    catalogue = [{"name": name, **kind.entry, **more} for name, kind in kinds().items()]
    (folder / "crawlers.yaml").write_text(json.dumps(catalogue))
    with running_stack(folder, {"LIFECYCLE_CLUSTER__SLOTS": str(SLOTS)}) as stack:
        fleet = Ours(site, stack)
        for name, given in limits.items():
            fleet.limit(name, given)
        yield fleet
