"""Journeys of people who deploy code: see the versions of a crawler, go back to an older one, and
start a run with the newer one.
"""

from __future__ import annotations

import io
from pathlib import Path

import httpx
from playwright.sync_api import Locator, Page, expect

from crawler_lifecycle.features.packages.adapters.packing import pack
from tests.e2e.harness import Harness, until
from tests.ui.browser import Visitor
from tests.ui.people import now, number

#: A Scrapy project with one spider, which brings one item without a request.
SETTINGS = "SPIDER_MODULES = ['press.spiders']\n"
SPIDER = """
import scrapy

class Press(scrapy.Spider):
    name = "press-house"

    async def start(self):
        yield {"headline": __HEADLINE__}
"""


def deploy(harness: Harness, version: str, folder: Path, headline: str) -> None:
    """Deploy a project whose items have this headline."""
    project = folder / version
    spiders = project / "press" / "spiders"
    spiders.mkdir(parents=True)
    for file, text in {
        project / "scrapy.cfg": "[settings]\ndefault = press.settings\n",
        project / "press" / "__init__.py": "",
        project / "press" / "settings.py": SETTINGS,
        spiders / "__init__.py": "",
        spiders / "house.py": SPIDER.replace("__HEADLINE__", repr(headline)),
    }.items():
        file.write_text(text)
    packed = io.BytesIO()
    pack(project, packed)
    url = f"{harness.stack.addresses['gateway']}/v1/packages/press/versions/{version}"
    answer = httpx.put(url, content=packed.getvalue(), timeout=60)
    assert answer.status_code == 201, answer.text


def version_row(page: Page, version: str) -> Locator:
    """Return the row of a version in the list of versions."""
    return page.get_by_role("row").filter(has=page.get_by_text(version, exact=True))


def test_a_version_is_chosen_on_the_page_of_its_crawler_and_in_the_form(
    harness: Harness, visitor: Visitor, tmp_path: Path
) -> None:
    deploy(harness, "v1", tmp_path, "Harbour reopens")
    deploy(harness, "v2", tmp_path, "")
    page = visitor.open("/crawlers/press-house")
    page.get_by_role("link", name="Versions").click()
    expect(version_row(page, "v2")).to_contain_text("yes")
    page.get_by_role("combobox", name="Version").select_option("v1")
    page.get_by_role("button", name="Use it for new runs").click()
    expect(page.get_by_text("New runs execute it.")).to_be_visible()
    page.get_by_role("link", name="Versions").click()
    expect(version_row(page, "v1")).to_contain_text("yes")
    visitor.poll(page)

    page.goto(f"{visitor.origin}/runs/new?crawler=press-house")
    page.get_by_text("Limits, settings and more").click()
    page.get_by_label("Version").select_option("v2")
    page.get_by_role("button", name="Start", exact=True).click()
    run_id = number(page)
    until(lambda: not harness.open_runs(), "the end of the run")
    assert [code["version"] for code in harness.gateway.run(run_id)["codes"]] == ["v2"]
    page.reload()
    expect(now(page)).to_contain_text("done")
    expect(page.get_by_text("v2").first).to_be_visible()
