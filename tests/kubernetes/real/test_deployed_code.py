"""A deployed package in a restricted pod of a real node: fetched, checked and executed."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import crawler_lifecycle
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.runner.package import Package
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.real.test_crawler_image import TOKEN, Namespace, _until
from tests.support.crawler_image import REFERENCE, assemble
from tests.support.job_cases import Rules

TEMPLATE = Path(crawler_lifecycle.__file__).parent / "template"
DEPLOYED = CrawlerDefinition(
    "shop", CrawlerKind.SCRAPY, project="shop", package="shop", image=REFERENCE
)


@pytest.fixture
def zipped(tmp_path: Path) -> bytes:
    """Return a package of 200 files, with the template's project in a folder."""
    shutil.copytree(TEMPLATE / "shop", tmp_path / "all" / "shop")
    for n in range(195):
        (tmp_path / "all" / "shop" / "shop" / f"part{n}.py").write_text(f"VALUE = {n}\n" * 200)
    file = io.BytesIO()
    pack(tmp_path / "all", file)
    return file.getvalue()


class _Handler(BaseHTTPRequestHandler):
    """The gateway's part: the zip, for whoever has the token. The first response is an outage."""

    zipped: bytes
    answers: list[int]

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.path == "/code"
        status = self.answers.pop() if self.answers else 200
        status = status if known else 403
        body = self.zipped if status == 200 else b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway(real_cluster: Cluster, zipped: bytes, tmp_path: Path) -> Iterator[str]:
    real_cluster.nodes[0].load(assemble(tmp_path / "crawler.tar"))
    handler = type("Gateway", (_Handler,), {"zipped": zipped, "answers": [503]})
    with ThreadingHTTPServer((real_cluster.places.gateway, 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"http://{real_cluster.places.gateway}:{server.server_address[1]}/code"
        server.shutdown()


@pytest.fixture
def namespace(real_cluster: Cluster) -> Iterator[Namespace]:
    made = Namespace(real_cluster)
    yield made
    made.api.close()


def test_a_deployed_project_executes_in_a_restricted_pod(
    namespace: Namespace, gateway: str, zipped: bytes
) -> None:
    digest = Package(io.BytesIO(zipped)).digest()
    way = {"CRAWL_CODE_URL": gateway, "CRAWL_CODE_TOKEN": TOKEN}
    began = time.monotonic()
    namespace.deploy(DEPLOYED, Rules(), way, code=Code(digest, "v1"))
    _until(lambda: namespace.state("running") and "Spider opened" in namespace.log())
    took = time.monotonic() - began
    exit_code, summary = namespace.ended()
    assert (exit_code, summary["items"]) == (0, 3), namespace.log()
    assert "The task is waiting for its code: the gateway answers 503" in namespace.log()
    pod = namespace.pod()
    assert pod is not None
    assert pod["metadata"]["annotations"]["crawler-lifecycle/code"] == digest
    assert TOKEN not in namespace.log()
    assert took < 10, took


def test_other_contents_are_not_executed(namespace: Namespace, gateway: str) -> None:
    way = {"CRAWL_CODE_URL": gateway, "CRAWL_CODE_TOKEN": TOKEN}
    namespace.deploy(DEPLOYED, Rules(), way, code=Code("sha256:" + "0" * 64))
    exit_code, summary = namespace.ended()
    assert exit_code == 4
    assert "has the digest sha256:" in summary["message"]
