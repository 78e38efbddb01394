"""What hostile or unlucky code may not do: to other projects, to the gateway, and to open runs."""

from __future__ import annotations

import io
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.features.packages.gateway import upkeep
from crawler_lifecycle.features.packages.gateway.upkeep import PackageUpkeep
from crawler_lifecycle.features.packages.ports import Inspection
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.task_tokens import Purpose, TaskClaim, sign_task
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import KEY, Keys
from tests.gateway.packages.test_packages import ok, put, zipped
from tests.runner.test_package import directory_of

ENTRY = {"kind": "command", "package": "shop", "command": ["python", "crawl.py"]}


def test_a_version_that_is_deleted_while_it_runs_keeps_its_code_until_then(
    harness: Harness, tmp_path: Path
) -> None:
    """An hour passes, in which gateways remove what nothing needs."""
    content = zipped(tmp_path / "a", "1")
    with harness.client(harness.new_app(entrance=Entrance(task_key=KEY))) as client:
        harness.clock.now = utc_now()
        digest = ok(put(client, "v1", content), 201)["digest"]
        ok(client.put("/v1/crawlers/shop", json={"entry": ENTRY}))
        run_id = int(ok(client.post("/v1/runs", json={"crawler": "shop"}), 202)["run_id"])
        harness.claim(run_id)
        ok(put(client, "v2", zipped(tmp_path / "a", "2")), 201)
        ok(client.delete("/v1/packages/shop/versions/v1"))
        stored = harness.code / f"{digest.removeprefix('sha256:')}.zip"
        harness.clock.now += upkeep.FRESH + timedelta(seconds=1)
        PackageUpkeep(harness.gateway())._turn()
        token = sign_task(KEY, TaskClaim(Purpose.CODE, harness.ref(run_id), 0, 1))
        path = f"/v1/runs/{run_id}/tasks/0/attempts/1/code"
        found = client.get(path, headers={"Authorization": f"Bearer {token}"})
        assert (found.status_code, found.content) == (200, content)
        harness.end(run_id)
        PackageUpkeep(harness.gateway())._turn()
        assert not stored.exists()


def test_a_project_neither_sees_nor_executes_nor_replaces_code_of_another(
    harness: Harness, tmp_path: Path
) -> None:
    keys = Keys(tmp_path, "a", "b")
    harness.workflows.inspection = Inspection([{"name": "books", "args": {}}])
    with harness.client(harness.new_app(entrance=keys.entrance(quota=None))) as client:

        def ask(who: str, method: str, path: str, **more: Any) -> Any:
            return client.request(method, path, headers=keys.headers(who), **more)

        ok(ask("b-admin", "PUT", "/v1/crawlers/stolen", json={"entry": ENTRY}))
        code = zipped(tmp_path / "c", scrapy=True)
        ok(ask("a-admin", "PUT", "/v1/packages/shop/versions/v1", content=code), 201)
        before = ok(ask("a-admin", "GET", "/v1/crawlers/books"))
        # The spider of the other project has the same name, so its crawler gets another one.
        other = zipped(tmp_path / "d", "other", scrapy=True)
        told = ok(ask("b-admin", "PUT", "/v1/packages/toys/versions/v1", content=other), 201)
        assert "shop" not in told["told"]
        assert ok(ask("a-admin", "GET", "/v1/crawlers/books")) == before
        mine = [row["name"] for row in ok(ask("b-admin", "GET", "/v1/entries"))["entries"]]
        assert "books" not in mine
        unknown = ok(ask("b-operate", "POST", "/v1/runs", json={"crawler": "books"}), 422)
        assert unknown["code"] == "unknown_crawler"
        taken = ok(ask("b-admin", "PUT", "/v1/crawlers/other", json={"entry": ENTRY}), 409)
        assert taken["detail"] == "package 'shop' is already taken; choose another one"
        # An entry that named the package before the other project deployed it finds no version.
        refused = ok(ask("b-operate", "POST", "/v1/runs", json={"crawler": "stolen"}), 422)
        assert "'shop' has no version" in refused["detail"]
        body = {"run": {"crawler": "stolen"}, "every_s": 3600}
        ok(ask("b-operate", "PUT", "/v1/schedules/stolen", json=body), 422)


def test_the_gateway_executes_nothing_of_a_project(
    client: TestClient, harness: Harness, tmp_path: Path
) -> None:
    """Only the worker's process for users' code imports a project (tests/user_code)."""
    marker = tmp_path / "executed"
    project = tmp_path / "project"
    (project / "hostile_settings").mkdir(parents=True)
    mark = f"open({str(marker)!r}, 'w')\n"
    for path in ("setup.py", "sitecustomize.py", "hostile_settings/__init__.py"):
        (project / path).write_text(mark)
    (project / "scrapy.cfg").write_text("[settings]\ndefault = hostile_settings\n")
    file = io.BytesIO()
    pack(project, file)
    ok(put(client, "v1", file.getvalue()), 201)
    ok(client.post("/v1/packages/shop/use", json={"version": "v1"}))
    assert not marker.exists()
    assert "hostile_settings" not in sys.modules


def test_a_zip_with_too_many_files_leaves_nothing(client: TestClient, harness: Harness) -> None:
    told = ok(put(client, "v1", directory_of(45_000)), 422)["detail"]
    assert "more than 20,000 files" in told
    assert not os.path.exists(harness.code)
