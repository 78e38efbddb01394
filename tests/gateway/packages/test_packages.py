"""Packages through the API: deployed, listed, used, deleted, downloaded, and what is refused."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.features.packages.gateway import upkeep
from crawler_lifecycle.features.packages.gateway.upkeep import PackageUpkeep
from crawler_lifecycle.features.packages.ports import Inspection
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.runner.package import ZIP_MAX
from crawler_lifecycle.store.runs.tables import run_history
from crawler_lifecycle.task_tokens import Purpose, TaskClaim, sign_task
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import KEY, Keys
from tests.gateway.served import served
from tests.runner.test_package import BOMB, link, made

SPIDERS: list[dict[str, Any]] = [
    {"name": "books", "args": {"page": {"default": "1"}, "tag": {"required": True}}},
    {"name": "Quotes!", "args": {}},
    {"name": "plain", "args": {}},
]


def ok(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def zipped(folder: Path, text: str = "", *, scrapy: bool = False) -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "crawl.py").write_text(f"print({text!r})\n")
    if scrapy:
        (folder / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    file = io.BytesIO()
    pack(folder, file)
    return file.getvalue()


def put(client: TestClient, version: str, content: Any, **more: Any) -> Any:
    return client.put(f"/v1/packages/shop/versions/{version}", content=content, **more)


def test_versions_are_deployed_used_and_deleted(client: TestClient, tmp_path: Path) -> None:
    first = ok(put(client, "v1", zipped(tmp_path / "a", "1"), params={"commit": "abc123"}), 201)
    assert (first["package"], first["version"], first["files"]) == ("shop", "v1", 1)
    assert (first["current"], first["commit"], first["project"]) == (True, "abc123", "default")
    second = ok(put(client, "v2", zipped(tmp_path / "a", "2")), 201)
    assert second["digest"] != first["digest"]
    again = ok(put(client, "v2", zipped(tmp_path / "a", "2")), 200)
    assert again["told"] == "It was already deployed."
    assert "other contents" in ok(put(client, "v2", zipped(tmp_path / "a", "3")), 409)["detail"]
    listed = ok(client.get("/v1/packages/shop"))["versions"]
    assert [(one["version"], one["current"]) for one in listed] == [("v2", True), ("v1", False)]
    used = ok(client.post("/v1/packages/shop/use", json={"version": "v1"}))
    assert used["current"]
    assert [one["version"] for one in ok(client.get("/v1/packages"))["packages"]] == ["v1"]
    assert "current" in ok(client.delete("/v1/packages/shop/versions/v1"), 409)["detail"]
    ok(client.delete("/v1/packages/shop/versions/v2"))
    ok(client.get("/v1/packages/shop/versions/v2"), 404)
    assert ok(client.delete("/v1/packages/shop")) == {"package": "shop", "versions": 1}
    for gone in (client.get("/v1/packages/shop"), client.delete("/v1/packages/shop")):
        assert ok(gone, 404)["code"] == "package_not_found"


def test_a_version_that_a_schedule_names_is_deleted_only_by_force(
    harness: Harness, client: TestClient, tmp_path: Path
) -> None:
    for version in ("v1", "v2"):
        ok(put(client, version, zipped(tmp_path / "a", version)), 201)
    spec = ScheduleSpec(run={"crawler": "bookshop", "version": "v1"}, every_s=60)
    harness.store.schedules.put("nightly", spec.document(), None)
    for path in ("/v1/packages/shop/versions/v1", "/v1/packages/shop"):
        refused = ok(client.delete(path), 409)
        assert "named by schedule nightly; change or end them first" in refused["detail"]
    ok(client.delete("/v1/packages/shop/versions/v1", params={"force": "true"}))
    ok(client.delete("/v1/packages/shop"))


def test_a_run_whose_version_was_deleted_is_not_resumed(
    harness: Harness, client: TestClient, tmp_path: Path
) -> None:
    crawler = {"name": "books", "kind": "command", "command": ["true"], "package": "shop"}
    harness.store.entries.set_entry("books", crawler, None)
    for version in ("v1", "v2"):
        ok(put(client, version, zipped(tmp_path / "a", version)), 201)
    body = {"crawler": "books", "version": "v1"}
    run_id = int(ok(client.post("/v1/runs", json=body), 202)["run_id"])
    harness.claim(run_id)
    harness.end(run_id)
    ok(client.delete("/v1/packages/shop/versions/v1"))
    refused = ok(client.post(f"/v1/runs/{run_id}/resume", json={}), 409)
    assert "executes version 'v1' of package 'shop', which was deleted" in refused["detail"]
    assert f"crawlctl resume {run_id} --version newest" in refused["detail"]
    again = {"version": "newest"}
    assert ok(client.post(f"/v1/runs/{run_id}/resume", json=again), 202)["attempt"] == 2


def test_the_spiders_of_the_current_version_are_crawlers(
    harness: Harness, client: TestClient, tmp_path: Path
) -> None:
    taken = {"kind": "command", "command": ["true"]}
    harness.store.entries.set_entry("plain", taken, None)
    harness.workflows.inspection = Inspection([*SPIDERS, {"name": "!", "args": {}}])
    found = ok(put(client, "v1", zipped(tmp_path / "a", scrapy=True)), 201)
    assert [spider["name"] for spider in found["spiders"]] == ["books", "Quotes!", "plain", "!"]
    assert "got no crawler" in found["told"]

    def entries() -> dict[str, Any]:
        return {one.name: one.document for one in harness.store.entries.list_entries()}

    args = {"page": {"default": "1"}, "tag": {"required": True}}
    books = {"name": "books", "kind": "scrapy", "package": "shop", "spider": "books", "args": args}
    assert (entries()["plain"], entries()["books"]) == (taken, books)
    others = {name: entry.get("spider") for name, entry in entries().items()}
    assert others == {"plain": None, "books": "books", "quotes": "Quotes!", "shop.plain": "plain"}
    harness.workflows.inspection = Inspection([{"name": "toys", "args": {}}])
    ok(put(client, "v2", zipped(tmp_path / "b", "2", scrapy=True)), 201)
    assert entries().keys() == {"plain", "toys"}
    ok(client.post("/v1/packages/shop/use", json={"version": "v1"}))
    assert entries().keys() == {"plain", "books", "quotes", "shop.plain"}
    # The name stays, because schedules may use it.
    harness.store.entries.delete_entry("plain")
    ok(client.post("/v1/packages/shop/use", json={"version": "v1"}))
    assert entries().keys() == {"books", "quotes", "shop.plain"}
    ok(client.delete("/v1/packages/shop"))
    assert entries() == {}


def test_a_project_that_cannot_be_imported_needs_force(
    harness: Harness, client: TestClient, tmp_path: Path
) -> None:
    harness.workflows.inspection = Inspection(problem="File a.py\nImportError: no shop")
    content = zipped(tmp_path / "a", scrapy=True)
    assert "ImportError: no shop" in ok(put(client, "v1", content), 422)["detail"]
    ok(client.get("/v1/packages/shop"), 404)
    found = ok(put(client, "v1", content, params={"force": "true"}), 201)
    assert (found["note"], found["spiders"]) == ("ImportError: no shop", [])
    harness.workflows.down = True
    refused = put(client, "v2", zipped(tmp_path / "a", "2"))
    assert ok(refused, 503)["code"] == "not_inspected"
    assert refused.headers["retry-after"]
    forced = put(client, "v2", zipped(tmp_path / "a", "2"), params={"force": "true"})
    assert "role user-code" in ok(forced, 201)["note"]


HOSTILE = {
    "leads out": (made(("../evil.py", b"")).getvalue(), "leads out of the folder"),
    "a link": (made((link(), b"/etc/passwd")).getvalue(), "links and devices"),
    "a bomb": (BOMB, "at most 209,715,200 are allowed"),
    "no zip": (b"hello", "the zip cannot be read"),
    "nothing": (b"", "the zip cannot be read"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_zip_leaves_nothing(harness: Harness, client: TestClient, case: str) -> None:
    content, said = HOSTILE[case]
    assert said in ok(put(client, "v1", content), 422)["detail"]
    assert not harness.code.exists()
    assert ok(client.get("/v1/packages"))["packages"] == []


async def test_an_upload_without_end_is_stopped(harness: Harness) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for block in itertools.repeat(bytes(2**20), 2**11):
            sent += len(block)
            yield block

    async with served(harness.app) as server, httpx.AsyncClient(base_url=server.url) as client:
        # The gateway closes the connection, which a client may notice before the response.
        with contextlib.suppress(httpx.TransportError):
            answer = await client.put("/v1/packages/shop/versions/v1", content=endless())
            assert answer.status_code == 413
    assert ZIP_MAX < sent < 2 * ZIP_MAX, "the rest of 2 GiB is not read"
    assert not harness.code.exists()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("Shop/versions/1", "package: 'Shop' is not allowed"),
        ("shop/versions/-1", "version: '-1' is not allowed"),
        ("shop/versions/1?commit=xyz", "commit"),
    ],
)
def test_wrong_names_are_told(client: TestClient, tmp_path: Path, path: str, said: str) -> None:
    answer = client.put(f"/v1/packages/{path}", content=zipped(tmp_path / "a"))
    assert said in ok(answer, 422)["detail"]


def test_one_of_many_deploys_of_a_version_wins(
    harness: Harness, client: TestClient, tmp_path: Path
) -> None:
    contents = [zipped(tmp_path / f"{n}", str(n)) for n in range(4)]
    with ThreadPoolExecutor(4) as threads:
        answers = [*threads.map(lambda content: put(client, "v1", content), contents)]
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    [row] = ok(client.get("/v1/packages/shop"))["versions"]
    [won] = [answer.json() for answer in answers if answer.status_code == 201]
    assert row["digest"] == won["digest"]


def test_projects_see_and_change_only_their_own(harness: Harness, tmp_path: Path) -> None:
    keys = Keys(tmp_path, "a", "b")
    content = zipped(tmp_path / "c")
    with harness.client(harness.new_app(entrance=keys.entrance(quota=None))) as client:
        headers = {who: keys.headers(who) for who in keys.tokens}
        ok(put(client, "v1", content, headers=headers["a-operate"]), 403)
        ok(put(client, "v1", content, headers=headers["a-admin"]), 201)
        taken = ok(put(client, "v2", content, headers=headers["b-admin"]), 409)
        assert "already taken" in taken["detail"]
        other = ok(
            put(client, "v2", content, headers=headers["b-admin"], params={"project": "a"}), 422
        )
        assert "belongs to project 'b'" in other["detail"]
        for method, path, body in (
            ("GET", "/v1/packages/shop", None),
            ("GET", "/v1/packages/shop/versions/v1", None),
            ("POST", "/v1/packages/shop/use", {"version": "v1"}),
            ("DELETE", "/v1/packages/shop/versions/v1", None),
            ("DELETE", "/v1/packages/shop", None),
        ):
            answer = client.request(method, path, json=body, headers=headers["b-admin"])
            assert ok(answer, 404)["code"] == "package_not_found"
        assert ok(client.get("/v1/packages", headers=headers["b-admin"]))["packages"] == []
        assert len(ok(client.get("/v1/packages", headers=headers["admin"]))["packages"]) == 1


def test_a_task_downloads_the_code_of_its_run_only(harness: Harness, tmp_path: Path) -> None:
    content = zipped(tmp_path / "c")
    with harness.client(harness.new_app(entrance=Entrance(task_key=KEY))) as client:
        digest = ok(put(client, "v1", content), 201)["digest"]
        run_id, other = (
            int(ok(client.post("/v1/runs", json={"crawler": "plain"}), 202)["run_id"])
            for _ in range(2)
        )
        for run in (run_id, other):
            harness.claim(run)
            harness.deploy(run)
        with harness.store.database.writing() as conn:
            this = run_history.c.run_id == run_id
            stored = conn.execute(select(run_history.c.request).where(this)).scalar_one()
            request = {**stored, "code": digest, "version": "v1"}
            conn.execute(update(run_history).where(this).values(request=request))

        def download(run: int, token_of: int, purpose: Purpose = Purpose.CODE) -> Any:
            token = sign_task(KEY, TaskClaim(purpose, harness.ref(token_of), 0, 1))
            path = f"/v1/runs/{run}/tasks/0/attempts/1/code"
            return client.get(path, headers={"Authorization": f"Bearer {token}"})

        found = download(run_id, run_id)
        assert (found.status_code, found.content) == (200, content)
        assert ok(download(other, other), 404)["code"] == "package_not_found"
        ok(download(run_id, other), 403)
        ok(download(run_id, run_id, Purpose.FILES), 403)
        harness.code.rename(harness.code.with_name("away"))
        away = download(run_id, run_id)
        assert "LIFECYCLE_CODE__URL" in ok(away, 503)["detail"]


def test_the_upkeep_removes_what_nothing_needs(
    harness: Harness, client: TestClient, tmp_path: Path
) -> None:
    digests = [
        ok(put(client, f"v{n}", zipped(tmp_path / "a", str(n))), 201)["digest"] for n in range(4)
    ]
    gateway = harness.gateway(keep_versions=2)
    harness.clock.now = utc_now()
    PackageUpkeep(gateway)._turn()
    listed = ok(client.get("/v1/packages/shop"))["versions"]
    assert [one["version"] for one in listed] == ["v3", "v2"]
    assert len(os.listdir(harness.code)) == 4, "they may belong to a deploy that is under way"
    harness.clock.now += upkeep.FRESH + timedelta(seconds=1)
    PackageUpkeep(gateway)._turn()
    kept = {f"sha256:{name.removesuffix('.zip')}" for name in os.listdir(harness.code)}
    assert kept == {*digests[2:]}


def test_the_upkeep_keeps_a_zip_that_is_deployed_again_meanwhile(
    harness: Harness, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = zipped(tmp_path / "a", "1")
    digest = ok(put(client, "v1", content), 201)["digest"]
    ok(put(client, "v2", zipped(tmp_path / "a", "2")), 201)
    ok(client.delete("/v1/packages/shop/versions/v1"))
    stored = harness.code / f"{digest.removeprefix('sha256:')}.zip"
    os.utime(stored, (0, 0))
    keeper = PackageUpkeep(harness.gateway())
    harness.clock.now = utc_now()
    needed = harness.store.package_pruning.needed

    def deployed_after(digests: Collection[str]) -> set[str]:
        found = needed(digests)
        assert digest not in found
        ok(put(client, "v3", content), 201)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(keeper._store, "needed", deployed_after)
        keeper._turn()
    assert stored.exists()
    ok(client.delete("/v1/packages/shop"))
    os.utime(stored, (0, 0))
    keeper._turn()
    assert not stored.exists()
