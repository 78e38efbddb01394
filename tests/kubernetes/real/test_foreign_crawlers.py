"""docs/foreign-crawlers.md in a restricted pod: the image contains the foreign program, our runner,
and nothing else.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import PodOptions
from crawler_lifecycle.domain.run import Resources
from tests.kubernetes.cluster import images
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.real.real_harness import RUNNER
from tests.kubernetes.real.test_crawler_image import Namespace, _claim, _until
from tests.support.folders import reachable_folder
from tests.support.gated_site import PAGES, gated_site
from tests.support.job_cases import Rules
from tests.support.run_refs import run_ref

FOLDER = Path(__file__).parents[3] / "examples" / "foreign" / "browsertrix"
REFERENCE = "crawl.test/browsertrix:1"
BROWSERTRIX = CrawlerDefinition(
    "browsertrix",
    CrawlerKind.COMMAND,
    command=["python3", "/app/map.py", "python3", "/app/crawl"],
    image=REFERENCE,
    args={"site": Argument(required=True), "options": Argument(default="--scopeType host")},
    resources=Resources("500m", "128Mi"),
    kubernetes=PodOptions(project="/app"),
)


@pytest.fixture
def namespace(real_cluster: Cluster, tmp_path: Path) -> Iterator[Namespace]:
    layer = images.Layer(((RUNNER, "opt/crawl-runner"), (FOLDER, "app")))
    real_cluster.nodes[0].load(images.with_python(tmp_path / "browsertrix.tar", REFERENCE, [layer]))
    made = Namespace(real_cluster)
    yield made
    made.api.close()


def test_browsertrix_is_stopped_in_mid_page_and_leaves_a_wacz_and_its_state(
    namespace: Namespace, real_cluster: Cluster
) -> None:
    with gated_site(real_cluster.places.gateway) as site, reachable_folder() as volume:
        volume.chmod(0o777)
        _claim(namespace, volume)
        namespace.deploy(
            BROWSERTRIX, Rules(volume_claim="files"), args={"site": site.address("pod")}
        )
        _until(lambda: site.waiting["pod"])
        with namespace.followed() as log:
            namespace.stop()
            _until(lambda: "gracefully finishing" in namespace.log())
            site.open("pod")
            code, summary = namespace.ended()
        assert (code, summary["finish_reason"], summary["own_exit"]) == (11, "shutdown", 11), (
            log.result(120)
        )
        assert 1 < summary["pages"] < PAGES
        (wacz,) = volume.glob(f"tasks/{run_ref(7)}/0/1/**/crawl.wacz")
        with zipfile.ZipFile(wacz) as whole:
            assert len(whole.read("indexes/index.cdxj").splitlines()) == summary["pages"]
        assert list(volume.glob(f"state/{run_ref(7)}/0/collections/crawl/crawls/*.yaml"))
