"""Deploying with scrapyd's clients: each sends the egg in its own way."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.features.packages.ports import Inspection
from crawler_lifecycle.features.packages.store import packages
from crawler_lifecycle.features.packages.store.packages import NewVersion
from crawler_lifecycle.features.scrapyd.gateway import deploys, eggs
from crawler_lifecycle.runner.package import Package
from tests.gateway.gateway_harness import CRAWLERS, Harness
from tests.support.fakes.services import FakeCatalogue

from .test_dialect import error, ok, run

ENTRY_POINTS = "[scrapy]\nsettings = shop.settings\n"
SPIDERS = [{"name": "Books", "args": {}}, {"name": "pens", "args": {}}]


@pytest.fixture
def scrapyd(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    entries = [
        CrawlerDefinition("books", package="myshop", spider="Books"),
        CrawlerDefinition("books-slow", package="myshop", spider="Books"),
    ]
    harness.scheduler.catalogue = FakeCatalogue([*CRAWLERS, *entries])

    async def inspected(*_: object) -> Inspection:
        return Inspection(SPIDERS)

    monkeypatch.setattr(harness.workflows, "result", inspected, raising=False)
    with harness.client(harness.new_app(scrapyd="default")) as client:
        yield client


def egg(text: str = "", **more: str) -> bytes:
    files = {
        "EGG-INFO/entry_points.txt": ENTRY_POINTS,
        "shop/settings.py": text,
        "shop/__pycache__/settings.cpython-312.pyc": text,
        **more,
    }
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, content in files.items():
            if content is not None:
                archive.writestr(path, content)
    return target.getvalue()


def deploy(client: TestClient, version: str, content: bytes, **more: Any) -> httpx.Response:
    """Send an egg as ``scrapyd-deploy`` does."""
    data = {"project": "MyShop", "version": version, **more}
    return client.post("/addversion.json", data=data, files={"egg": ("project.egg", content)})


def encoded(client: TestClient, **fields: object) -> httpx.Response:
    """Send a form as ScrapydWeb and SpiderKeeper do."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    return client.post("/addversion.json", content=urlencode(fields), headers=headers)


def versions(client: TestClient) -> list[str]:
    found = ok(client.get("/listversions.json", params={"project": "MyShop"}))["versions"]
    assert isinstance(found, list)
    return found


def test_an_egg_becomes_a_package_with_its_settings(harness: Harness, scrapyd: TestClient) -> None:
    assert ok(deploy(scrapyd, "r1-feature/x", egg("A = 1"))) == {
        **{"project": "MyShop", "version": "r1-feature/x", "spiders": 2}
    }
    found = harness.store.packages.find_version("myshop")
    assert found is not None
    assert found.version == "r1-feature_x"
    with (harness.code / f"{found.digest.removeprefix('sha256:')}.zip").open("rb") as file:
        package = Package(file)
        assert package.paths == ["EGG-INFO/entry_points.txt", "shop/settings.py", "scrapy.cfg"]
        assert package.read("scrapy.cfg", 1000) == b"[settings]\ndefault = shop.settings\n"
    # The same code again, and other code.
    assert ok(deploy(scrapyd, "r1-feature/x", egg("A = 1")))["spiders"] == 2
    assert "has other contents" in error(deploy(scrapyd, "r1-feature/x", egg("A = 2")))


def test_a_percent_encoded_egg_is_the_same(
    harness: Harness, scrapyd: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eggs, "_BLOCK", 7)
    content = egg("+ %%20&=" * 100)
    ok(deploy(scrapyd, "v1", content))
    sent = encoded(scrapyd, project="myshop", version=1764510000, egg=content)
    assert ok(sent)["version"] == "1764510000"
    digests = {one.digest for one in harness.store.packages.versions("myshop")}
    assert len(digests) == 1
    assert versions(scrapyd) == ["v1", "1764510000"]


def test_what_is_no_egg_is_refused(
    harness: Harness, scrapyd: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_settings = egg(**{"EGG-INFO/entry_points.txt": "[console_scripts]\na = b:c\n"})
    for answer, told in (
        (deploy(scrapyd, "v1", b"PK"), "egg is not a ZIP file (if using curl, use egg=@path"),
        (deploy(scrapyd, "v1", b""), "'egg' parameter is required"),
        (deploy(scrapyd, "v1", no_settings), "egg: it has no scrapy.cfg, and no entry point"),
        (deploy(scrapyd, "v1", egg(**{"../x": ""})), "egg: '../x': the path leads out"),
        (deploy(scrapyd, "-v1", egg()), "version: '-v1' is not allowed"),
        (deploy(scrapyd, "v1", egg(), project="my shop"), "package: 'my shop' is not allowed"),
        (scrapyd.post("/addversion.json"), "Content-Type: '' is not accepted"),
        (encoded(scrapyd, egg=egg()), "'project' parameter is"),
        (scrapyd.post("/addversion.json", json={}), "Content-Type: 'application/json' is not"),
    ):
        assert error(answer).startswith(told)
    monkeypatch.setattr(deploys, "FORM_MAX", 100)
    assert "more than 100 bytes" in error(deploy(scrapyd, "v1", egg()), 413)
    assert ok(scrapyd.get("/listprojects.json")) == {"projects": ["default"]}
    assert not [*harness.code.glob("*")]


def record(harness: Harness, version: str) -> None:
    spiders = SPIDERS if version != "v3" else SPIDERS[1:]
    new = NewVersion("myshop", version, f"sha256:{version[1] * 64}", 1, 1, spiders=spiders)
    harness.store.packages.add_version(new)


def test_a_version_is_chosen_and_rolled_back(
    harness: Harness, scrapyd: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("v1", "v2", "v3"):
        record(harness, version)
    assert ok(scrapyd.get("/listprojects.json")) == {"projects": ["default", "myshop"]}
    asked = {"project": "MyShop"}
    assert ok(scrapyd.get("/listspiders.json", params=asked)) == {"spiders": ["pens"]}
    older = {**asked, "_version": "v1"}
    assert ok(scrapyd.get("/listspiders.json", params=older)) == {"spiders": ["Books", "pens"]}
    assert ok(scrapyd.get("/listspiders.json", params={"project": "default"})) == {
        "spiders": ["plain", "strict"]
    }
    job = {**asked, "spider": "Books"}
    assert "version 'v9' not found" in error(
        scrapyd.post("/schedule.json", data={**job, "_version": "v9"})
    )
    assert "project 'other' not found" in error(
        scrapyd.post("/schedule.json", data={**job, "project": "other"})
    )
    assert "spider 'plain' not found" in error(
        scrapyd.post("/schedule.json", data={**job, "spider": "plain"})
    )
    old = run(harness, ok(scrapyd.post("/schedule.json", data={**job, "_version": "v1"}))["jobid"])
    new = run(harness, ok(scrapyd.post("/schedule.json", data=job))["jobid"])
    assert (old.crawler, old.request["version"], old.request["code"]) == (
        *("books", "v1", f"sha256:{'1' * 64}"),
    )
    assert (new.request["version"], new.request["code"]) == ("v3", f"sha256:{'3' * 64}")
    listed = ok(scrapyd.get("/listjobs.json", params=asked))["pending"]
    assert [(one["project"], one["spider"], one["version"]) for one in listed] == [
        ("myshop", "Books", "v3"),
        ("myshop", "Books", "v1"),
    ]
    assert not ok(scrapyd.get("/listjobs.json", params={"project": "default"}))["pending"]
    # As with scrapyd, deleting the current version rolls back.
    gone = {**asked, "version": "v3"}
    with monkeypatch.context() as patch:

        def named(*_: object) -> None:
            raise NotInThisState("schedule nightly names it")

        patch.setattr(packages, "_check_unneeded", named)
        assert "nightly" in error(scrapyd.post("/delversion.json", data=gone))
    assert versions(scrapyd) == ["v1", "v2", "v3"], "a refused deletion changes nothing"
    assert ok(scrapyd.post("/delversion.json", data=gone)) == {}
    assert versions(scrapyd) == ["v1", "v2"]
    assert "version 'v3' not found" in error(scrapyd.post("/delversion.json", data=gone))
    harness.store.packages.use_version("myshop", "v1", None)
    assert versions(scrapyd) == ["v2", "v1"]
    assert ok(scrapyd.post("/delproject.json", data=asked)) == {}
    assert "project 'MyShop' not found" in error(scrapyd.post("/delproject.json", data=asked))
    assert "catalogue" in error(scrapyd.post("/delproject.json", data={"project": "default"}))
    assert versions(scrapyd) == []
