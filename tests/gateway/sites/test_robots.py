"""The robots.txt of a site, which one task fetches for all."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, update

from crawler_lifecycle.features.sites.domain.lanes import PACE
from crawler_lifecycle.features.sites.store import leases as leases_module
from crawler_lifecycle.features.sites.store import robots as robots_module
from crawler_lifecycle.features.sites.store.robots import RobotsStore
from crawler_lifecycle.features.sites.store.tables import (
    run_robots,
    run_site,
    site,
    site_robots,
)
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.task_tokens import Purpose, TaskClaim, sign_task
from tests.gateway.gateway_harness import Harness

from .test_leases import KEY, SHOP, Tasks

ORIGIN = "https://shop.example"
TEXT = b"User-agent: *\nCrawl-delay: 5\nDisallow: /private\n"


@pytest.fixture
def client(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(leases_module, "CACHE_S", 0.0)
    with harness.client(harness.new_app(entrance=Entrance(task_key=KEY))) as client:
        yield client


class Visitors(Tasks):
    """Runs whose tasks visit the site."""

    def visit(self) -> int:
        run_id = self.start()
        with self.harness.store.database.writing() as conn:
            conn.execute(insert(run_site).values(run_id=run_id, host=SHOP, site=SHOP))
        return run_id

    def share(self, run_id: int, origin: str = ORIGIN, of: int | None = None, **more: Any) -> Any:
        claim = TaskClaim(Purpose.LEASES, self.harness.ref(of or run_id), 0, 1)
        path = f"/v1/runs/{run_id}/tasks/0/attempts/1/leases/robots"
        headers = {"Authorization": f"Bearer {sign_task(KEY, claim)}"}
        return self.client.post(path, headers=headers, json={"origin": origin, **more})

    def report(self, run_id: int, body: bytes, status: int | None = 200, **more: Any) -> Any:
        file = {"status": status, "body": base64.b64encode(body).decode()}
        return self.share(run_id, robots=file, **more)


@pytest.fixture
def visitors(harness: Harness, client: TestClient) -> Visitors:
    return Visitors(harness, client)


def test_of_too_many_origins_each_crawl_requests_the_files_itself(
    visitors: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are kept are renewed."""
    monkeypatch.setattr(robots_module, "ORIGINS_MAX", 2)
    run_id = visitors.visit()
    for port in (1, 2):
        assert visitors.share(run_id, f"{ORIGIN}:{port}").json()["fetch"]
    answer = visitors.share(run_id, f"{ORIGIN}:3").json()
    assert (answer["fetch"], answer["wait_s"], answer["status"]) == (False, None, None)
    assert visitors.share(run_id, f"{ORIGIN}:2").json()["fetch"]
    assert len(visitors.rows(site_robots)) == 2


def test_files_without_room_are_unknown_and_do_not_allow_everything(
    visitors: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway counts what others keep, once a minute."""
    monkeypatch.setattr(robots_module, "BYTES_MAX", 2 * len(TEXT))
    run_id = visitors.visit()
    for port in (1, 2, 3):
        origin = f"{ORIGIN}:{port}"
        assert visitors.share(run_id, origin).json()["fetch"]
        answer = visitors.report(run_id, TEXT, origin=origin).json()
        assert answer["status"] == (None if port == 3 else 200)
    rows = {row["origin"]: row for row in visitors.rows(site_robots)}
    assert rows[f"{ORIGIN}:3"]["body"] is None
    assert rows[f"{ORIGIN}:3"]["crawl_delay"] == 5
    again = RobotsStore(visitors.harness.store.database)
    with visitors.harness.store.database.reading() as conn:
        assert not again._budget.has_room(conn, size=1)
        monkeypatch.setattr(robots_module, "BYTES_MAX", 3 * len(TEXT))
        assert again._budget.has_room(conn, size=1)


def test_one_task_fetches_for_all_and_the_delay_limits_the_site(visitors: Visitors) -> None:
    first = visitors.visit()
    second = visitors.visit()
    assert visitors.ask(first)["free"]
    assert visitors.share(first).json()["fetch"]
    waits = visitors.share(second).json()
    assert (waits["fetch"], waits["wait_s"]) == (False, 0.5)
    assert visitors.report(second, TEXT).status_code == 409, "it is not the one that fetches"
    answer = visitors.report(first, TEXT, agent="Scrapy/2.19")
    assert answer.json()["delayed"]
    known = visitors.share(second, "HTTPS://shop.example:443/").json()
    assert base64.b64decode(known["body"]) == TEXT
    assert known["sha256"] == hashlib.sha256(TEXT).hexdigest()
    lane = visitors.ask(second)["lanes"][0]
    assert lane["every_s"] == pytest.approx(5 * PACE)
    rows = visitors.rows(run_robots)
    assert {(row["run_id"], row["sha256"]) for row in rows} == {
        (first, known["sha256"]),
        (second, known["sha256"]),
    }
    visitors.ask(second, refused=3)
    visitors.ask(second, refused=4)
    assert [row["refused"] for row in visitors.rows(run_robots)] == [0, 7]


def test_an_entry_can_ignore_the_delay(visitors: Visitors) -> None:
    run_id = visitors.visit()
    visitors.share(run_id)
    visitors.report(run_id, TEXT)
    visitors.limit("*", crawl_delay="ignore")
    assert visitors.ask(run_id)["free"]


def test_rules_that_are_unknown_keep_the_last_ones(visitors: Visitors) -> None:
    run_id = visitors.visit()
    visitors.share(run_id)
    visitors.report(run_id, TEXT)
    for status, delay in ((503, 5.0), (None, 5.0), (429, 5.0), (404, None)):
        with visitors.harness.store.database.writing() as conn:
            conn.execute(update(site_robots).values(valid_until=0.0))
        assert visitors.share(run_id).json()["fetch"]
        answer = visitors.report(run_id, b"", status).json()
        assert answer["status"] == (404 if status == 404 else None)
        [row] = visitors.rows(site)
        assert row["crawl_delay"] == delay
        assert not visitors.share(run_id).json()["fetch"], "for a while"


def test_only_visitors_take_part(visitors: Visitors) -> None:
    """A run of another project, or one that does not visit the site, neither gets nor changes it."""
    first = visitors.visit()
    stranger = visitors.start()
    nothing = visitors.share(stranger).json()
    assert not nothing["fetch"]
    assert nothing["status"] is nothing["wait_s"] is None
    assert visitors.share(first, of=stranger).status_code == 403
    visitors.limit(SHOP, requests_per_s=10.0)
    assert visitors.share(stranger).json()["fetch"]
    assert visitors.report(stranger, TEXT).status_code == 409, "it holds no lane"
    visitors.ask(stranger)
    assert visitors.report(stranger, TEXT).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["shop.example", "ftp://shop.example", "https://", "https://shop.example/a", "x" * 301],
)
def test_an_origin_that_is_none(visitors: Visitors, origin: str) -> None:
    answer = visitors.share(visitors.visit(), origin)
    assert answer.status_code == 422
    assert "origin" in answer.json()["detail"]


def test_tdm_reservations_are_recorded(visitors: Visitors) -> None:
    run_id = visitors.visit()
    visitors.share(run_id)
    visitors.report(run_id, TEXT)
    rules = b'[{"location": "/", "tdm-reservation": 1, "tdm-policy": "https://shop.example/p"}]'
    tdm = {"status": 200, "body": base64.b64encode(rules).decode()}
    assert visitors.share(run_id, tdm=tdm).status_code == 200
    [row] = visitors.rows(site_robots)
    assert (row["tdm_reserved"], row["tdm_policy"]) == (True, "https://shop.example/p")
    assert row["status"] == 200


def test_a_response_can_reserve_rights(visitors: Visitors) -> None:
    run_id = visitors.visit()
    visitors.share(run_id)
    visitors.report(run_id, TEXT)
    for policy, kept in (("https://shop.example/p", "https://shop.example/p"), ("data:x", None)):
        assert visitors.share(run_id, reserved={"policy": policy}).status_code == 200
        [row] = visitors.rows(site_robots)
        assert (row["tdm_reserved"], row["tdm_policy"]) == (True, kept)
    assert visitors.share(visitors.start(), reserved={}).status_code == 409, "it is no visitor"
    assert visitors.share(run_id, reserved={"policy": "x" * 1001}).status_code == 422


def test_a_body_that_is_too_large_is_refused(visitors: Visitors) -> None:
    run_id = visitors.visit()
    visitors.share(run_id)
    assert visitors.report(run_id, b"a" * 600_000).status_code == 413
    assert visitors.report(run_id, b"\x00\xff" * 250_000).status_code == 200


def test_people_see_it(visitors: Visitors) -> None:
    """In the run's record, for the site, and as text that no browser renders."""
    run_id = visitors.visit()
    visitors.share(run_id)
    body = b"<script>alert(1)</script>\n" + TEXT
    visitors.report(run_id, body)
    visitors.ask(run_id, refused=12)
    client = visitors.client
    sha = hashlib.sha256(body).hexdigest()
    [mine] = client.get(f"/v1/runs/{run_id}").json()["robots"]
    assert mine == {"host": SHOP, "sha256": sha, "crawl_delay": 5.0, "refused": 12}
    found = client.get(f"/v1/sites/{SHOP}").json()
    assert found["delay_s"] == 5.0
    [origin] = found["robots"]
    assert (origin["origin"], origin["run_id"], origin["sha256"]) == (ORIGIN, run_id, sha)
    assert found["use"] is not None, "the crawl delay is a limit"
    text = client.get(f"/v1/sites/{SHOP}/robots?origin={ORIGIN}")
    assert text.content == body
    assert text.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert text.headers["X-Content-Type-Options"] == "nosniff"
    assert text.headers["Content-Disposition"].startswith("attachment")
    missing = client.get(f"/v1/sites/{SHOP}/robots?origin=http://shop.example")
    assert missing.status_code == 404
    page = client.get(f"/sites/{SHOP}").text
    assert "limited by robots.txt: one request per 5 s" in page
    assert sha[:8] in page
    record = client.get(f"/runs/{run_id}").text
    assert f"{SHOP} {sha[:8]}, crawl delay 5 s, 12 requests refused" in record
    limits = client.put(f"/v1/sites/{SHOP}", json={"crawl_delay": "ignore"}).json()
    assert limits["note"] == "crawl_delay: none → ignore"
    assert limits["delay_s"] is None
    assert 'value="ignore" selected' in client.get(f"/sites/{SHOP}/limits").text
