"""The public clients of scrapyd drive a whole stack unchanged, from schedule to finished."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from scrapyd_api import ScrapydAPI
from scrapyd_api.exceptions import ScrapydError
from scrapyd_client.exceptions import ErrorResponse
from scrapyd_client.pyclient import ScrapydClient

from tests.dev.dev_support import Dev, wait_until

PROJECT = "default"
#: A crawl that continues until somebody ends it.
SLOW = {"delay": "60"}
SPIDER = """
import scrapy
class Marked(scrapy.Spider):
    name = "marked"
    start_urls = ["data:,page"]
    def parse(self, response):
        self.logger.info("executed %s")
"""


def test_python_scrapyd_api_and_scrapyd_client_from_schedule_to_finished(
    running: Dev, tmp_path: Path
) -> None:
    url = running.known["gateway"]
    _python_scrapyd_api(ScrapydAPI(url, timeout=60))
    _scrapyd_client(ScrapydClient(url))
    _command(url, tmp_path)


def _python_scrapyd_api(api: ScrapydAPI) -> None:
    assert api.list_projects() == [PROJECT]
    assert {"services", "plain"} <= set(api.list_spiders(PROJECT))
    [version] = api.list_versions(PROJECT)
    job = api.schedule(
        PROJECT, "services", settings={"LOG_LEVEL": "INFO"}, _version=version, jobid="api-1"
    )
    assert job == "api-1"
    slow = api.schedule(PROJECT, "plain", **SLOW)
    wait_until(lambda: api.job_status(PROJECT, slow) == "running")
    wait_until(lambda: api.job_status(PROJECT, job) == "finished")
    assert api.schedule(PROJECT, "plain", jobid=slow, **SLOW) == slow
    assert [one["id"] for one in api.list_jobs(PROJECT)["running"]] == [slow]
    assert api.cancel(PROJECT, slow, signal="KILL") == "running"
    wait_until(lambda: api.job_status(PROJECT, slow) == "finished")
    assert api.cancel(PROJECT, slow) is None
    finished = {one["id"]: one for one in api.list_jobs(PROJECT)["finished"]}
    log = requests.get(f"{api.target}{finished[job]['log_url']}", timeout=60)
    assert "Spider closed (finished)" in log.text
    for egg in (b"PK", b"PK" * 2**20):
        with pytest.raises(ScrapydError, match="egg is not a ZIP file"):
            api.add_version("shop", "r1", egg)
    for missing in (lambda: api.delete_version("shop", "r1"), lambda: api.delete_project("shop")):
        with pytest.raises(ScrapydError, match="'shop' not found"):
            missing()
    with pytest.raises(ScrapydError, match=r"spider 'nobody' not found; known:"):
        api.schedule(PROJECT, "nobody")


def _scrapyd_client(client: ScrapydClient) -> None:
    assert client.projects("def*") == [PROJECT]
    assert client.versions(PROJECT)
    assert client.spiders(PROJECT, "serv*") == ["services"]
    slow = client.schedule(
        PROJECT, "plain", [*SLOW.items(), ("setting", "RETRY_TIMES=1"), ("priority", "2")]
    )
    wait_until(lambda: client.status(slow)["currstate"] == "running")
    assert client.daemonstatus()["running"] == 1
    assert client.cancel(PROJECT, slow)["prevstate"] == "running"
    wait_until(lambda: client.status(slow, PROJECT)["currstate"] == "finished")
    assert slow in [job["id"] for job in client.jobs(PROJECT)["finished"]]
    for refused in (lambda: client.delproject("shop"), lambda: client.delversion("shop", "r1")):
        with pytest.raises(ErrorResponse, match="'shop' not found"):
            refused()


def _command(url: str, folder: Path) -> None:
    """Call ``scrapyd-client`` in a project whose configuration has another address."""
    _write_project(folder, url, PROJECT)
    assert _told(folder, "scrapyd-client", "projects") == f"{PROJECT}\n"
    spiders = _told(folder, "scrapyd-client", "spiders", "-v", "-p", PROJECT)
    assert f"{PROJECT} services\n" in spiders
    scheduled = _told(folder, "scrapyd-client", "schedule", "-p", PROJECT, "services")
    job = scheduled.split(" => ")[1].strip()
    client = ScrapydClient(url)
    wait_until(lambda: client.status(job)["currstate"] == "finished")


def _write_project(folder: Path, url: str, project: str) -> None:
    """Write a Scrapy project without spiders, which is deployed to this address."""
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "settings.py").write_text('SPIDER_MODULES = ["shop.spiders"]\n')
    (folder / "scrapy.cfg").write_text(
        f"[settings]\ndefault = shop.settings\n[deploy]\nurl = {url}\nproject = {project}\n"
    )


def _told(folder: Path, program: str, *words: str) -> str:
    """Call a program of scrapyd-client in a project, and return its output."""
    path = Path(sys.executable).parent / program
    done = subprocess.run([path, *words], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_scrapyd_deploy_deploys_and_rolls_back_what_crawls_execute(
    running: Dev, tmp_path: Path
) -> None:
    url = running.known["gateway"]
    client = ScrapydClient(url)
    _write_project(tmp_path, url, "marked")

    def deploy(version: str) -> None:
        (tmp_path / "shop" / "spiders.py").write_text(SPIDER % version)
        told = _told(tmp_path, "scrapyd-deploy", "-v", version)
        assert json.loads(told)["spiders"] == 1, told

    def executed(**more: str) -> list[str]:
        job = client.schedule("marked", "marked", [*more.items()])
        wait_until(lambda: client.status(job, "marked")["currstate"] == "finished")
        [done] = [done for done in client.jobs("marked")["finished"] if done["id"] == job]
        log = requests.get(f"{url}{done['log_url']}", timeout=60).text
        return re.findall(r"executed (\w+)", log)

    deploy("r1")
    assert executed() == ["r1"]
    deploy("r2")
    assert executed() == ["r2"]
    assert executed(_version="r1") == ["r1"]
    running.crawlctl("package", "use", "marked", "r1")
    assert executed() == ["r1"]
    # As with scrapyd, the newest of the remaining versions is executed.
    client.delversion("marked", "r1")
    assert executed() == ["r2"]
    client.delproject("marked")
    assert client.projects() == [PROJECT]
