"""Crawls without support for leases, behind the proxy, with a real gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.store.tables import site_robots
from tests.gateway.gateway_harness import Harness
from tests.gateway.gateway_process import environment, gateway
from tests.gateway.sites.lease_story import KEY, JournalSite, leases_of, limit, start_run
from tests.runner.runner_fixture import RUNNER, wait_until

pytestmark = pytest.mark.processes

CRAWLS = 3
PAGES = 30
#: Fetches robots.txt and pages with six threads, and prints their statuses.
CRAWLER = """
import sys, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor

def fetch(page):
    try:
        return urllib.request.urlopen(f"{sys.argv[1]}{page}", timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code

with ThreadPoolExecutor(6) as pool:
    host = sys.argv[1].rpartition("/")[0]
    rules = urllib.request.urlopen(f"{host}/robots.txt", timeout=60).read().decode()
    assert rules == "User-agent: *\\n", rules
    print(*pool.map(fetch, range(int(sys.argv[2]))))
"""


def test_crawls_behind_the_proxy_keep_the_limits_of_a_site(
    harness: Harness, tmp_path: Path
) -> None:
    limit(harness, SiteLimits(requests_per_s=20, connections=3, rest_s=60))
    database = str(harness.store.database.engine.url)
    more = {"LIFECYCLE_DATABASE__URL": database, "LIFECYCLE_GATEWAY__TASK_KEY": KEY.decode()}
    headers = "TDM-Reservation: 1\r\nTDM-Policy: https://shop.example/p\r\n"
    site = JournalSite(robots="User-agent: *\n", headers=headers)
    proxy = [sys.executable, str(RUNNER / "inject" / "crawl_runner_proxy.py"), "--"]
    crawls = []
    with site.serving(), gateway(environment(tmp_path, **more), tmp_path) as service:
        for number in range(CRAWLS):
            address = f"http://127.0.0.1:{site.port}/{number}-"
            crawls.append(
                subprocess.Popen(
                    [*proxy, sys.executable, "-c", CRAWLER, address, str(PAGES)],
                    env=os.environ | leases_of(harness, start_run(harness), service.url),
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        wait_until(lambda: len(site.arrivals) > CRAWLS * PAGES / 2, 30)
        refused_at = site.refuse(3)
        statuses = " ".join(crawl.communicate(timeout=60)[0] for crawl in crawls).split()
    after = [arrival - refused_at for arrival in site.arrivals if arrival > refused_at]
    print(f"most {site.most_in_a_second()}, open {site.most_open}, {after[:6]}")
    assert len(statuses) == CRAWLS * PAGES
    assert statuses.count("429") <= 4, "what was in progress, and one probe"
    assert set(statuses) <= {"200", "429"}
    assert site.most_in_a_second() <= 22
    assert site.most_open <= 3
    assert len([late for late in after if late < 3]) <= 3
    assert site.paths.count("/robots.txt") == 1, "one of them fetched it for all"
    with harness.store.database.reading() as conn:
        row = conn.execute(select(site_robots)).mappings().one()
    assert (row["tdm_reserved"], row["tdm_policy"]) == (True, "https://shop.example/p")
