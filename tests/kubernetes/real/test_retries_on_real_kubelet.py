"""A Scrapy crawl in a real container whose pod is evicted: the next try continues where the first
one was.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.domain.retries import Retries
from examples.site.app import create_app
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.harnesses import until
from tests.kubernetes.kube_testbed import QUICK, KubeTestbed, open_kube_testbed
from tests.kubernetes.real.test_crawler_image import SERVICES, _claim, address, volume

__all__ = ["address", "volume"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: The number of requests in progress at one time; requests that an eviction interrupts are
#: repeated.
AT_ONCE = 2


@dataclass
class Site:
    """The demonstration site, with a log of its requests."""

    url: str = ""
    asked: list[str] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        await self._app(scope, receive, send)

    _app: Any = field(default_factory=lambda: create_app(12, 1.0))


@pytest.fixture
def site(address: str) -> Iterator[Site]:
    listener = socket.create_server((address, 0))
    made = Site(f"http://{address}:{listener.getsockname()[1]}")
    server = uvicorn.Server(
        uvicorn.Config(made, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield made
    server.should_exit = True
    thread.join()


@pytest_asyncio.fixture(loop_scope="session")
async def kube(
    server: WorkflowEnvironment, real_cluster: Cluster, volume: Path, tmp_path: Path
) -> AsyncIterator[KubeTestbed]:
    policy = Retries(backoff_s=0)
    async with open_kube_testbed(
        server.client, tmp_path, real_cluster, watched=True, retries=policy, volume_claim="files"
    ) as kube:
        core = f"/api/v1/namespaces/{kube.namespace}"
        _claim(SimpleNamespace(name=kube.namespace, core=core, admin=real_cluster.admin), volume)  # type: ignore[arg-type]
        yield kube


def evict(kube: KubeTestbed) -> None:
    [name] = [pod["metadata"]["name"] for pod in kube.pods()]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": kube.namespace},
    }
    kube.cluster.admin.post(kube.path("pods", f"{name}/eviction"), body)


async def test_an_evicted_crawl_goes_on_where_it_was(kube: KubeTestbed, site: Site) -> None:
    kube.knows(replace(SERVICES, resumable=True))
    slowly = {"DOWNLOAD_DELAY": "0.3", "CONCURRENT_REQUESTS": str(AT_ONCE)}
    handle = await kube.testbed.start(
        {"crawler": "services", "args": {"site": site.url}, "settings": slowly, **QUICK}
    )
    await asyncio.to_thread(until, lambda: len(set(site.asked)) >= 8)
    await asyncio.to_thread(evict, kube)
    result = await kube.testbed.ended(handle, 150)
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    first, second = sorted(kube.tasks(superseded=True), key=lambda row: row.attempt)
    assert [(row.attempt, row.retry, row.outcome, row.resumed) for row in (first, second)] == [
        (1, 0, "evicted", None),
        (2, 1, "finished", True),
    ]
    assert min(first.pages or 0, second.pages or 0) > 2, "both have done their part"
    again = {path: times for path, times in Counter(site.asked).items() if times > 1}
    again.pop("/robots.txt", None)
    assert sum(times - 1 for times in again.values()) <= AT_ONCE, again
