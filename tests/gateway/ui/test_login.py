"""The login: cookies that contain no token, end with it, and are valid only for our own pages."""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.gateway.access.logins import COOKIE, Logins
from crawler_lifecycle.gateway.access.tokens import FRESH_S
from crawler_lifecycle.gateway.app import create_app
from crawler_lifecycle.store.notes import LOGIN, NoteStore
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys
from tests.gateway.ui.conftest import as_browser


def log_in(api: TestClient, keys: Keys, role: str = "read", **more: str) -> str:
    """Log in. Return the cookie."""
    done = api.post("/login", data={"token": keys.tokens[role], **more})
    assert done.status_code == 303, done.text
    return str(done.cookies[COOKIE])


def test_a_browser_is_led_to_the_login_and_back_and_a_programme_is_told_401(
    api: TestClient, keys: Keys
) -> None:
    led = api.get("/runs/7?x=1&y=2")
    assert (led.status_code, led.headers["location"]) == (
        303,
        "/login?next=/runs/7%3Fx%3D1%26y%3D2",
    )
    shown = api.get(led.headers["location"])
    assert 'name="next" value="/runs/7?x=1&amp;y=2"' in shown.text
    done = api.post("/login", data={"token": f" {keys.tokens['read']} ", "next": "/runs/7?x=1&y=2"})
    assert (done.status_code, done.headers["location"]) == (303, "/runs/7?x=1&y=2")
    answer = api.get("/", headers={"Accept": "*/*", "Cookie": ""})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def test_the_cookie_is_a_signed_reference_and_nothing_else(api: TestClient, keys: Keys) -> None:
    done = api.post("/login", data={"token": keys.tokens["operate"]})
    written = done.headers["set-cookie"]
    assert "HttpOnly" in written
    assert "SameSite=strict" in written
    assert "Secure" not in written  # the host is loopback
    assert "Max-Age=43200" in written
    assert keys.tokens["operate"] not in written
    page = api.get("/")
    assert page.status_code == 200
    assert "the-operate (operate)" in page.text
    elsewhere = {"Host": "crawls.example.com", "Origin": "https://crawls.example.com"}
    done = api.post("/login", data={"token": keys.tokens["operate"]}, headers=elsewhere)
    assert done.headers["set-cookie"].startswith(f"__Host-{COOKIE}=")
    assert "Secure" in done.headers["set-cookie"]
    value = done.headers["set-cookie"].partition(";")[0].partition("=")[2]
    api.cookies.clear()
    tossed = {
        "Host": "crawls.example.com",
        "Cookie": f"{COOKIE}={value}",
    }  # as a neighbouring host below example.com may set it
    assert api.get("/", headers=tossed).status_code == 303
    assert (
        api.get(
            "/", headers=tossed | {"Cookie": f"__Host-{COOKIE}={value}; {COOKIE}=x"}
        ).status_code
        == 200
    )


def test_a_login_leads_nowhere_else(api: TestClient, keys: Keys) -> None:
    for address in [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "evil",
        "/a\r\nX: 1",
        "",
    ]:
        done = api.post("/login", data={"token": keys.tokens["read"], "next": address})
        assert done.headers["location"] == "/", address


def test_a_token_that_is_taken_back_or_renamed_ends_its_logins(api: TestClient, keys: Keys) -> None:
    log_in(api, keys)
    assert api.get("/").status_code == 200
    keys.file.write_text(keys.file.read_text().replace("the-read", "another"))
    keys.now += FRESH_S
    assert api.get("/").status_code == 303


def test_a_login_ends_after_twelve_hours_and_by_logging_out(
    harness: Harness, api: TestClient, keys: Keys
) -> None:
    cookie = log_in(api, keys)
    out = api.post("/logout")
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    assert COOKIE not in api.cookies
    assert api.get("/", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 303
    log_in(api, keys)
    harness.clock.forward(timedelta(hours=12).total_seconds() - 1)
    assert api.get("/").status_code == 200
    harness.clock.forward(1)
    assert api.get("/").status_code == 303


def test_a_forged_cookie_is_nobody(harness: Harness, api: TestClient, keys: Keys) -> None:
    cookie = log_in(api, keys)
    api.cookies.clear()
    body, _, signature = cookie.partition(".")
    _, foreign = Logins(keys.callers, b"x" * 32).begin(keys.tokens["admin"], harness.clock()) or (
        None,
        "",
    )
    wrong = [
        foreign,
        body,
        f"{body}.",
        f".{signature}",
        f"{body}A.{signature}",
        f"{body}.{signature[:-2]}",
        "x" * 4000,
    ]
    for text in (*wrong, "a.b.c", "%00", '""', "é".encode().decode("latin-1")):
        assert (
            api.get("/", headers={"Cookie": f"{COOKIE}={text}".encode("latin-1")}).status_code
            == 303
        ), text


def test_gateways_with_one_key_share_logins(harness: Harness, keys: Keys) -> None:
    one, other = (Logins(keys.callers, b"k" * 32) for _ in range(2))
    begun = one.begin(keys.tokens["read"], harness.clock())
    assert begun is not None
    found = other.find(begun[1], harness.clock())
    assert (found.name, found.role) == ("the-read", "read")
    assert Logins(keys.callers).find(begun[1], harness.clock()) is None


def test_a_login_that_ends_at_one_gateway_ends_at_all(harness: Harness, keys: Keys) -> None:
    """This includes gateways that start later."""
    gateways = [harness.gateway(entrance=keys.entrance(login_key=b"k" * 32)) for _ in range(3)]
    with ExitStack() as stack:
        one, other = (
            as_browser(stack.enter_context(harness.client(create_app(each))))
            for each in gateways[:2]
        )
        cookie, kept = log_in(one, keys, "operate"), log_in(one, keys, "operate")

        def status(api: TestClient, cookie: str) -> int:
            api.cookies.clear()
            return api.get("/", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code

        assert [status(one, cookie), status(other, cookie)] == [200, 200]
        one.cookies.set(COOKIE, cookie)
        assert one.post("/logout").status_code == 303
        assert gateways[1].kept_tokens is not None
        assert other.portal is not None
        other.portal.call(gateways[1].kept_tokens.read)
        assert [status(one, cookie), status(other, cookie)] == [303, 303]
        late = as_browser(stack.enter_context(harness.client(create_app(gateways[2]))))
        assert status(late, cookie) == 303
        assert [status(api, kept) for api in (one, other, late)] == [200, 200, 200]


def test_a_login_that_ends_while_the_database_is_away_ends_elsewhere_when_it_is_back(
    harness: Harness, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = harness.gateway(entrance=keys.entrance(login_key=b"k" * 32))
    with harness.client(create_app(gateway)) as client:
        api = as_browser(client)
        cookie = log_in(api, keys)
        with monkeypatch.context() as away:
            away.setattr(NoteStore, "leave_note", lambda *_: refuse())
            assert api.post("/logout").status_code == 303
        assert harness.store.notes.live_notes(LOGIN) == []
        assert api.get("/", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 303
        assert gateway.kept_tokens is not None
        assert api.portal is not None
        api.portal.call(gateway.kept_tokens.read)
        assert len(harness.store.notes.live_notes(LOGIN)) == 1
        harness.clock.forward(timedelta(hours=12).total_seconds())
        api.cookies.set(COOKIE, cookie)
        api.post("/logout")
        assert harness.store.notes.live_notes(LOGIN) == [], "who has no login leaves no note"
        api.cookies.set(COOKIE, f"{cookie}x")
        api.post("/logout")
        assert harness.store.notes.live_notes(LOGIN) == []


def refuse() -> None:
    raise StoreUnavailable("away")


def test_a_cookie_counts_for_our_pages_alone(api: TestClient, keys: Keys) -> None:
    for method, headers, status in [
        ("GET", {"Sec-Fetch-Site": "none"}, 200),
        ("GET", {"Sec-Fetch-Site": ""}, 401),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, 401),
        ("GET", {"Sec-Fetch-Site": "same-site"}, 401),
        ("POST", {}, 404),
        ("POST", {"Sec-Fetch-Site": "same-site"}, 401),
        ("POST", {"Sec-Fetch-Site": "none"}, 401),
        ("POST", {"Origin": "https://evil.example"}, 403),
        ("POST", {"Origin": "null"}, 403),
    ]:
        log_in(api, keys, "operate")
        path = "/v1/runs" if method == "GET" else "/v1/runs/1/stop"
        assert (
            api.request(method, path, headers={"Accept": "*/*", **headers}).status_code == status
        ), method


def test_a_write_needs_an_origin_unless_a_token_comes_with_it(api: TestClient, keys: Keys) -> None:
    log_in(api, keys, "operate")
    del api.headers["Origin"]
    assert api.post("/v1/runs/1/stop", headers={"Accept": "*/*"}).status_code == 401
    assert api.post("/v1/runs/1/stop", headers=keys.headers("operate")).status_code == 404
    refused = api.post("/login", data={"token": keys.tokens["read"]})
    assert refused.status_code == 403
    assert "Origin: missing" in refused.text


def test_a_form_that_comes_after_the_end_of_the_login_is_told_how_to_go_on(
    api: TestClient, keys: Keys
) -> None:
    answer = api.post("/schedules/new", data={"name": "typed"})
    assert (answer.status_code, "You can send it again" in answer.text) == (401, True)
    assert "Bearer" not in answer.text


def test_a_link_on_another_page_still_finds_the_login(api: TestClient, keys: Keys) -> None:
    """Browsers withhold the cookie at first, and send it when our own page asks again."""
    led = api.get("/runs?crawler=a%22b", headers={"Sec-Fetch-Site": "cross-site"})
    assert led.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=/runs?crawler=a%22b">' in led.text
    log_in(api, keys)
    assert api.get("/runs?crawler=a%22b").status_code == 200


def test_wrong_tokens_are_limited_by_address(api: TestClient, keys: Keys) -> None:
    answers = [api.post("/login", data={"token": "crawl_wrong"}) for _ in range(20)]
    assert {answer.status_code for answer in answers[:10]} == {401}
    assert "unknown or has expired" in answers[0].text
    assert "crawl_wrong" not in answers[0].text
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    # All people behind one proxy have one address: an outsider's guesses lock nobody out.
    log_in(api, keys)


def test_a_role_is_held_to_what_it_may_and_a_new_role_counts_at_once(
    api: TestClient, keys: Keys
) -> None:
    log_in(api, keys, "read")
    assert api.post("/v1/runs/1/stop", headers={"Accept": "*/*"}).status_code == 403
    draft = keys.file.with_suffix(".draft")
    draft.write_text(
        keys.file.read_text().replace(
            'name = "the-read"\nrole = "read"', 'name = "the-read"\nrole = "operate"'
        )
    )
    os.replace(draft, keys.file)
    keys.now += FRESH_S
    assert api.post("/v1/runs/1/stop", headers={"Accept": "*/*"}).status_code == 404


def test_an_open_gateway_asks_nobody(browser: TestClient) -> None:
    assert browser.get("/").status_code == 200
    assert "needs no token" in browser.get("/login").text
    assert (
        browser.post("/login", data={"token": "x", "next": "/runs/1"}).headers["location"]
        == "/runs/1"
    )
