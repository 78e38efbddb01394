"""Real Scrapy crawls of one site, whose own journal shows whether its limits hold."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.store.tables import run_robots
from tests.gateway.gateway_harness import Harness
from tests.gateway.gateway_process import environment, gateway
from tests.runner.runner_fixture import wait_until

from .lease_story import KEY, Crawl, JournalSite, leases_of, limit, start_run, write_project

pytestmark = pytest.mark.processes

CRAWLS = 4


@pytest.fixture
def crawls(tmp_path: Path) -> Iterator[list[Crawl]]:
    project = write_project(tmp_path / "project")
    made = [Crawl(tmp_path / f"crawl-{number}", project) for number in range(CRAWLS)]
    yield made
    for crawl in made:
        crawl.fixture.close()


def test_four_crawls_of_a_site_keep_its_limits(
    harness: Harness, tmp_path: Path, crawls: list[Crawl]
) -> None:
    """They share 20 requests a second and 3 connections; one of them is frozen for a while. A
    refusal by the site affects all of them; a stop ends a waiting crawl.
    """
    limit(harness, SiteLimits(requests_per_s=20, connections=3, rest_s=60))
    database = str(harness.store.database.engine.url)
    more = {"LIFECYCLE_DATABASE__URL": database, "LIFECYCLE_GATEWAY__TASK_KEY": KEY.decode()}
    site = JournalSite()
    with site.serving(), gateway(environment(tmp_path, **more), tmp_path) as service:
        for number, crawl in enumerate(crawls):
            variables = leases_of(harness, start_run(harness), service.url)
            crawl.start({"port": str(site.port), "first": str(number)}, **variables)
        wait_until(lambda: len({path.partition("-")[0] for path in site.paths}) == CRAWLS, 60)

        begun = time.monotonic()
        time.sleep(1.0)
        frozen = crawls[0].process.pid
        os.killpg(frozen, signal.SIGSTOP)
        time.sleep(6.5)
        os.killpg(frozen, signal.SIGCONT)
        time.sleep(1.0)
        used = len(site.between(begun, time.monotonic())) / (20 * (time.monotonic() - begun))

        refused_at = site.refuse(3)
        wait_until(lambda: len(site.between(refused_at + 3, time.monotonic())) > 20, 30)
        after = [arrival - refused_at for arrival in site.arrivals if arrival > refused_at]

        site.refuse(1000)
        refused_at = time.monotonic()
        time.sleep(1.0)
        for crawl in crawls:
            crawl.process.send_signal(signal.SIGTERM)
        for crawl in crawls:
            crawl.fixture.finish(crawl.process, 30)
            assert crawl.fixture.summary()["finish_reason"] == "shutdown", crawl.fixture.output
        stopped_s = time.monotonic() - refused_at
    print(f"used {used:.2f}, most {site.most_in_a_second()}, open {site.most_open}, {after[:9]}")
    # Other processes may delay requests on their way to the site. ``test_lanes.py`` is exact, and
    # ``make polite`` measures the use. Without leases, there are hundreds in a second.
    assert site.most_in_a_second() <= 30
    assert site.most_open <= 3
    assert used > 0.2
    assert len([late for late in after if late < 3]) <= 3, "what was in progress"
    assert after[4] < 30
    assert stopped_s < 30


def test_a_refused_request_pauses_all_crawls_at_once(
    harness: Harness, tmp_path: Path, crawls: list[Crawl]
) -> None:
    """Each sends a request a second, and would send at least one more before it renews."""
    limit(harness, SiteLimits(requests_per_s=CRAWLS, rest_s=60))
    database = str(harness.store.database.engine.url)
    more = {"LIFECYCLE_DATABASE__URL": database, "LIFECYCLE_GATEWAY__TASK_KEY": KEY.decode()}
    site = JournalSite()
    with site.serving(), gateway(environment(tmp_path, **more), tmp_path) as service:
        for number, crawl in enumerate(crawls):
            variables = leases_of(harness, start_run(harness), service.url)
            crawl.start({"port": str(site.port), "first": str(number)}, **variables)

        def each_came_lately() -> bool:
            lately = len(site.between(time.monotonic() - 1.5, time.monotonic()))
            return len({path.partition("-")[0] for path in site.paths[-lately:]}) == CRAWLS

        wait_until(each_came_lately, 60)
        refused_at = site.refuse(60)
        time.sleep(5.0)
        after = [arrival - refused_at for arrival in site.arrivals if arrival > refused_at]
        for crawl in crawls:
            crawl.process.send_signal(signal.SIGTERM)
        for crawl in crawls:
            crawl.fixture.finish(crawl.process, 30)
    print(f"refused {after}")
    assert 1 <= len(after) <= 2


def test_one_of_three_crawls_fetches_robots_txt_and_all_obey_it(
    harness: Harness, tmp_path: Path, crawls: list[Crawl]
) -> None:
    """Its crawl delay limits them together. The record of each shows which requests it refused."""
    database = str(harness.store.database.engine.url)
    more = {"LIFECYCLE_DATABASE__URL": database, "LIFECYCLE_GATEWAY__TASK_KEY": KEY.decode()}
    site = JournalSite(robots="User-agent: *\nCrawl-delay: 0.25\nDisallow: /0-\n")
    run_ids = [start_run(harness) for _ in range(3)]
    with site.serving(), gateway(environment(tmp_path, **more), tmp_path) as service:
        for number, run_id in enumerate(run_ids):
            variables = leases_of(harness, run_id, service.url)
            args = {"port": str(site.port), "first": str(number), "n": "4"}
            crawls[number].start(args, CRAWL_SETTINGS='{"ROBOTSTXT_OBEY": true}', **variables)
        for crawl in crawls[:3]:
            crawl.fixture.finish(crawl.process, 60)
            assert crawl.fixture.summary()["finish_reason"] == "finished", crawl.fixture.output
    # A crawl that ends at once does not request the other file.
    visited = [path for path in site.paths if path != "/.well-known/tdmrep.json"]
    pages = [f"/{number}-{page}" for number in (1, 2) for page in range(4)]
    assert sorted(visited) == [*pages, "/robots.txt"]
    arrivals = [at for at, path in zip(site.arrivals, site.paths, strict=True) if path in pages]
    assert max(arrivals) - min(arrivals) > 7 * 0.25 - 0.1
    with harness.store.database.reading() as conn:
        rows = conn.execute(select(run_robots).order_by(run_robots.c.run_id)).mappings().all()
    assert [row["refused"] for row in rows] == [4, 0, 0]
    assert {row["crawl_delay"] for row in rows} == {0.25}
