"""Tokens in the database: they are valid in addition to those of the file, and end within seconds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import NotInThisState, StoreUnavailable
from crawler_lifecycle.gateway.access.tokens import STALE_S, digest
from crawler_lifecycle.gateway.app import create_app
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.store import access as adapter
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def gateway(harness: Harness, keys: Keys) -> Gateway:
    return harness.gateway(entrance=keys.entrance(quota=None))


@pytest.fixture
def api(harness: Harness, gateway: Gateway) -> Iterator[TestClient]:
    with harness.client(create_app(gateway)) as client:
        yield client


def made(
    harness: Harness,
    name: str,
    role: str = "operate",
    project: str = "*",
    days: float | None = None,
) -> str:
    token = f"crawl_{name}"
    until = None if days is None else harness.clock() + timedelta(days=days)
    harness.store.tokens.create_token(name, role, project, digest(token), until, "ann")
    return token


def read(api: TestClient, gateway: Gateway) -> None:
    assert gateway.kept_tokens is not None
    assert api.portal is not None
    api.portal.call(gateway.kept_tokens.read)


def ask(api: TestClient, token: str, path: str = "/v1/runs") -> tuple[int, str | None]:
    answer = api.get(path, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code, answer.json().get("code")


def test_a_token_counts_until_it_is_revoked_or_expires(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    token, short = made(harness, "ci", "read"), made(harness, "short", days=1)
    assert ask(api, token) == (401, "invalid_token")
    read(api, gateway)
    assert ask(api, token) == (200, None)
    assert ask(api, token, "/v1/webhooks") == (403, "forbidden")
    assert ask(api, short) == (200, None)
    assert (
        api.post(
            "/login", data={"token": token}, headers={"Origin": "http://127.0.0.1:8500"}
        ).status_code
        == 200
    )
    harness.clock.forward(86_400)
    assert ask(api, short) == (401, "token_expired"), "at once, and without the database"
    harness.store.tokens.revoke_token("ci", "ann")
    read(api, gateway)
    assert ask(api, token) == (401, "invalid_token")
    assert ask(api, keys.tokens["read"]) == (200, None)


def test_the_last_use_is_kept_to_the_minute(
    harness: Harness, gateway: Gateway, api: TestClient
) -> None:
    token = made(harness, "ci")
    read(api, gateway)
    harness.clock.forward(61)
    for _ in range(3):
        assert ask(api, token)[0] == 200
    read(api, gateway)
    [row] = harness.store.tokens.list_tokens()
    assert row.used_at == harness.clock().replace(second=0, microsecond=0)


def test_a_name_of_the_file_is_refused_however_it_came_there(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient
) -> None:
    token = made(harness, "the-read", "admin")
    read(api, gateway)
    assert ask(api, token) == (401, "invalid_token")
    assert ask(api, keys.tokens["read"]) == (200, None)


def test_a_role_that_somebody_wrote_into_the_database_opens_nothing(
    harness: Harness, gateway: Gateway, api: TestClient
) -> None:
    token = made(harness, "odd", "emperor")
    read(api, gateway)
    assert ask(api, token) == (401, "invalid_token")


def test_a_gateway_that_cannot_read_them_trusts_them_for_a_minute(
    harness: Harness, keys: Keys, gateway: Gateway, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = made(harness, "ci")
    read(api, gateway)

    def away(**_: object) -> list[object]:
        raise StoreUnavailable("away")

    monkeypatch.setattr(harness.store.tokens, "list_tokens", away)
    with pytest.raises(StoreUnavailable):
        read(api, gateway)
    keys.now += STALE_S - 1
    assert ask(api, token) == (200, None)
    keys.now += 1
    assert ask(api, token) == (503, "store_unavailable")
    assert ask(api, keys.tokens["read"]) == (200, None)


def test_names_are_used_once_and_come_back_after_a_revocation(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = harness.store.tokens
    made(harness, "ci")
    with pytest.raises(NotInThisState, match="'ci' already exists"):
        store.create_token("ci", "read", "a", "0" * 64, None, None)
    with pytest.raises(NotInThisState, match="no token 'cd'"):
        store.revoke_token("cd", None)
    first = store.revoke_token("ci", "bob")
    assert store.revoke_token("ci", "eve") == first, "a second one changes nothing"
    again = store.create_token("ci", "read", "a", "0" * 64, None, None)
    assert (again.role, again.revoked_at) == ("read", None)
    assert store.list_tokens() == [again]
    rows = harness.store.access.list_access(10, kind="token")
    assert [(row.caller, row.operation, row.subject, row.project) for row in reversed(rows)] == [
        ("ann", "createToken", "ci", "*"), ("bob", "revokeToken", "ci", "*"), (None, "createToken", "ci", "a"),
    ]  # fmt: skip
    monkeypatch.setattr(adapter, "TOKENS_MAX", 1)
    with pytest.raises(NotInThisState, match="at most 1 tokens"):
        made(harness, "more")
