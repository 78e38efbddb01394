"""People of an OpenID Connect provider: which tokens are valid, what they permit, and what holds
while it is down.
"""

from __future__ import annotations

import base64
import hmac
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi.testclient import TestClient

from crawler_lifecycle.adapters.oidc import ANSWER_MAX, Provider
from crawler_lifecycle.domain.errors import InvalidRequest, IssuerUnavailable
from crawler_lifecycle.features.managers.store.managers import ManagerStore
from crawler_lifecycle.gateway import app as app_module
from crawler_lifecycle.gateway.access import oidc as module
from crawler_lifecycle.gateway.access import operations
from crawler_lifecycle.gateway.access.limits import RateLimits
from crawler_lifecycle.gateway.access.oidc import LEEWAY_S, STALE_S, Oidc
from crawler_lifecycle.gateway.access.recorder import _TOKEN
from crawler_lifecycle.gateway.app import create_app
from crawler_lifecycle.gateway.serve import entrance_of
from crawler_lifecycle.gateway.ui.login import WAY_COOKIE, WAY_S
from crawler_lifecycle.settings import GatewaySettings, OidcSettings, Settings
from crawler_lifecycle.web.listening import Unservable
from crawler_lifecycle.web.tries import Tries
from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.keys import Keys
from tests.gateway.ui.conftest import as_browser
from tests.support import issuer as issuer_module
from tests.support.certificates import certificate
from tests.support.faulty_http import Answer, serving
from tests.support.issuer import Issuer, jwk, private_key

ANN = "ann@example.com"


class Desk:
    """A gateway whose people an issuer knows. Clocks run as outside, ``ahead`` by this time."""

    def __init__(self, harness: Harness, keys: Keys, issuer: Issuer) -> None:
        self.harness, self.keys, self.issuer = harness, keys, issuer
        self.ahead, self.monotonic = timedelta(0), 0.0
        self._stack = ExitStack()

    def open(self, **settings: Any) -> TestClient:
        self.oidc = Oidc(OidcSettings(**self.issuer.settings(**settings)), BASE)
        entrance = self.keys.entrance(oidc=self.oidc, login_key=b"k" * 32)
        self.gateway = self.harness.gateway(
            entrance=entrance, clock=lambda: datetime.now(UTC) + self.ahead
        )
        assert self.gateway.logins is not None
        self.gateway.logins.tries = Tries(clock=lambda: 0.0)
        return self._stack.enter_context(self.harness.client(create_app(self.gateway)))

    def rows(self, api: TestClient) -> list[tuple[Any, ...]]:
        assert api.portal is not None
        api.portal.call(self.gateway.recorder.close)
        return [
            (row.caller, row.operation, row.status)
            for row in self.harness.store.access.list_access(50)
        ]


@pytest.fixture
def desk(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    issuer = Issuer()
    made = Desk(harness, Keys(tmp_path), issuer)
    monkeypatch.setattr(module, "monotonic", lambda: made.monotonic)
    with serving(issuer), made._stack:
        yield made


def text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def ask(api: TestClient, token: str, path: str = "/v1/runs", method: str = "GET") -> Any:
    return api.request(method, path, headers={"Authorization": f"Bearer {token}"})


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_of_the_issuer_has_the_role_of_its_group_and_a_name_of_its_own(desk: Desk) -> None:
    api = desk.open()
    assert ask(api, desk.issuer.token()).status_code == 200
    started = api.post(
        "/v1/runs",
        json={"crawler": "plain"},
        headers={"Authorization": f"Bearer {desk.issuer.token()}"},
    )
    assert (started.status_code, started.json()["requested_by"]) == (202, f"oidc:{ANN}")
    assert ask(api, desk.issuer.token(), "/v1/runs/1", "DELETE").status_code == 403
    assert ask(api, desk.keys.tokens["admin"]).status_code == 200, (
        "tokens of the gateway count as before"
    )
    assert (f"oidc:{ANN}", "startRun", 202) in desk.rows(api)


def test_each_algorithm_that_is_named_counts(desk: Desk) -> None:
    kinds = ("RS256", "PS256", "ES256", "EdDSA")
    desk.issuer.keys = [jwk(kind, kind) for kind in kinds]
    api = desk.open()
    assert [ask(api, desk.issuer.token(alg=kind, kid=kind)).status_code for kind in kinds] == [
        200
    ] * 4


def test_what_is_no_token_of_the_issuer_for_us_is_refused_and_says_why(desk: Desk) -> None:
    issuer, now = desk.issuer, int(time.time())
    api = desk.open()
    good = issuer.token()
    head, body, signature = good.split(".")
    none, hashed = text(b'{"alg":"none","kid":"one"}'), text(b'{"alg":"HS256","kid":"one"}')
    confused = f"{hashed}.{body}"
    public = (
        private_key("ES256", "one")
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    shared = jwt.encode(issuer.claims(ANN), "k" * 64, "HS256", headers={"kid": "one"})
    # A key that the issuer does not have, with the name of one that it has.
    other = issuer.token(alg="EdDSA", kid="one")
    deep = text(b'{"alg":' + b"[" * 5000)
    for token, words in [
        (issuer.token(iss="https://evil.example"), "Invalid issuer"),
        (issuer.token(aud="another"), "Audience doesn't match"),
        (issuer.token(aud=None), "aud"),
        (issuer.token(exp=None), "exp"),
        (issuer.token(iat=None), "iat"),
        (issuer.token(nbf=now + LEEWAY_S + 60), "not yet valid"),
        (issuer.token(iat=now + LEEWAY_S + 60), "not yet valid"),
        (issuer.token(exp="soon"), "must be an integer"),
        (issuer.token(exp=1e400), ""),
        (issuer.token(kid="two"), "the issuer has no key"),
        (issuer.token(head={"typ": "logout+jwt"}), "the issuer has no key"),
        (issuer.token(head={"crit": ["x"]}), ""),
        (f"{none}.{body}.", "alg"),
        (shared, "alg"),
        (f"{confused}.{text(hmac.digest(public, confused.encode(), 'sha256'))}", "alg"),
        (other, "alg"),
        (f"{head}.{body}.{signature[:-4]}AAAA", "Signature"),
        (f"{head}.{body}", ""),
        (f"eyJ{'x' * 9000}", ""),
        (f"{deep}.{body}.{signature}", ""),
        ("eyJ", ""),
    ]:
        answer = ask(api, token)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token"), words
        assert words in answer.json()["detail"]
        assert "sign in again" in answer.json()["detail"]
        assert token[:60] not in answer.text
        desk.gateway.logins.tries = Tries()  # type: ignore[union-attr]
    assert ask(api, good).status_code == 200


def test_an_expired_token_is_named_with_its_fix(desk: Desk) -> None:
    api = desk.open()
    assert ask(api, desk.issuer.token(exp=int(time.time()) - LEEWAY_S + 20)).status_code == 200
    answer = ask(api, desk.issuer.token(exp=int(time.time()) - LEEWAY_S - 1))
    assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")
    assert "sign in again" in answer.json()["detail"]


# The gateway may warn about it, too.
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_a_short_key_and_a_private_one_of_the_issuer_open_nothing(desk: Desk) -> None:
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        weak = jwt.encode(
            desk.issuer.claims(ANN),
            private_key("short", "short"),
            "RS256",
            headers={"kid": "short"},
        )
    desk.issuer.keys = [
        jwk("short", "short"),
        {"kty": "oct", "k": "aGVsbG8", "kid": "s"},
        {"kty": []},
        7,
        jwk("ES256", "one"),
    ]  # type: ignore[list-item]
    api = desk.open()
    assert ask(api, weak).json()["code"] == "invalid_token"
    assert ask(api, desk.issuer.token()).status_code == 200, (
        "what is of no use beside it does no harm"
    )


def test_wrong_tokens_of_the_issuer_are_slowed_down_as_others(desk: Desk) -> None:
    api = desk.open()
    answers = [ask(api, desk.issuer.token(kid="two")).status_code for _ in range(12)]
    assert answers == [401] * 10 + [429] * 2
    assert ask(api, desk.issuer.token()).status_code == 200


# --- claims ---------------------------------------------------------------------------------------


def test_who_has_no_role_is_told_what_the_claim_holds_and_what_to_do(desk: Desk) -> None:
    api = desk.open()
    answer = ask(api, desk.issuer.token("bob@example.com"))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (
        "The issuer's claim groups contains ['all'], and LIFECYCLE_OIDC__ROLES lists none"
        in answer.text
    )
    for held in (None, 7, {"operators": 1}, [["operators"]], "operators2", ["x" * 5000]):
        answer = ask(api, desk.issuer.token(groups=held))
        assert answer.status_code == 403, held
        assert len(answer.text) < 700
    assert ask(api, desk.issuer.token(groups="operators")).status_code == 200
    assert ("oidc:bob@example.com", "listRuns", 403) in desk.rows(api)


def test_a_name_is_verified_and_cannot_be_mistaken(desk: Desk) -> None:
    api = desk.open()
    for claims in (
        {"email_verified": False},
        {"email_verified": "true"},
        {"email_verified": None},
        {"email": None},
        {"email": "a b@example.com"},
        {"email": "é@example.com"},
        {"email": "x" * 60},
        {"email": "project/ann"},
        {"email": "oidc:ann"},
        {"email": ["ann"]},
        {"email": "ann\n"},
    ):
        answer = ask(api, desk.issuer.token(**claims))
        assert answer.status_code == 403, claims
        assert "NAME_CLAIM" in answer.text
    by_sub = desk.open(name_claim="sub")
    assert ask(by_sub, desk.issuer.token(email_verified=False)).status_code == 200
    by_address = desk.open(
        name_claim="sub", roles_claim="email", roles={ANN: {"role": "read", "project": "*"}}
    )
    assert ask(by_address, desk.issuer.token()).status_code == 200
    answer = ask(by_address, desk.issuer.token(email_verified=False))
    assert (answer.status_code, "ROLES_CLAIM" in answer.text) == (403, True), (
        "anybody may call themselves so"
    )


def test_a_person_keeps_the_rights_while_an_answer_takes_long(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is checked again meanwhile. That must not change whose request it is."""
    monkeypatch.setattr(operations, "CHECK_S", 0.01)
    api, judged = desk.open(), [threading.Event(), threading.Event()]
    person, listed = desk.oidc.person, ManagerStore.newest

    def noted(*given: Any) -> Any:
        found = person(*given)
        next(one for one in judged if not one.is_set() or one is judged[-1]).set()
        return found

    def slow(*given: Any, **more: Any) -> Any:
        assert judged[-1].wait(60)
        return listed(*given, **more)

    monkeypatch.setattr(desk.oidc, "person", noted)
    monkeypatch.setattr(ManagerStore, "newest", slow)
    page = ask(api, desk.issuer.token(), "/managers")
    assert (page.status_code, "/start/manager" in page.text) == (200, True)


def test_of_several_values_the_highest_role_counts_and_then_all_projects(desk: Desk) -> None:
    of_one = {
        "a": {"role": "operate", "project": "a"},
        "b": {"role": "read"},
        "c": {"role": "operate", "project": "c"},
    }
    others = {
        "operators": {"role": "operate", "project": "*"},
        "admins": {"role": "admin", "project": "a"},
    }
    api = desk.open(roles=of_one | others)
    assert ask(api, desk.issuer.token(groups=["a"]), "/v1/runs?project=b").status_code == 422
    for groups, role, project in [
        (["b", "a"], "operate", "a"),
        (["b"], "read", "default"),
        (["a", "operators"], "operate", "*"),
        (["operators", "admins"], "admin", "a"),
    ]:
        caller = desk.oidc.person(desk.issuer.token(groups=groups))[0]
        assert (caller.role, caller.project) == (role, project)


# --- an issuer that is away -----------------------------------------------------------------------


def test_while_the_issuer_is_away_known_keys_count_for_a_day(desk: Desk) -> None:
    api = desk.open()
    assert ask(api, desk.issuer.token()).status_code == 200
    desk.issuer.faults.extend([Answer(503)] * 50)
    unknown = ask(api, desk.issuer.token(kid="two"))
    assert (unknown.status_code, unknown.json()["code"]) == (503, "issuer_unavailable")
    assert "returned HTTP 503" in unknown.text
    assert ask(api, desk.issuer.token()).status_code == 200
    seen = api.get("/readyz", headers=desk.keys.headers("read"))
    assert (seen.status_code, "returned HTTP 503" in seen.json()["checks"]["issuer"]) == (200, True)
    assert "HTTP 503" not in api.get("/readyz").text
    desk.monotonic += STALE_S
    assert ask(api, desk.issuer.token()).json()["code"] == "issuer_unavailable"
    assert ask(api, desk.keys.tokens["read"]).status_code == 200
    desk.issuer.faults.clear()
    assert ask(api, desk.issuer.token()).status_code == 200


def test_a_new_key_counts_at_once_and_a_flood_of_unknown_ones_asks_the_issuer_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = desk.open()
    assert ask(api, desk.issuer.token()).status_code == 200
    desk.issuer.keys = [jwk("ES256", "two")]
    assert ask(api, desk.issuer.token(kid="two")).status_code == 200
    assert ask(api, desk.issuer.token()).status_code == 401, "the key of before is gone"
    monkeypatch.setattr(module, "AGAIN_S", 600.0)
    api = desk.open()
    assert ask(api, desk.issuer.token(kid="two")).status_code == 200
    asked = desk.issuer.requests
    for number in range(9):
        ask(api, desk.issuer.token(kid=f"kid-{number}", alg="EdDSA"))
    assert desk.issuer.requests == asked


def test_a_replaced_key_of_the_same_name_counts_at_once_and_forgeries_ask_once_a_minute(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = desk.open()
    assert ask(api, desk.issuer.token()).status_code == 200
    before, after = private_key("ES256", "one"), private_key("ES256", "another")
    desk.issuer.keys = [jwk("ES256", "another") | {"kid": "one"}]
    replaced = jwt.encode(desk.issuer.claims(ANN), after, "ES256", headers={"kid": "one"})
    former = jwt.encode(desk.issuer.claims(ANN), before, "ES256", headers={"kid": "one"})
    assert ask(api, former).status_code == 200, "who asks for nothing new makes nobody read"
    assert ask(api, replaced).status_code == 200
    assert ask(api, former).status_code == 401, "the key of before is gone"
    asked = desk.issuer.requests
    for number in range(9):
        forged = jwt.encode(
            desk.issuer.claims(ANN),
            private_key("ES256", f"{number}"),
            "ES256",
            headers={"kid": "one"},
        )
        assert ask(api, forged).status_code in (401, 429)
    assert desk.issuer.requests == asked
    monkeypatch.setattr(module, "DOUBT_S", 0.0)
    api = desk.open()
    for token in (replaced, former, former):
        ask(api, token)
    assert desk.issuer.requests > asked, "later it is read again"


def test_a_sign_in_of_a_replaced_key_reads_the_keys_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = as_browser(desk.open())
    assert ask(browser, desk.issuer.token()).status_code == 200
    after = private_key("ES256", "another")
    desk.issuer.keys = [jwk("ES256", "another") | {"kid": "one"}]
    monkeypatch.setattr(issuer_module, "private_key", lambda *_: after)
    assert sign_in(desk, browser).status_code == 200


def test_who_comes_back_too_often_does_not_make_us_send_the_secret(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each return causes a request with the client's secret, and anybody who begins a login can
    return any number of times.
    """
    # No time passes, or a slow machine would let more of them through.
    monkeypatch.setattr(app_module, "RateLimits", partial(RateLimits, clock=lambda: 0.0))
    browser = as_browser(desk.open())
    state = dict(parse_qsl(urlsplit(begin(browser)).query))["state"]
    way = browser.cookies[WAY_COOKIE]
    sent, answers = list[Any](), []

    async def redeem(*_: object, **form: str) -> dict[str, str]:
        sent.append(form)
        return {"error": "invalid_grant"}

    monkeypatch.setattr(Provider, "redeem", redeem)
    for number in range(50):
        browser.cookies.set(WAY_COOKIE, way)
        answers.append(back(browser, f"/login/oidc/back?state={state}&code={number}"))
    statuses = Counter(one.status_code for one in answers)
    assert set(statuses) == {401, 429}
    assert 20 <= len(sent) == statuses[401] < 40
    refused = answers[-1]
    assert int(refused.headers["retry-after"]) >= 1


def test_each_way_in_which_an_issuer_is_of_no_use_is_named_with_its_fix(
    desk: Desk, tmp_path: Path
) -> None:
    for fault, words in [
        (Answer(404), "returned HTTP 404"),
        (Answer(302, headers={"Location": f"{desk.issuer.url}/elsewhere"}), "returned HTTP 302"),
        (Answer(body=b"<html>"), "no usable response"),
        (Answer(body=b"[" * 100_000), "no usable response"),
        (Answer(body=b" " * (ANSWER_MAX + 1)), "returned more than"),
        (
            Answer(body=b'{"issuer": "https://evil.example"}'),
            "calls itself 'https://evil.example'; set LIFECYCLE_OIDC",
        ),
        (
            Answer(
                body=json.dumps(
                    {"issuer": desk.issuer.issuer, "token_endpoint": "file:///x"}
                ).encode()
            ),
            "does not give an address",
        ),
        ("drop", "no usable response"),
    ]:
        desk.issuer.faults.extend([fault] * 50)
        api = desk.open()
        answer = ask(api, desk.issuer.token())
        assert (answer.status_code, answer.json()["code"]) == (503, "issuer_unavailable"), words
        assert words in answer.json()["detail"]
        desk.issuer.faults.clear()
    for keys in ([], [{"kty": "RSA"}], "x", None):
        desk.issuer.keys = keys  # type: ignore[assignment]
        assert ask(desk.open(), desk.issuer.token()).json()["code"] == "issuer_unavailable"


def test_a_wrong_authority_is_named_and_a_right_one_counts(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, issuer = certificate(tmp_path / "ca.pem", "localhost"), Issuer()
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    with serving(issuer, tls):
        issuer.url = issuer.url.replace("http:", "https:")
        entrance = Keys(tmp_path).entrance(oidc=Oidc(OidcSettings(**issuer.settings()), BASE))
        with harness.client(harness.new_app(entrance=entrance)) as api:
            assert "set SSL_CERT_FILE to its authority" in ask(api, issuer.token()).json()["detail"]
            monkeypatch.setenv("SSL_CERT_FILE", str(file))
            assert ask(api, issuer.token()).status_code == 200


async def test_a_flood_of_wrong_codes_loads_no_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anybody can send codes, and nobody else is served while certificates are loaded."""
    loaded, real = [], ssl.create_default_context
    monkeypatch.setattr(
        ssl, "create_default_context", lambda **how: loaded.append(how) or real(**how)
    )
    provider = Provider("https://localhost:1", "crawls", None)
    for _ in range(3):
        with pytest.raises(IssuerUnavailable, match="no usable response"):
            await provider.redeem({"token_endpoint": "https://localhost:1/token"}, code="wrong")
    assert len(loaded) == 1


# --- settings -------------------------------------------------------------------------------------


def test_wrong_settings_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {
        "ISSUER": "https://id.example.com",
        "CLIENT_ID": "crawls",
        "ROLES": '{"a": {"role": "read"}}',
    }
    for name, value, words in [
        ("ISSUER", "http://id.example.com", "LIFECYCLE_OIDC__ISSUER: 'http://id"),
        ("ISSUER", "http://localhost.example.com/x", "LIFECYCLE_OIDC__ISSUER"),
        ("CLIENT_ID", "", "client_id and roles"),
        ("ROLES", "{}", "client_id and roles"),
        (
            "ROLES",
            '{"a": {"role": "root"}}',
            "LIFECYCLE_OIDC__ROLES__A__ROLE: 'root' is not allowed",
        ),
        ("ROLES", '{"a": {"role": "read", "project": "A b"}}', "PROJECT: 'A b' is not allowed"),
        ("ROLE", "x", "no setting has this name"),
        ("SCOPES", "email groups", "LIFECYCLE_OIDC__SCOPES: 'email groups'"),
    ]:
        for key, one in (good | {name: value}).items():
            monkeypatch.setenv(f"LIFECYCLE_OIDC__{key}", one)
        monkeypatch.setenv("LIFECYCLE_OIDC__CLIENT_SECRET", "zebra")
        with pytest.raises(InvalidRequest, match=words) as found:
            Settings.load()
        assert "zebra" not in str(found.value)
    file = Keys(tmp_path).file
    people = OidcSettings(
        issuer=good["ISSUER"], client_id="crawls", roles=json.loads(good["ROLES"])
    )
    with pytest.raises(Unservable, match="LIFECYCLE_GATEWAY__WEB_UI_URL: not set"):
        entrance_of(GatewaySettings(callers_file=file), people)
    with pytest.raises(
        Unservable, match="LIFECYCLE_OIDC__ISSUER: set, and LIFECYCLE_GATEWAY__AUTH_DISABLED"
    ):
        entrance_of(GatewaySettings(auth_disabled=True), people)
    assert entrance_of(GatewaySettings(callers_file=file, web_ui_url=BASE), people).oidc is not None


def test_a_token_of_an_issuer_where_a_name_belongs_is_not_kept() -> None:
    assert _TOKEN.sub("…", f"/{jwt.encode({'a': 1}, 'k' * 32)}/") == "/…/"


# --- the page -------------------------------------------------------------------------------------


def begin(browser: TestClient, next: str = "/") -> str:
    """Press the button. Return the address to which the browser is redirected."""
    led = browser.get(f"/login/oidc?next={quote(next)}")
    assert led.status_code == 303, led.text
    return str(led.headers["location"])


def back(browser: TestClient, address: str | None) -> Any:
    """Let the browser return from another site."""
    assert address is not None
    return browser.get(address, headers={"Sec-Fetch-Site": "cross-site"})


def sign_in(desk: Desk, browser: TestClient, next: str = "/", email: str = ANN, **more: str) -> Any:
    password = {"ann@example.com": "correct horse", "bob@example.com": "battery staple"}[email]
    address = desk.issuer.log_in(begin(browser, next), email, password)
    return back(
        browser, f"{address}{''.join(f'&{name}={quote(one)}' for name, one in more.items())}"
    )


def test_a_person_signs_in_and_is_where_the_button_was(desk: Desk) -> None:
    browser = as_browser(desk.open())
    page = browser.get("/login?next=/crawlers")
    assert f"Sign in with {urlsplit(desk.issuer.issuer).netloc}" in page.text
    assert 'href="/login/oidc?next=%2Fcrawlers"' in page.text
    asked = dict(parse_qsl(urlsplit(begin(browser, "/crawlers")).query))
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] == f"{BASE}/login/oidc/back"
    assert {"state", "nonce", "code_challenge"} <= set(asked)
    done = sign_in(desk, browser, "/crawlers?a=%22b")
    assert (done.status_code, 'content="0; url=/crawlers?a=%22b"' in done.text) == (200, True)
    login, over = done.headers.get_list("set-cookie")
    assert "SameSite=strict" in login
    assert "HttpOnly" in login
    assert 3000 <= int(login.partition("Max-Age=")[2].partition(";")[0]) <= 3600, (
        "as long as the token"
    )
    assert over.startswith(f'{WAY_COOKIE}=""; ')
    assert f"oidc:{ANN} (operate)" in browser.get("/").text
    assert (f"oidc:{ANN}", "endSignIn", 200) in desk.rows(browser)
    desk.ahead += timedelta(hours=1, seconds=1)
    assert browser.get("/").status_code == 303


def test_a_login_lasts_twelve_hours_at_most_and_ends_with_the_rights_and_by_logging_out(
    desk: Desk,
) -> None:
    desk.issuer.more = {"exp": int(time.time()) + 90_000}
    browser = as_browser(desk.open())
    done = sign_in(desk, browser)
    assert "Max-Age=43200" in done.headers.get_list("set-cookie")[0]
    cookies = dict(browser.cookies)
    for roles, status in [
        ({"operators": {"role": "read"}}, 200),
        ({"others": {"role": "read"}}, 303),
    ]:
        other = as_browser(desk.open(roles=roles))
        other.cookies.update(cookies)
        page = other.get("/")
        assert page.status_code == status, "a gateway with other settings judges anew"
        assert ("(read)" in page.text) is (status == 200)
    assert browser.post("/logout").headers["location"] == "/login"
    browser.cookies.update(cookies)
    assert browser.get("/").status_code == 303


def test_the_cookie_on_the_way_is_signed_bound_to_its_host_and_no_login(desk: Desk) -> None:
    browser = as_browser(desk.open())
    led = browser.get("/login/oidc", headers={"Host": "crawls.example.com"})
    set_cookie = led.headers["set-cookie"]
    assert set_cookie.startswith(f"__Host-{WAY_COOKIE}=")
    assert all(
        word in set_cookie
        for word in ("HttpOnly", "SameSite=lax", "Secure", f"Max-Age={WAY_S}", "Path=/")
    )
    begin(browser)
    way = browser.cookies[WAY_COOKIE]
    assert browser.get("/", headers={"Cookie": f"crawl_login={way}"}).status_code == 303
    done = sign_in(desk, browser)
    assert done.status_code == 200
    login = browser.cookies["crawl_login"]
    browser.cookies.clear()
    browser.cookies.set(WAY_COOKIE, login)
    assert back(browser, "/login/oidc/back?state=x&code=y").status_code == 401
    for place in ("//evil.example", "https://evil.example", "/\\evil", "/a b", "x" * 3000):
        done = sign_in(desk, browser, place)
        assert 'url=/"' in done.text, place
    browser.cookies.clear()
    begin(browser, "/" + "x" * 3000)
    assert len(browser.cookies[WAY_COOKIE]) < 4000


def test_what_comes_back_from_elsewhere_signs_nobody_in(desk: Desk) -> None:
    """Another person's login, an old one, a repeated code, another issuer, and a token of another
    login.
    """
    app = desk.open()
    browser = as_browser(app)
    mine = desk.issuer.log_in(begin(browser), ANN, "correct horse")
    own = dict(browser.cookies)
    foreign = desk.issuer.log_in(begin(browser), ANN, "correct horse")
    assert mine is not None
    assert foreign is not None

    def refused(address: str, words: str, cookies: dict[str, str] = own, status: int = 401) -> None:
        browser.cookies.clear()
        browser.cookies.update(cookies)
        done = back(browser, address)
        assert (done.status_code, words in done.text) == (status, True), done.text
        (over,) = done.headers.get_list("set-cookie")
        assert over.startswith(f'{WAY_COOKIE}=""; '), (
            "there is no login, and what was on the way is over"
        )

    refused(foreign, "This login was not started in this browser")
    refused(mine, "This login was not started in this browser", {})
    refused(mine, "This login was not started in this browser", {WAY_COOKIE: own[WAY_COOKIE] + "x"})
    refused(mine.partition("&state")[0], "This login was not started in this browser")
    refused(f"{mine}&iss=https://evil.example", "The response did not come from")
    refused(f"{mine}&error=access_denied&error_description=%3Cb%3Eno", "access_denied: &lt;b&gt;no")
    desk.issuer.discovery = {"authorization_response_iss_parameter_supported": True}
    refused(mine, "The response did not come from")
    desk.issuer.discovery = {}
    desk.issuer.codes[parse_qsl(urlsplit(mine).query)[0][1]]["code_challenge"] = "another"
    refused(mine, "invalid_grant: no such code")
    refused(mine, "invalid_grant: no such code")  # the code was accepted
    desk.ahead += timedelta(seconds=WAY_S + 1)
    refused(mine, "This login was not started in this browser")
    desk.ahead = timedelta(0)
    for claims, status in [
        ({"nonce": "another"}, 401),
        ({"nonce": None}, 401),
        ({"aud": "another"}, 401),
        ({"aud": ["crawls", "other"], "azp": "other"}, 401),
        ({"exp": int(time.time()) - 60}, 401),
    ]:
        desk.issuer.more = claims
        browser.cookies.clear()
        done = sign_in(desk, browser)
        assert (done.status_code, "You are not logged in" in done.text) == (status, True), claims
        assert "crawl_login" not in browser.cookies
    desk.issuer.more = {}
    browser.cookies.clear()
    done = sign_in(desk, browser, email="bob@example.com")
    assert (done.status_code, "LIFECYCLE_OIDC__ROLES lists none of these values" in done.text) == (
        403,
        True,
    )
    assert "Log out" not in done.text
    assert sign_in(desk, browser, iss=desk.issuer.issuer).status_code == 200
    assert ("oidc:bob@example.com", "endSignIn", 403) in desk.rows(browser)


def test_with_the_issuer_away_who_is_in_stays_in_and_nobody_new_comes(desk: Desk) -> None:
    browser = as_browser(desk.open())
    assert sign_in(desk, browser).status_code == 200
    address = desk.issuer.log_in(begin(browser), ANN, "correct horse")
    login = browser.cookies["crawl_login"]
    desk.issuer.faults.extend([Answer(500)] * 50)
    refused = back(browser, address)
    assert (refused.status_code, "returned HTTP 500" in refused.text) == (503, True)
    browser.cookies.clear()
    led = browser.get("/login/oidc")
    assert (led.status_code, "returned HTTP 500" in led.text) == (503, True)
    assert browser.post("/login", data={"token": desk.keys.tokens["read"]}).status_code == 303
    browser.cookies.set("crawl_login", login)
    assert browser.get("/").status_code == 200


def test_without_an_issuer_nothing_of_it_is_there(harness: Harness, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with harness.client(harness.new_app(entrance=keys.entrance())) as client:
        browser = as_browser(client)
        assert "Sign in with" not in browser.get("/login").text
        assert browser.get("/login/oidc").status_code == 303
        assert browser.get("/readyz").json()["checks"].keys() == {"database", "temporal", "tokens"}
