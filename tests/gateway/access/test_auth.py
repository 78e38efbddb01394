"""Who has access: tokens, roles, their file, and the crawlers' own tokens."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from fastapi import FastAPI
from fastapi.testclient import TestClient

from crawler_lifecycle.features.scrapyd.gateway.routes import DELETES, READS, WRITES
from crawler_lifecycle.gateway.access.operations import ACCESS, Entrance, Operations, signed
from crawler_lifecycle.gateway.access.tokens import (
    FRESH_S,
    Role,
    TokenFile,
    TokenFileError,
    digest,
    new_token,
)
from crawler_lifecycle.gateway.runs.requests import StopRun
from crawler_lifecycle.gateway.serve import entrance_of
from crawler_lifecycle.settings import GatewaySettings
from crawler_lifecycle.task_tokens import sign
from crawler_lifecycle.web.listening import Unservable
from crawler_lifecycle.web.origins import named_hosts
from tests.gateway.gateway_harness import BASE, Harness
from tests.gateway.keys import KEY, Keys
from tests.support.run_refs import run_ref


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def api(harness: Harness, keys: Keys) -> Any:
    with harness.client(harness.new_app(entrance=keys.entrance(), scrapyd="default")) as client:
        yield client


def bodies(operation: str) -> dict[str, Any]:
    """A valid body for an operation that takes one."""
    return {
        "startRun": {"json": {"crawler": "plain"}},
        "addTasks": {"json": {"tasks": [{"args": {}}]}},
    }.get(operation, {})


DOCUMENT = Path(__file__).parents[3] / "docs/openapi.json"
#: Not in the OpenAPI document: scrapyd's API, if it is enabled.
DIALECT = [
    *(
        ("GET", f"/{call}.json", f"scrapyd{call.capitalize()}", [{"bearer": ["read"]}])
        for call in READS
    ),
    *(
        ("POST", f"/{call}.json", f"scrapyd{call.capitalize()}", [{"bearer": ["operate"]}])
        for call in WRITES
    ),
    *(
        ("POST", f"/{call}.json", f"scrapyd{call.capitalize()}", [{"bearer": ["admin"]}])
        for call in (*DELETES, "addversion")
    ),
    ("GET", "/logs/default/plain/1.log", "scrapydLog", [{"bearer": ["read"]}]),
]


def operations() -> list[tuple[str, str, str, list[dict[str, list[str]]]]]:
    """The operations of the OpenAPI document.

    ``tests/gateway/api/test_openapi.py`` checks that it is the one that is served.
    """
    return DIALECT + [
        (
            method.upper(),
            re.sub(r"\{(run|manager)_id\}", "1", path),
            operation["operationId"],
            operation["security"],
        )
        for path, item in json.loads(DOCUMENT.read_text())["paths"].items()
        for method, operation in item.items()
    ]


# --- roles ----------------------------------------------------------------------------------------


def test_every_operation_refuses_every_caller_below_its_role(keys: Keys, api: TestClient) -> None:
    """Role by route: the gateway does what the OpenAPI document states."""
    seen = 0
    for method, path, name, security in operations():
        if ACCESS[name].stream == "always":
            assert api.request(method, path).status_code == 401
            continue  # it would not end
        for caller in (None, "wrong", *Role):
            given = {} if caller is None else {"Authorization": "Bearer crawl_wrong"}
            headers = keys.headers(caller) if caller in keys.tokens else given
            status = api.request(method, path, headers=headers, **bodies(name)).status_code
            if not security:
                assert status == 200, (name, caller)
            elif caller is None:
                assert status == 401, name
            elif caller == "wrong":
                assert status in (401, 429), name  # further ones from one address are slowed down
            else:
                needed = Role(security[0]["bearer"][0])
                assert (status == 403) is not Role(caller).covers(needed), (name, caller, status)
            seen += 1
    assert seen >= 15 * 5


def test_what_is_not_there_is_told_to_nobody_without_a_token(api: TestClient, keys: Keys) -> None:
    for method, path in (
        ("GET", "/v2/runs"),
        ("TRACE", "/v1/runs"),
        ("DELETE", "/v1/runs"),
        ("GET", "/docs"),
    ):
        assert api.request(method, path).status_code == 401
        assert api.request(method, path, headers=keys.headers("read")).status_code in (404, 405)
    assert api.get("/openapi.json").status_code == 401
    assert api.get("/openapi.json", headers=keys.headers("read")).status_code == 200


def test_a_route_without_an_entry_cannot_be_served() -> None:
    app = FastAPI(docs_url=None, redoc_url=None)
    Operations(app)
    app.get("/v1/secrets", operation_id="listSecrets")(lambda: "all of them")
    with pytest.raises(RuntimeError, match="listSecrets"):
        Operations(app)


def test_the_table_names_nothing_that_is_not_there() -> None:
    names = {name for *_, name, _ in operations()}
    assert {name for name, access in ACCESS.items() if not access.page} - {"openapi"} == names


def test_guesses_at_every_api_are_slowed_down_together_and_a_right_token_gets_in(
    api: TestClient, keys: Keys
) -> None:
    right = keys.tokens["operate"]

    def basic(token: str) -> dict[str, str]:
        return {"Authorization": f"Basic {base64.b64encode(f'x:{token}'.encode()).decode()}"}

    apis = (
        lambda token: api.get("/v1/runs", headers={"Authorization": f"Bearer {token}"}),
        lambda token: api.get("/healthz", headers={"Authorization": f"Bearer {token}"}),
        lambda token: api.get("/listjobs.json", headers=basic(token)),
        lambda token: api.post(
            "/login", data={"token": token}, headers={"Origin": BASE}, follow_redirects=False
        ),
    )
    for n in range(20):
        apis[n % 4](f"crawl_{n}")
    for ask in (apis[0], apis[2], apis[3]):
        answer = ask("crawl_wrong")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "crawl_wrong" not in answer.text
    assert [ask(right).status_code for ask in apis] == [200, 200, 200, 303]
    api.cookies.clear()
    assert api.get("/v1/runs").status_code == 401, "who shows nothing guesses nothing"


def test_refusals_say_how_to_do_it_right(api: TestClient, keys: Keys) -> None:
    answer = api.get("/v1/runs")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == 'Bearer realm="crawler-lifecycle"'
    answer = api.get("/v1/runs", headers={"Authorization": "Bearer nonsense"})
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "nonsense" not in answer.text
    answer = api.post("/v1/runs/1/stop", headers=keys.headers("read"))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "needs the role operate" in answer.json()["detail"]
    assert 'scope="operate"' in answer.headers["www-authenticate"]


def test_only_a_bearer_token_counts(api: TestClient, keys: Keys) -> None:
    for scheme in [
        "Basic {}",
        "{}",
        "Bearer",
        "Bearer  ",
        "Token {}",
        "bearer x {}",
        "Bearer {} x",
    ]:
        headers = {"Authorization": scheme.format(keys.tokens["read"])}
        assert api.get("/v1/runs", headers=headers).status_code == 401, scheme
    assert (
        api.get("/v1/runs", headers={"Authorization": f"bearer {keys.tokens['read']}"}).status_code
        == 200
    )


async def test_strangers_cannot_make_us_receive_a_body(harness: Harness, keys: Keys) -> None:
    async def never() -> Any:
        raise AssertionError("the body was asked for")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/runs",
        "raw_path": b"/v1/runs",
        "query_string": b"",
        "headers": [(b"host", b"x"), (b"content-length", b"1000")],
        "state": {},
    }
    app = harness.new_app(entrance=keys.entrance())
    await app(scope, never, send)
    assert sent[0]["status"] == 401


# --- names ----------------------------------------------------------------------------------------


def test_the_tokens_name_stands_where_the_caller_gave_none(
    harness: Harness, keys: Keys, api: TestClient
) -> None:
    mine, named = {"crawler": "plain"}, {"crawler": "plain", "requested_by": "ada"}
    operate = keys.headers("operate")
    assert api.post("/v1/runs", json=mine, headers=operate).json()["requested_by"] == "the-operate"
    assert api.post("/v1/runs", json=named, headers=operate).json()["requested_by"] == "ada"
    run_id = api.post("/v1/runs", json=mine, headers=operate).json()["run_id"]
    stopped = api.post(f"/v1/runs/{run_id}/stop", headers=keys.headers("admin")).json()
    assert stopped["stop"]["requested_by"] == "the-admin"


def test_a_repeat_under_another_token_is_the_same_request(
    harness: Harness, keys: Keys, api: TestClient
) -> None:
    first, again = (
        api.post(
            "/v1/runs",
            json={"crawler": "plain"},
            headers={**keys.headers(role), "Idempotency-Key": "k"},
        )
        for role in ("operate", "admin")
    )
    assert again.json()["run_id"] == first.json()["run_id"]
    assert again.json()["requested_by"] == "the-operate"
    other = api.post(
        "/v1/runs",
        json={"crawler": "plain", "requested_by": "eve"},
        headers={**keys.headers("admin"), "Idempotency-Key": "k"},
    )
    assert other.json()["code"] == "idempotency_mismatch"


def test_an_open_gateway_signs_nothing(client: TestClient) -> None:
    assert client.post("/v1/runs", json={"crawler": "plain"}).json()["requested_by"] is None
    assert signed(StopRun()).requested_by is None


def test_commands_leave_a_line_with_the_caller(
    keys: Keys, api: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "crawler_lifecycle.web.serving")
    api.post("/v1/runs", json={"crawler": "plain"}, headers=keys.headers("operate"))
    api.get("/v1/runs", headers=keys.headers("operate"))
    [line] = [
        vars(record) for record in caplog.records if record.name == "crawler_lifecycle.web.serving"
    ]
    assert line | {"caller": "the-operate", "operation": "startRun", "status": 202} == line
    assert "caller" not in structlog.contextvars.get_contextvars()


# --- a crawler's own token ------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [False, True])
def test_a_crawlers_token_adds_tasks_and_reads_the_stop_of_its_own_run(
    harness: Harness, keys: Keys, is_open: bool
) -> None:
    entrance = Entrance(task_key=KEY) if is_open else keys.entrance()
    with harness.client(harness.new_app(entrance=entrance, scrapyd="default")) as api:
        headers = {"Authorization": f"Bearer {sign(KEY, run_ref(1))}"}
        for method, path, name, security in operations():
            if not security:
                continue
            answer = api.request(method, path, headers=headers, **bodies(name))
            # There is no run 1, which is the response to every accepted request.
            assert answer.status_code == (404 if name in ("addTasks", "getStop") else 403), (
                name,
                answer.text,
            )
        foreign, missing = (
            api.post(f"/v1/runs/{run_id}/tasks", headers=headers, **bodies("addTasks")).json()
            for run_id in (2, 99)
        )
        assert foreign == missing
        assert foreign["code"] == "forbidden"


def test_a_token_signed_with_another_key_is_unknown(api: TestClient) -> None:
    for token in (sign(b"x" * 32, run_ref(1)), "task.1.", "task.1.AAAA"):
        answer = api.post(
            "/v1/runs/1/tasks", headers={"Authorization": f"Bearer {token}"}, **bodies("addTasks")
        )
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")


def test_without_a_key_no_crawler_token_is_known(harness: Harness, keys: Keys) -> None:
    with harness.client(harness.new_app(entrance=keys.entrance(task_key=None))) as api:
        answer = api.post(
            "/v1/runs/1/tasks", headers={"Authorization": f"Bearer {sign(KEY, run_ref(1))}"}
        )
        assert answer.status_code == 401


# --- the file -------------------------------------------------------------------------------------

HASH = digest("secret")
GOOD = f'[[token]]\nname = "portal"\nrole = "read"\nsha256 = "{HASH}"\n'


def test_new_tokens_are_let_in_by_their_lines(tmp_path: Path) -> None:
    token, lines = new_token("portal", "operate")
    other, _ = new_token("portal", "operate")
    assert token != other
    assert re.fullmatch(r"crawl_[A-Za-z0-9_-]{43}", token)
    assert token not in lines
    file = tmp_path / "tokens.toml"
    file.write_text(lines)
    caller, expired = TokenFile(file).find(token, datetime.now(UTC))
    assert (caller.name, caller.role, caller.project, expired) == (
        "portal",
        Role.OPERATE,
        "default",
        False,
    )
    assert TokenFile(file).find(other, datetime.now(UTC))[0] is None
    for project in ("a", "shop-a", "0_.z", "x" * 63, "*"):
        token, lines = new_token("portal", "read", project)
        file.write_text(lines)
        assert TokenFile(file).find(token, datetime.now(UTC))[0].project == project


def test_new_tokens_need_a_name_and_a_role_that_the_file_takes() -> None:
    for name, role in [("", "read"), ('a"b', "read"), ("a\nb", "read"), ("ok", "root")]:
        with pytest.raises(ValueError, match=r"^(name|role): "):
            new_token(name, role)
    for project in ("", "A", "-a", "a-", "a b", "a/b", "x" * 64, "**", "é", "a\n"):
        with pytest.raises(
            ValueError,
            match=r"^project: .*begin and end with a letter or digit; .\*. means all projects",
        ):
            new_token("ok", "read", project)


def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path) -> None:
    for text, told in [
        ("", r"has no \[\[token"),
        ("# nothing\n", r"has no \[\[token"),
        ("[[token]\n", "not valid TOML.*line 1"),
        ("\xff", "not valid TOML"),
        ("tokens = []\n", "line 1: unknown key 'tokens'"),
        ("token = 3\n", "line 1: token must be a list"),
        ("[token]\nname = 'x'\n", "line 1: token must be a list"),
        (
            GOOD + "\n# x\nscope = 'all'\n",
            r"line 7: unknown key 'scope'; known: name, role, sha256, expires, project",
        ),
        (GOOD + GOOD.replace("sha256", "hash"), "line 8: unknown key 'hash'"),
        (
            GOOD.replace('"read"', '"root"'),
            "line 3: role: 'root' is unknown; use one of read, operate, admin",
        ),
        (GOOD.replace('"read"', "1"), "line 3: role is missing or is not a string"),
        (GOOD.replace("role =", "# role ="), "line 1: role is missing"),
        (GOOD.replace(HASH, "secret"), "line 4: sha256 must be 64 hexadecimal digits"),
        (GOOD.replace("portal", "a b"), "line 2: name: 'a b' is not allowed"),
        (GOOD + "expires = 2027-01-31T12:00:00\n", "line 5: expires must be a time with an offset"),
        (GOOD + "expires = 2027-01-31\n", "line 5: expires must be a time with an offset"),
        (GOOD + "expires = 'never'\n", "line 5: expires must be a time with an offset"),
        (
            GOOD + "expires = 0001-01-01T00:00:00+14:00\n",
            "line 5: expires: .* is not in the years 1 to 9999 in UTC",
        ),
        (
            GOOD + "expires = 9999-12-31T23:59:59-14:00\n",
            "line 5: expires: .* is not in the years 1 to 9999 in UTC",
        ),
        (
            GOOD + "project = 'Shop A'\n",
            "line 5: project: 'Shop A' is not allowed; project names have 1 to 63",
        ),
        (GOOD + "project = 7\n", "line 5: project: 7 is not allowed"),
        (GOOD + GOOD, "line 8: the token is the same as number 1"),
        (f'token = [{{name="a", role="read", sha256="{HASH}", x=1}}]', "token 1: unknown key 'x'"),
        ("x" * (1024 * 1024 + 1), "more than 1048576 bytes"),
    ]:
        file = tmp_path / "tokens.toml"
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(TokenFileError, match=told) as refused:
            TokenFile(file)
        assert str(file) in str(refused.value), text
        assert "secret" not in str(refused.value).replace(str(file), "")


def test_a_file_that_everybody_may_write_or_nobody_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    with pytest.raises(TokenFileError, match=r"No such file.*LIFECYCLE_GATEWAY__CALLERS_FILE"):
        TokenFile(file)
    with pytest.raises(TokenFileError, match="directory"):
        TokenFile(tmp_path)
    file.write_text(GOOD)
    file.chmod(0o666)
    with pytest.raises(TokenFileError, match="chmod o-w"):
        TokenFile(file)
    file.chmod(0o644)
    TokenFile(file)


def test_a_token_stops_counting_when_it_expires(harness: Harness, tmp_path: Path) -> None:
    token, lines = new_token("portal", "read")
    ends = harness.clock.now + timedelta(hours=1)
    file = tmp_path / "tokens.toml"
    file.write_text(lines + f"expires = {ends.isoformat()}\n")
    headers = {"Authorization": f"Bearer {token}"}
    with harness.client(harness.new_app(entrance=Entrance(TokenFile(file)))) as api:
        assert api.get("/v1/runs", headers=headers).status_code == 200
        harness.clock.forward(3600)
        answer = api.get("/v1/runs", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")


def test_tokens_change_without_a_restart(keys: Keys, api: TestClient) -> None:
    former = keys.headers("operate")
    fresh, lines = new_token("portal", "read")
    # As a mounted secret changes: another file gets the name.
    draft = keys.file.with_suffix(".draft")
    draft.write_text(lines)
    os.replace(draft, keys.file)
    assert api.get("/v1/runs", headers=former).status_code == 200
    keys.now += FRESH_S
    assert api.get("/v1/runs", headers=former).status_code == 401
    assert api.get("/v1/runs", headers={"Authorization": f"Bearer {fresh}"}).status_code == 200


@pytest.mark.parametrize("broken", ["", "[[token", None])
def test_a_broken_new_file_keeps_the_callers_of_before_and_says_so(
    keys: Keys, api: TestClient, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    good = keys.file.read_text()
    assert api.get("/readyz").json()["checks"]["tokens"] == "ok"
    if broken is None:
        keys.file.unlink()
    else:
        keys.file.write_text(broken)
    for _ in range(3):
        keys.now += FRESH_S
        assert api.get("/v1/runs", headers=keys.headers("read")).status_code == 200
    ready = api.get("/readyz")
    assert ready.status_code == 200
    assert "the previous tokens stay valid" in ready.json()["checks"]["tokens"]
    assert str(keys.file) not in ready.text
    assert caplog.text.count("the tokens file cannot be used, the previous tokens stay valid") == 1
    assert str(keys.file) in caplog.text
    keys.file.write_text(good)
    keys.now += FRESH_S
    assert api.get("/v1/runs", headers=keys.headers("read")).status_code == 200
    assert api.get("/readyz").json()["checks"]["tokens"] == "ok"


def test_strangers_learn_that_something_is_wrong_and_not_what(
    harness: Harness, keys: Keys, api: TestClient
) -> None:
    harness.workflows.down = True
    for headers in ({}, {"Authorization": "Bearer wrong"}, keys.headers("read")):
        answer = api.get("/readyz", headers=headers)
        assert answer.status_code == 503
        assert ("UNAVAILABLE" in answer.text) is (headers == keys.headers("read"))
        assert answer.json()["checks"]["database"] == "ok"


# --- hosts and origins ----------------------------------------------------------------------------


def test_with_tokens_hosts_may_be_listed(harness: Harness, keys: Keys) -> None:
    for hosts, host, status in [
        ((), "crawls.example.com", 200),
        (("crawls.example.com",), "crawls.example.com", 200),
        (("crawls.example.com",), "CRAWLS.example.com:8443", 200),
        (("crawls.example.com",), "evil.example", 403),
        (("crawls.example.com",), "", 403),
        (("crawls.example.com:8443",), "crawls.example.com:9", 403),
    ]:
        with harness.client(
            harness.new_app(entrance=keys.entrance(check=named_hosts(hosts)))
        ) as api:
            assert (
                api.get("/v1/runs", headers={**keys.headers("read"), "host": host}).status_code
                == status
            ), hosts
            assert api.get("/healthz", headers={"host": host}).status_code == 200, (
                "a probe comes to an address"
            )


def test_a_foreign_page_is_refused_even_with_a_right_token(keys: Keys, api: TestClient) -> None:
    for origin in ["https://evil.example", "null", "https://127.0.0.1:1", "http://localhost:8500"]:
        answer = api.post(
            "/v1/runs",
            json={"crawler": "plain"},
            headers={**keys.headers("admin"), "origin": origin},
        )
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin"), origin
        assert (
            api.get("/v1/runs", headers={**keys.headers("read"), "origin": BASE}).status_code == 200
        )


# --- settings -------------------------------------------------------------------------------------


def test_what_would_let_everybody_or_nobody_in_does_not_start() -> None:
    for settings, told in [
        (
            {},
            r"CALLERS_FILE: not set.*crawlctl gateway token new.*LIFECYCLE_GATEWAY__AUTH_DISABLED=true",
        ),
        (
            {"auth_disabled": True, "host": "0.0.0.0"},
            r"__HOST: '0\.0\.0\.0' can be reached.*CALLERS_FILE",
        ),
        ({"auth_disabled": True, "host": "::"}, "__HOST"),
        (
            {"auth_disabled": True, "callers_file": "tokens.toml"},
            "AUTH_DISABLED and LIFECYCLE_GATEWAY__CALLERS_FILE: both",
        ),
        ({"callers_file": "none.toml"}, r"none\.toml: No such file"),
        ({"auth_disabled": True, "task_key": "short"}, "TASK_KEY: 5 bytes are too few"),
        ({"host": "0.0.0.0"}, "CALLERS_FILE: not set"),
    ]:
        with pytest.raises(Unservable, match=told):
            entrance_of(GatewaySettings(**settings))


def test_settings_become_an_entrance(keys: Keys) -> None:
    is_open = entrance_of(GatewaySettings(auth_disabled=True))
    assert is_open.callers is None
    assert is_open.quota is None
    settings = GatewaySettings(
        host="0.0.0.0", callers_file=keys.file, task_key="k" * 32, max_writes_per_s=3
    )
    entrance = entrance_of(settings)
    assert entrance.callers is not None
    assert entrance.task_key == KEY
    assert entrance.quota is not None
    assert entrance.quota.max_writes_per_s == 3
