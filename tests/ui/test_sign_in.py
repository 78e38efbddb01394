"""People of an OpenID Connect provider in a real Chromium, with our small provider and with Dex."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from crawler_lifecycle.cli.stack import processes
from tests.e2e.harness import Harness
from tests.support.issuer import PEOPLE
from tests.ui.browser import LOGGING_OUT
from tests.ui.conftest import Visits
from tests.ui.people import guarded, start
from tests.ui.providers import Start, dex, small


def sign_in(page: Page, issuer: str, email: str) -> None:
    """Press the button, and log in at the provider."""
    page.get_by_role("link", name="Sign in with localhost").click()
    expect(page).to_have_url(re.compile(re.escape(issuer)))
    page.locator("#login").fill(email)
    page.locator("#password").fill(PEOPLE[email][0])
    page.get_by_role("button", name="Login").click()


@pytest.mark.parametrize(
    "provider", [small, pytest.param(dex, marks=pytest.mark.slow)], ids=lambda one: one.__name__
)
def test_people_of_a_provider_log_in_act_and_log_out_and_stay_in_when_it_is_away(
    harness: Harness, visits: Visits, tmp_path: Path, provider: Start
) -> None:
    run_id, port = start(harness), processes.free_port()
    url = f"http://127.0.0.1:{port}"
    with provider(url, tmp_path) as known, guarded(harness, port, known.settings(url)) as gate:
        visitor = visits(gate.url)
        page = visitor.open(f"/runs/{run_id}")
        visitor.poll(page)
        with visitor.expecting(re.escape(known.issuer.partition("/dex")[0])):
            sign_in(page, known.issuer, "ann@example.com")
            expect(page).to_have_url(f"{gate.url}/runs/{run_id}")
        expect(page.get_by_text("oidc:ann@example.com (operate)")).to_be_visible()
        (cookie,) = (one for one in visitor.context.cookies() if one["name"].startswith("crawl_"))
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.get_by_label("More actions").click()
        page.get_by_role("button", name="Check now").click()

        token = known.token("ann@example.com")
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{gate.url}/v1/runs/{run_id}", headers=headers).status_code == 200
        stopped = httpx.post(f"{gate.url}/v1/runs/{run_id}/stop", headers=headers)
        assert stopped.is_success, stopped.text
        wrong = {"Authorization": f"Bearer {known.token('bob@example.com')}"}
        assert (
            "contains ['all']" in httpx.get(f"{gate.url}/v1/runs", headers=wrong).json()["detail"]
        )

        other = visits(gate.url)
        page_of_bob = other.open("/")
        with other.expecting(re.escape(known.issuer.partition("/dex")[0]), "403"):
            sign_in(page_of_bob, known.issuer, "bob@example.com")
            expect(page_of_bob.get_by_role("alert")).to_contain_text(
                "LIFECYCLE_OIDC__ROLES lists none of these values"
            )

        known.end()
        page.goto("/")
        expect(page.get_by_text("oidc:ann@example.com (operate)")).to_be_visible()
        assert httpx.get(f"{gate.url}/v1/runs", headers=headers).status_code == 200
        with visitor.expecting(*LOGGING_OUT):
            page.get_by_role("button", name="Log out").click()
            expect(page.get_by_role("heading", name="Log in")).to_be_visible()
