"""``deploy/helm`` of two builds on a real node, as docs/deployment-kubernetes.md says, with crawls
meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.clusters.kubernetes import labels
from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.admin import AdminError
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import until
from tests.kubernetes.real.installation import CRAWLS, PATIENCE_S, SCHEMA, SERVICES, Installation
from tests.kubernetes.real.real_harness import ACTOR, actor_image
from tests.support import crawler_image, service_image
from tests.support.builds import LANDED, ROOT, checked_out
from tests.support.manifests import Document

REPOSITORY = service_image.REFERENCE.rpartition(":")[0]
#: Tags of the two images.
FORMER, NEXT = "landed", "next"
#: Nine Deployments roll out at once on two processors, so each pod requests less than the chart's
#: default.
ASKS = {
    "requests": {"cpu": "30m", "memory": "160Mi", "ephemeral-storage": "64Mi"},
    "limits": {"memory": "512Mi"},
}
#: Reports its beginning to its site, leaves a page, continues until it may end, and reports its
#: end.
PROGRAM = """
import json, os, pathlib, time, urllib.request
site = json.loads(os.environ["CRAWL_ARGS"])["site"]
me = "/".join(os.environ[f"CRAWL_{name}"] for name in ("RUN_ID", "TASK_INDEX", "ATTEMPT"))
def tell(word):
    with urllib.request.urlopen(f"{site}/{word}/{me}", timeout=60) as answer:
        return answer.read()
tell("began")
pathlib.Path(os.environ["CRAWL_FILES_DIR"], "page.html").write_text("<p>one</p>")
print("waiting", flush=True)
def may_end():
    try:
        return tell("may-end") == b"yes"
    except OSError as error:  # a starved machine; only what is counted may not be said twice
        print(f"asks again: {error!r}", flush=True)
while not may_end():
    time.sleep(0.5)
tell("ended")
"""


@dataclass
class Page:
    """What a build's docs/deployment-kubernetes.md tells people to write and to type."""

    folder: Path

    @property
    def text(self) -> str:
        return (self.folder / "docs/deployment-kubernetes.md").read_text()

    def values(self) -> Document:
        """Return the first values."""
        found: Document = yaml.safe_load(self._one(r"```yaml\n(image: .*?)```"))
        return found

    def first_time(self) -> list[str]:
        """Return the commands of the first installation; the last one is also used for each new
        version.
        """
        lines = self._one(r"```\n(kubectl create namespace .*?)```").splitlines()
        assert lines[-1].startswith("helm upgrade --install ")
        return lines

    def one_line(self, begins: str) -> str:
        """Return a command that is part of a sentence."""
        return " ".join(self._one(f"`({begins}\\s[^`]+)`").split())

    def _one(self, pattern: str) -> str:
        found = re.search(pattern, self.text, re.DOTALL)
        assert found, f"the page has no longer {pattern!r}"
        return found[1]


class Release(Installation):
    """The chart of the last released build and of this one, on one database; each step follows the
    page.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(cluster, folder)
        self.former, self.next = Page(folder / "landed"), Page(ROOT)
        self.took: dict[str, float] = {}
        #: Names of the Secrets that an administrator created.
        self.made: set[str] = set()

    # --- what an installer has --------------------------------------------------------------------

    def _load_images(self) -> None:
        checked_out(LANDED, self.former.folder)
        tar = self.folder / "image.tar"
        for assemble in (self._assemble_former, self._assemble_next, crawler_image.assemble):
            assemble(tar)
            self.cluster.nodes[0].load(tar)
            tar.unlink()
        self.cluster.nodes[0].load(actor_image(self.folder))

    def _assemble_former(self, path: Path) -> None:
        """Assemble the image with that build's own Dockerfile, lock and tools, from its own wheel."""
        program = "import sys, pathlib; from tests.support.service_image import assemble\n"
        program += "assemble(pathlib.Path(sys.argv[1]), sys.argv[2])"
        env = {name: value for name, value in os.environ.items() if name != "CRAWL_IMAGES"}
        command = [sys.executable, "-c", program, str(path), f"{REPOSITORY}:{FORMER}"]
        env["PYTHONPATH"] = str(self.former.folder)
        subprocess.run(command, cwd=self.former.folder, env=env, check=True, timeout=600)

    def _assemble_next(self, path: Path) -> None:
        service_image.assemble(path, f"{REPOSITORY}:{NEXT}", build_id=NEXT)

    def _make_overlay(self) -> None:
        """Make names and addresses of Services as they are created and removed."""
        over = threading.Event()

        def named() -> None:
            while not over.wait(0.5):
                with suppress(OSError):
                    self.network.refresh()

        thread = threading.Thread(target=named, daemon=True)
        thread.start()
        self._open.callback(thread.join, 30)
        self._open.callback(over.set)

    def write(self, page: Page, tag: str, name: str) -> Path:
        """Write the values of the page, filled in as an installer does; one of most things, as in
        ci/small-values.yaml.
        """
        values = page.values()
        small = yaml.safe_load((page.folder / "deploy/helm/ci/small-values.yaml").read_text())
        values["image"] |= {"repository": REPOSITORY, "tag": tag}
        del values["image"]["digest"]  # the node has its images by name, and no registry
        values["temporal"]["address"] = self.temporal
        values["archive"]["url"] = f"s3://{self.archive.name}/archive"
        values["files"]["url"] = f"s3://{self.files.name}/tasks"
        values["settings"] |= {"AWS_ENDPOINT_URL": self.s3.url}
        (shops,) = values["catalogue"]
        shops |= {
            "image": crawler_image.REFERENCE,
            "project": "/opt/crawlers",
            "spider": "services",
        }
        shops |= {
            "args": {"site": {"required": True}},
            "resources": {"cpu": "250m", "memory": "256Mi"},
        }
        values["catalogue"] += [
            {
                "name": "told",
                "kind": "command",
                "command": ["python3", "-c", PROGRAM],
                "image": ACTOR,
            }
            | {
                "args": {"site": {"required": True}, "number": {"required": False}},
                "stop_signal": "SIGTERM",
            }
            | {"resources": {"cpu": "30m", "memory": "96Mi"}}
        ]
        for one in ("apiServer", "temporal", "database"):
            values["network"][one]["cidrs"] = [f"{self.address}/32"]
        values |= {name: small[name] for name in ("workers", "scheduler")} | {
            "gateway": {"replicas": 2}
        }
        roles = yaml.safe_load((page.folder / "deploy/helm/values.yaml").read_text())["workers"]
        values["workers"] = {
            role: {"resources": ASKS} | values["workers"].get(role, {}) for role in roles
        }
        # The released build has another name for this role.
        values["workers"]["user-code" if "user-code" in roles else "plans"]["replicas"] = 1
        for service in ("gateway", "scheduler"):
            values[service]["resources"] = ASKS
        path = self.folder / name
        path.write_text(yaml.safe_dump(values))
        return path

    def end(self) -> None:
        """Also remove the namespace that an administrator created, which has no label of ours."""
        with suppress(AdminError):  # it was never created
            self.admin.delete(f"/api/v1/namespaces/{SERVICES}")
        super().end()

    # --- the page's commands ----------------------------------------------------------------------

    def type(self, page: Page, command: str, values: Path | None = None) -> str:
        """Return the output of a shell in the folder of that build."""
        secrets = self.folder / "secrets.yaml"
        command = command.replace("SECRETS", str(secrets)).replace("-f crawls.yaml", f"-f {values}")
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KUBE", "HELM"))
        }
        clean |= {"KUBECONFIG": str(self.cluster.kubeconfig), "HOME": str(self.folder)}
        clean["PATH"] = f"{binaries.available()}{os.pathsep}{clean['PATH']}"
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=page.folder,
            env=clean,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}\n{done.stdout}\n{self.state()}"
        return done.stdout

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the time of a step."""
        begun = time.monotonic()
        yield
        self.took[name] = time.monotonic() - begun
        print(f"{name}: {self.took[name]:.0f} s", flush=True)

    def install(self, page: Page, values: Path) -> None:
        """Follow "The first time", with what is to be done in another terminal."""
        made = self.secrets()
        self.made = {one["metadata"]["name"] for one in made} | {"registry"}
        (self.folder / "secrets.yaml").write_text(yaml.safe_dump_all(made))
        *first, _ = page.first_time()
        for command in first:
            self.type(page, command)
        self._login(SERVICES)
        self._apply(page, values, self._login)

    def upgrade(self, page: Page, values: Path) -> None:
        """Follow "A new version": the last line again.

        The changelog asks for grants if a table is new.
        """
        self._apply(page, values)

    def _apply(self, page: Page, values: Path, login: Callable[[str], None] | None = None) -> None:
        """Execute the last line, and what an administrator does meanwhile in another terminal."""
        place = f"/apis/batch/v1/namespaces/{SERVICES}/jobs/db-upgrade"
        before = self.admin.find(place)

        def migrated() -> bool:
            job = self.admin.find(place)
            return bool(job and job.get("status", {}).get("succeeded")) and _uid(job) != _uid(
                before
            )

        def other_terminal() -> None:
            until(migrated, "the tables", PATIENCE_S)
            self.grant(page.folder / "docs")
            if login:
                until(
                    lambda: self.admin.find(f"/api/v1/namespaces/{CRAWLS}"),
                    "the namespace of crawls",
                    PATIENCE_S,
                )
                login(CRAWLS)

        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(other_terminal)
            self.type(page, page.first_time()[-1], values)
            done.result()

    def _login(self, namespace: str) -> None:
        words = (
            "--docker-server=crawl.test",
            "--docker-username=puller",
            "--docker-password=nothing",
        )
        self.kubectl("create", "secret", "docker-registry", "registry", "-n", namespace, *words)

    def images(self) -> set[str]:
        """Return the image tags of our processes that are ready and stay."""
        found = {pod["spec"]["containers"][0]["image"] for pod in self._serving()}
        return {image.rpartition(":")[2] for image in found}

    def _serving(self) -> list[Document]:
        return [pod for pod in self.pods() if pod["status"]["phase"] in ("Pending", "Running")]

    def left(self) -> set[tuple[str, str, str]]:
        """Return kind, namespace and name of everything in the namespace of the release, or
        labelled as a part of it.
        """
        kinds = self.kubectl("api-resources", "--verbs=list", "-o", "name").split()
        ours = [one for one in kinds if not one.startswith("events")]
        spaced = set(
            self.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
        )
        found = self._names(",".join(one for one in ours if one in spaced), "-n", SERVICES)
        return (found | self.left_by_label()) - {("Namespace", "", SERVICES)}

    def left_by_label(self) -> set[tuple[str, str, str]]:
        """Return everything of those that is labelled, wherever it is."""
        kinds = ",".join(self.kubectl("api-resources", "--verbs=list", "-o", "name").split())
        return self._names(kinds, "-A", "-l", "app.kubernetes.io/part-of=crawler-lifecycle")

    def _names(self, kinds: str, *where: str) -> set[tuple[str, str, str]]:
        found = json.loads(self.kubectl("get", kinds, *where, "-o", "json"))["items"]
        names = ((one["kind"], one["metadata"]) for one in found)
        return {(kind, meta.get("namespace", ""), meta["name"]) for kind, meta in names}

    # --- what is on record ------------------------------------------------------------------------

    def rows(self, columns: str, table: str, where: str = "TRUE") -> list[tuple[Any, ...]]:
        return list(self.database.execute(f"SELECT {columns} FROM {table} WHERE {where}", SCHEMA))

    def runs_of_managers(self) -> list[int]:
        return [row[0] for row in self.rows("run_id", "run_history", "parent LIKE 'manager/%'")]

    def ended(self) -> set[int]:
        return {
            row[0]
            for row in self.rows("run_id", "run_history", "status IN ('COMPLETED', 'FAILED')")
        }

    def exported(self) -> set[int]:
        return {row[0] for row in self.rows("run_id", "export_record")}

    def said(self, pod: Document) -> str:
        """Return status and last output of a crawl's pod, for the message of a failure."""
        path = f"/api/v1/namespaces/{CRAWLS}/pods/{pod['metadata']['name']}"
        found = self.admin.find(path)
        log = self.admin.text(f"{path}/log?tailLines=30") if found else "it is gone"
        return f"{json.dumps(found and found['status'])}\n{log}"

    def objects(self, run_id: int, kind: str) -> list[Document]:
        """Return the Jobs or pods of a run."""
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        path = f"{group}/namespaces/{CRAWLS}/{kind}?labelSelector={labels.RUN}%3D{run_id}"
        found: list[Document] = self.admin.get(path)["items"]
        return found


def _uid(job: Document | None) -> str | None:
    return job["metadata"]["uid"] if job else None


# --- what the crawls themselves say ---------------------------------------------------------------


class Journal:
    """The site of the crawls reports which of them began and ended, and when, without any part of
    ours.
    """

    def __init__(self, address: str) -> None:
        self.began: Counter[tuple[int, int, int]] = Counter()
        self.ended: dict[tuple[int, int, int], float] = {}
        self.asked: Counter[int] = Counter()
        #: Runs that have to wait; all others may end at once.
        self.held: set[int] = set()
        self._server = type("Server", (ThreadingHTTPServer,), {"request_queue_size": 128})(
            (address, 0), self._handler()
        )
        self.url = f"http://{address}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        journal = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, word, *numbers = self.path.split("/")
                body = journal._take(word, (int(numbers[0]), int(numbers[1]), int(numbers[2])))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _take(self, word: str, who: tuple[int, int, int]) -> bytes:
        if word == "began":
            self.began[who] += 1
        elif word == "ended":
            self.ended[who] = time.time()
        else:
            self.asked[who[0]] += 1
        # A held run is known only after its number, so none ends within its first second.
        return b"no" if who[0] in self.held or self.asked[who[0]] < 3 else b"yes"


@dataclass
class Load:
    """Crawls that are started through the gateway the whole time, and the responses of the gateway."""

    release: Release
    journal: Journal
    accepted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Key of the request: the run, and how many tasks it has."""
    stopped: set[int] = field(default_factory=set)
    asked: list[tuple[float, float, str]] = field(default_factory=list)
    """Each question to the gateway: when, for how long, and what went wrong."""
    errors: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        """Start two clients that start crawls, one after the other, and one that asks four times a
        second.
        """
        self._over.clear()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,)) for work in self._work()
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> tuple[Callable[[], None], ...]:
        return self._crawl, self._crawl, self._ask

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(f"{work.__name__}: {error!r}")

    def _crawl(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            tasks = 2 if number % 3 == 0 else 1
            run_id = self.start(tasks)
            end = time.monotonic() + PATIENCE_S
            while sum(who[0] == run_id for who in list(self.journal.ended)) < tasks:
                if time.monotonic() > end:
                    raise AssertionError(f"run {run_id} did not end")
                time.sleep(0.2)

    def start(self, tasks: int = 1, *, held: bool = False) -> int:
        """Start a run, which is accepted once however often it is requested. With ``held``, it
        continues until it is released.
        """
        key, site = uuid.uuid4().hex, {"site": self.journal.url}
        request: dict[str, Any] = {"crawler": "told"}
        request |= (
            {"args": site}
            if tasks == 1
            else {"tasks": [{"args": site | {"number": str(n)}} for n in range(tasks)]}
        )
        run_id = int(self.insist(lambda gateway: gateway.start(request, key))["run_id"])
        if held:
            self.journal.held.add(run_id)
        self.accepted[key] = run_id, tasks
        return run_id

    def long(self) -> int:
        """Return a run that is executing, and continues."""
        run_id = self.start(held=True)
        until(lambda: self.journal.asked[run_id], f"run {run_id} executing", PATIENCE_S)
        return run_id

    def stop(self, run_id: int) -> None:
        self.insist(lambda gateway: gateway.stop(run_id, reason="enough", requested_by="a person"))
        self.stopped.add(run_id)

    def insist(self, call: Callable[[Gateway], Document]) -> Document:
        """Repeat the same request while there is no response, as clients should."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.release.gateway() as gateway:
                    return call(gateway)
            except CommandFailed as failure:
                if failure.code is not Exit.UNREACHABLE or time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def _ask(self) -> None:
        """Ask each time on a new connection, like another client."""
        url = f"http://{self.release.network.address('gateway', SERVICES)}:8500/v1/runs/1"
        headers = {"Authorization": f"Bearer {self.release.tokens['read']}"}
        while not self._over.wait(0.25):
            begun, wrong = time.monotonic(), ""
            try:
                answer = httpx.get(url, headers=headers, timeout=10, trust_env=False, verify=False)
                wrong = (
                    "" if answer.is_success else f"HTTP {answer.status_code} {answer.text[:200]}"
                )
            except httpx.HTTPError as error:
                wrong = repr(error)
            self.asked.append((begun, time.monotonic() - begun, wrong))

    def silence(self, since: float) -> tuple[int, int, float, float]:
        """Return the number of requests, the failed ones, the longest time without a good response
        during failures, and the slowest.
        """
        asked = [one for one in self.asked if one[0] >= since]
        longest, first = 0.0, None
        for begun, lasted, wrong in asked:
            if wrong and first is None:
                first = begun
            if first is not None:
                longest = max(longest, begun + lasted - first)
            if not wrong:
                first = None
        failed = [one for one in asked if one[2]]
        return (
            len(asked),
            len(failed),
            longest,
            max((lasted for _, lasted, _ in asked), default=0.0),
        )
