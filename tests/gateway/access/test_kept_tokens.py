"""Tokens that the database keeps: they count beside those of the file, and end within seconds."""

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
from tests.gateway.gateway_world import World
from tests.gateway.keys import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def gateway(world: World, keys: Keys) -> Gateway:
    return world.gateway(entrance=keys.entrance(quota=None))


@pytest.fixture
def door(world: World, gateway: Gateway) -> Iterator[TestClient]:
    with world.client(create_app(gateway)) as client:
        yield client


def made(
    world: World, name: str, role: str = "operate", project: str = "*", days: float | None = None
) -> str:
    token = f"crawl_{name}"
    until = None if days is None else world.clock() + timedelta(days=days)
    world.store.tokens.create_token(name, role, project, digest(token), until, "ann")
    return token


def read(door: TestClient, gateway: Gateway) -> None:
    assert gateway.kept_tokens is not None
    assert door.portal is not None
    door.portal.call(gateway.kept_tokens.read)


def ask(door: TestClient, token: str, path: str = "/v1/runs") -> tuple[int, str | None]:
    answer = door.get(path, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code, answer.json().get("code")


def test_a_token_counts_until_it_is_revoked_or_expires(
    world: World, keys: Keys, gateway: Gateway, door: TestClient
) -> None:
    token, short = made(world, "ci", "read"), made(world, "short", days=1)
    assert ask(door, token) == (401, "invalid_token")
    read(door, gateway)
    assert ask(door, token) == (200, None)
    assert ask(door, token, "/v1/webhooks") == (403, "forbidden")
    assert ask(door, short) == (200, None)
    assert (
        door.post(
            "/login", data={"token": token}, headers={"Origin": "http://127.0.0.1:8500"}
        ).status_code
        == 200
    )
    world.clock.forward(86_400)
    assert ask(door, short) == (401, "token_expired"), "at once, and without the database"
    world.store.tokens.revoke_token("ci", "ann")
    read(door, gateway)
    assert ask(door, token) == (401, "invalid_token")
    assert ask(door, keys.tokens["read"]) == (200, None)


def test_the_last_use_is_kept_to_the_minute(
    world: World, gateway: Gateway, door: TestClient
) -> None:
    token = made(world, "ci")
    read(door, gateway)
    world.clock.forward(61)
    for _ in range(3):
        assert ask(door, token)[0] == 200
    read(door, gateway)
    [row] = world.store.tokens.list_tokens()
    assert row.used_at == world.clock().replace(second=0, microsecond=0)


def test_a_name_of_the_file_is_refused_however_it_came_there(
    world: World, keys: Keys, gateway: Gateway, door: TestClient
) -> None:
    token = made(world, "the-read", "admin")
    read(door, gateway)
    assert ask(door, token) == (401, "invalid_token")
    assert ask(door, keys.tokens["read"]) == (200, None)


def test_a_role_that_somebody_wrote_into_the_database_opens_nothing(
    world: World, gateway: Gateway, door: TestClient
) -> None:
    token = made(world, "odd", "emperor")
    read(door, gateway)
    assert ask(door, token) == (401, "invalid_token")


def test_a_gateway_that_cannot_read_them_trusts_them_for_a_minute(
    world: World, keys: Keys, gateway: Gateway, door: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = made(world, "ci")
    read(door, gateway)

    def away(**_: object) -> list[object]:
        raise StoreUnavailable("away")

    monkeypatch.setattr(world.store.tokens, "list_tokens", away)
    with pytest.raises(StoreUnavailable):
        read(door, gateway)
    keys.now += STALE_S - 1
    assert ask(door, token) == (200, None)
    keys.now += 1
    assert ask(door, token) == (503, "store_unavailable")
    assert ask(door, keys.tokens["read"]) == (200, None)


def test_names_are_used_once_and_come_back_after_a_revocation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store.tokens
    made(world, "ci")
    with pytest.raises(NotInThisState, match="'ci' exists already"):
        store.create_token("ci", "read", "a", "0" * 64, None, None)
    with pytest.raises(NotInThisState, match="no token 'cd'"):
        store.revoke_token("cd", None)
    first = store.revoke_token("ci", "bob")
    assert store.revoke_token("ci", "eve") == first, "a second one changes nothing"
    again = store.create_token("ci", "read", "a", "0" * 64, None, None)
    assert (again.role, again.revoked_at) == ("read", None)
    assert store.list_tokens() == [again]
    rows = world.store.access.list_access(10, kind="token")
    assert [(row.caller, row.operation, row.subject, row.project) for row in reversed(rows)] == [
        ("ann", "createToken", "ci", "*"), ("bob", "revokeToken", "ci", "*"), (None, "createToken", "ci", "a"),
    ]  # fmt: skip
    monkeypatch.setattr(adapter, "TOKENS_MAX", 1)
    with pytest.raises(NotInThisState, match="at most 1 tokens"):
        made(world, "more")
