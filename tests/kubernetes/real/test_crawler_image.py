"""The crawler's image in restricted pods of a real node: Scrapy crawls, is stopped, and its files
reach a bucket.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.adapters.archive.bundles import S3Bundles
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.files.sources import task_files
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import PodOptions
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.ports.runs import Deployment, QueuedTask, TaskRef
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.crawler_image import REFERENCE, assemble
from tests.support.folders import reachable_folder
from tests.support.job_cases import Rules
from tests.support.run_refs import run_ref
from tests.support.s3 import S3Server, rclone_s3, use_aws

TOKEN = "files.token.of.one.task"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SERVICES = CrawlerDefinition(
    "services",
    CrawlerKind.SCRAPY,
    spider="services",
    image=REFERENCE,
    args={"site": Argument(required=True)},
    resources=Resources("500m", "256Mi"),
    kubernetes=PodOptions(project="/opt/crawlers"),
)


class _Handler(BaseHTTPRequestHandler):
    """The gateway's part: tickets for whoever has the token."""

    bundles: S3Bundles

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.path == "/upload"
        answer: dict[str, Any] = {"detail": "unknown"}
        if known:
            ticket = self.bundles.ticket(
                run_ref(7), 0, 1, asked["part"], asked["bytes"], asked["md5"]
            )
            answer = {"url": ticket.url, "headers": dict(ticket.headers)}
        body = json.dumps(answer).encode()
        self.send_response(200 if known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _stub(address: str, bundles: S3Bundles) -> Iterator[str]:
    server = ThreadingHTTPServer(
        (address, 0), type("StubGateway", (_Handler,), {"bundles": bundles})
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}/upload"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def address(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where pods reach this machine; the node has the image."""
    real_cluster.nodes[0].load(assemble(tmp_path_factory.mktemp("image") / "crawler.tar"))
    return real_cluster.places.gateway


@pytest.fixture(scope="module")
def site(address: str) -> Iterator[str]:
    """The demonstration site, small and slow."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "examples.site",
            "--host",
            address,
            "--port",
            "0",
            "--services",
            "6",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def storage(address: str) -> Iterator[S3Server]:
    with rclone_s3(host=address) as server:
        yield server


class Namespace:
    """A namespace that enforces Pod Security "restricted", and our deployer in it."""

    def __init__(self, cluster: Cluster) -> None:
        self.admin = cluster.admin
        self.name = cluster.namespace("image", labels=RESTRICTED)
        self.core = f"/api/v1/namespaces/{self.name}"
        self.admin.ensure(f"{self.core}/serviceaccounts", {"metadata": {"name": "crawl"}})
        self.api = Api(kubeconfig=cluster.kubeconfig, namespace=self.name, read_timeout_s=20.0)

    def deploy(
        self,
        crawler: CrawlerDefinition,
        rules: Rules,
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        deployer = KubernetesDeployer(
            self.api, rules, task_environment=lambda *_: dict(environment or {})
        )
        try:
            until = datetime.now(UTC) + timedelta(seconds=600)
            asked = {"args": {}, "settings": {}, "limits": Limits(stop_grace_s=10), **more}
            whole = Deployment(
                *(run_ref(7), 1, crawler.name, asked["args"], asked["settings"]),
                *([QueuedTask(70, 0, {})], Resources(), asked["limits"], until),
                code=asked.get("code"),
            )
            [answer] = deployer.deploy(whole, crawler)
            assert answer.state == "created", answer
        finally:
            deployer.close()

    def pod(self) -> dict[str, Any] | None:
        found = self.admin.get(f"{self.core}/pods")["items"]
        return found[0] if found else None

    def state(self, name: str) -> dict[str, Any] | None:
        """Return the state of the container: ``running`` or ``terminated``."""
        pod = self.pod()
        statuses = (pod or {}).get("status", {}).get("containerStatuses", [])
        return statuses[0]["state"].get(name) if statuses else None

    def log(self) -> str:
        pod = self.pod()
        assert pod is not None
        return self.admin.text(f"{self.core}/pods/{pod['metadata']['name']}/log")

    @contextmanager
    def followed(self) -> Iterator[Future[str]]:
        """Return the log to its end: a node removes the container of a deleted pod, and its log, as
        soon as that has ended.
        """
        pod = self.pod()
        assert pod is not None
        path = f"{self.core}/pods/{pod['metadata']['name']}/log?follow=true"
        begun = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            log = threads.submit(self.admin.text, path, begun.set)
            assert begun.wait(60), "the log is not followed"
            yield log

    def stop(self) -> None:
        path = f"/apis/batch/v1/namespaces/{self.name}/jobs/crawl-7-0-1"
        self.admin.delete(
            path, {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        )

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Return exit code and summary."""
        found = _until(lambda: self.state("terminated"))
        return found["exitCode"], json.loads(found["message"])


def _until(found: Callable[[], Any], seconds: float = 150) -> Any:
    end = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < end, f"it did not come within {seconds:g} s"
        time.sleep(0.1)
    return answer


@pytest.fixture
def namespace(real_cluster: Cluster, address: str) -> Iterator[Namespace]:
    made = Namespace(real_cluster)
    yield made
    made.api.close()


def test_scrapy_crawls_in_a_restricted_pod_and_its_files_reach_the_bucket(
    namespace: Namespace,
    address: str,
    site: str,
    storage: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    use_aws(monkeypatch, storage.url)
    bundles = S3Bundles(f"s3://{storage.bucket().name}/files")
    rules = Rules(files_url="s3://crawls/files")
    with _stub(address, bundles) as stub:
        way = {"CRAWL_UPLOAD_URL": stub, "CRAWL_UPLOAD_TOKEN": TOKEN}
        namespace.deploy(SERVICES, rules, way, args={"site": site})
        code, summary = namespace.ended()
    log = namespace.log()
    assert (code, summary["finish_reason"]) == (0, "finished"), log
    assert summary["pages"] > 5
    assert summary["items"] > 0
    assert summary["files"]["uploaded"] is True
    assert TOKEN not in log
    assert TOKEN not in json.dumps(namespace.pod())
    # Scrapy knows the limit of its pod: 85 % of 256 MiB.
    assert "'MEMUSAGE_LIMIT_MB': 217" in log
    progress = json.loads(re.findall(r"^(\{\"crawl_progress\".*)$", log, re.MULTILINE)[-1])[
        "crawl_progress"
    ]
    assert progress["pages"] == summary["pages"]
    with tarfile.open(fileobj=io.BytesIO(b"".join(bundles.read(run_ref(7), 0, 1)))) as tar:
        names = tar.getnames()
    assert len(names) == summary["files"]["files"] > 0


def test_a_stop_in_mid_crawl_reaches_scrapy_once_and_the_upload_fits_into_the_grace(
    namespace: Namespace,
    address: str,
    site: str,
    storage: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_aws(monkeypatch, storage.url)
    bundles = S3Bundles(f"s3://{storage.bucket().name}/files")
    with _stub(address, bundles) as stub:
        way = {"CRAWL_UPLOAD_URL": stub, "CRAWL_UPLOAD_TOKEN": TOKEN}
        slowly = {"DOWNLOAD_DELAY": "3", "CONCURRENT_REQUESTS": "1"}
        rules = Rules(files_url="s3://crawls/files")
        namespace.deploy(SERVICES, rules, way, args={"site": site}, settings=slowly)
        # Scrapy opens its spider before it handles signals; a signal between the two kills it.
        _until(lambda: namespace.state("running") and "Crawled (200)" in namespace.log())
        with namespace.followed() as log:
            namespace.stop()
            code, summary = namespace.ended()
    assert (code, summary["finish_reason"]) == (11, "shutdown")
    assert summary["files"]["uploaded"] is True
    assert list(bundles.read(run_ref(7), 0, 1))
    assert log.result(120).count("Received SIG") == 1


def _python(code: str, **more: Any) -> CrawlerDefinition:
    return CrawlerDefinition(
        "python",
        CrawlerKind.COMMAND,
        command=["python3", "-c", code],
        image=REFERENCE,
        **{"kubernetes": PodOptions(), **more},
    )


def test_the_root_cannot_be_written_and_nobody_is_root(namespace: Namespace) -> None:
    code = """
import json, os
def can(path):
    try:
        open(path + "/probe", "w").close()
        return True
    except OSError:
        return False
own = [os.environ["CRAWL_FILES_DIR"], os.environ["CRAWL_STATE_DIR"]]
places = ["/", "/opt/crawlers", "/opt/crawl-runner", "/dev", "/tmp", *own]
open(os.environ["CRAWL_STATS_FILE"], "w").write(json.dumps({"message": json.dumps(
    [os.getuid(), os.getppid(), [place for place in places if can(place)],
     os.access("/proc/1/environ", os.R_OK) and "open", os.path.exists("/var/run/secrets/kubernetes.io")])}))
"""
    nowhere = {"CRAWL_UPLOAD_URL": "http://127.0.0.1:9/", "CRAWL_UPLOAD_TOKEN": TOKEN}
    namespace.deploy(_python(code), Rules(), nowhere, limits=Limits(stop_grace_s=1))
    _until(lambda: namespace.state("running") and '"finish_reason"' in namespace.log())
    namespace.stop()  # while it tries to upload: the grace period ends that, and the verdict stands
    exit_code, summary = namespace.ended()
    uid, parent, written, environment, account = json.loads(summary["message"])
    assert (uid, parent) == (1000, 1)
    assert written == ["/tmp", "/crawl/files", "/crawl/state"]
    # The crawler cannot read the runner's token, although both are the same user.
    assert environment is False
    assert account is False
    assert "the gateway cannot be reached" in summary["files"]["why"]
    assert (exit_code, summary["finish_reason"]) == (0, "finished")


def _claim(namespace: Namespace, folder: Path) -> None:
    """Create a claim for a folder of this machine that is already bound, because this cluster has
    no controller for volumes.
    """
    volume, claim = f"files-{namespace.name}", f"{namespace.core}/persistentvolumeclaims"
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    wanted = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    made = namespace.admin.post(
        claim, {"metadata": {"name": "files", "annotations": bound}, "spec": wanted}
    )
    owner = {
        "kind": "PersistentVolumeClaim",
        "namespace": namespace.name,
        "name": "files",
        "uid": made["metadata"]["uid"],
    }
    place = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}, "claimRef": owner}
    volumes = "/api/v1/persistentvolumes"
    namespace.admin.post(volumes, {"metadata": {"name": volume}, "spec": {**common, **place}})
    ready = {
        "status": {
            "phase": "Bound",
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
        }
    }
    namespace.admin.patch(f"{claim}/files/status", ready)
    namespace.admin.patch(f"{volumes}/{volume}/status", {"status": {"phase": "Bound"}})


@pytest.fixture
def volume() -> Iterator[Path]:
    """The node has private overlays only over /var and /run, so it sees this folder, to which pods
    write as uid 1000.
    """
    with reachable_folder() as folder:
        folder.chmod(0o777)
        yield folder


def test_files_and_state_on_a_shared_volume_are_found_by_the_worker(
    namespace: Namespace, volume: Path, tmp_path: Path
) -> None:
    _claim(namespace, volume)
    code = """
import os, pathlib
files, state = (pathlib.Path(os.environ[name]) for name in ("CRAWL_FILES_DIR", "CRAWL_STATE_DIR"))
(files / "note").write_text("left")
(files / "link").symlink_to("/etc/passwd")
(state / "seen").write_text("once")
open("/crawl/files/../elsewhere", "w")
"""
    namespace.deploy(_python(code), Rules(volume_claim="files"))
    exit_code, _ = namespace.ended()
    assert exit_code == 1  # it cannot write anywhere above its own folders
    assert "Read-only file system" in namespace.log() or "Permission denied" in namespace.log()
    assert (volume / f"state/{run_ref(7)}/0/seen").read_text() == "once"
    found = task_files("files", volume, None).files(
        run_ref(7), [TaskRef(70, 0, 1, "uid"), TaskRef(71, 1, 1, "other")]
    )
    assert [source.prefix for source in found] == ["task-0"]
    archive = open_archive((tmp_path / "archive").as_uri())
    result = archive.store("7/1/x.zip", found, {}, lambda *_: None)
    zipped = zipfile.ZipFile(io.BytesIO(b"".join(archive.open(result.url))))
    assert zipped.namelist() == ["task-0/note", "manifest.json"]
    assert result.note is None
    _tidied(volume)


def _tidied(volume: Path) -> None:
    """Clear all of it as the user of crawl pods, because the kubelet's folders inherit the rights
    of the volume's root.
    """
    code = """
import os, sys
from pathlib import Path
from crawler_lifecycle.clusters.volume import VolumePlace
from crawler_lifecycle.domain.run_ref import RunRef
os.setgroups([]); os.setgid(1000); os.setuid(1000)
place, run = VolumePlace(Path(sys.argv[1])), RunRef(7, sys.argv[2])
assert place.runs() == {str(run)}
place.put_aside(run)
assert place.runs() == set()
place.remove(run, 1)
assert place.finish() == []
"""
    command = [sys.executable, "-c", code, str(volume), run_ref(7).uid]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in volume.rglob("*")) == ["state", "tasks", "trash"]


def test_a_limit_that_the_namespace_gives_reaches_the_crawler(namespace: Namespace) -> None:
    limits = [
        {"type": "Container", "default": {"memory": "200Mi"}, "defaultRequest": {"memory": "50Mi"}}
    ]
    path = f"{namespace.core}/limitranges"
    namespace.admin.post(path, {"metadata": {"name": "general"}, "spec": {"limits": limits}})
    code = """
import json, os
open(os.environ["CRAWL_STATS_FILE"], "w").write(json.dumps({"message": os.environ.get("CRAWL_MEMORY_LIMIT", "none")}))
"""
    namespace.deploy(_python(code), Rules())
    assert namespace.ended()[1]["message"] == str(200 * 2**20)


@pytest.mark.slow
def test_a_deaf_crawler_is_killed_by_the_runner_and_its_last_words_survive(
    namespace: Namespace,
) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
    namespace.deploy(_python(code), Rules(), limits=Limits(stop_grace_s=2))
    _until(lambda: namespace.state("running") and "deaf" in namespace.log())
    namespace.stop()
    exit_code, summary = namespace.ended()
    assert (exit_code, summary["signal"]) == (13, 9)
    assert "2 s after the stop signal" in summary["message"]
