"""Settings that all processes must share: a gateway names those that differ, and stays ready."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from crawler_lifecycle.gateway.app import create_app
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.settings import (
    ALIKE,
    GatewaySettings,
    PayloadSettings,
    PoolSettings,
    Settings,
    fingerprints,
)
from crawler_lifecycle.store.notes import COUNTS_S, EVERY_S, SETTINGS, SameSettings
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys

KEY = "k" * 40


def of(**more: Any) -> dict[str, str]:
    return fingerprints(Settings(**more), "gateway.login_key")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def gateway(harness: Harness, keys: Keys) -> Gateway:
    harness.clock.now = datetime.now(UTC)
    return harness.gateway(entrance=keys.entrance(), marks=of(pools={"shop": {"max": 3}}))


@pytest.fixture
def api(harness: Harness, gateway: Gateway) -> Iterator[TestClient]:
    with harness.client(create_app(gateway)) as client:
        yield client


def told(api: TestClient, gateway: Gateway, keys: Keys) -> str:
    assert api.portal is not None
    api.portal.call(gateway.same_settings.compare)
    answer = api.get("/readyz", headers=keys.headers("read"))
    assert (answer.status_code, answer.json()["ready"]) == (200, True), (
        "no gateway is better than another one"
    )
    return str(answer.json()["checks"]["settings"])


def note(harness: Harness, process: str, marks: dict[str, str]) -> None:
    until = harness.clock.now + timedelta(seconds=COUNTS_S)
    harness.store.notes.leave_note(SETTINGS, process, json.dumps(marks), until)


def test_a_process_with_other_settings_is_named_and_a_stranger_learns_that_something_is_wrong(
    harness: Harness, api: TestClient, gateway: Gateway, keys: Keys
) -> None:
    note(harness, "worker a/7", of(pools={"shop": {"max": 3}}))
    assert told(api, gateway, keys) == "ok"
    note(harness, "worker b/7", of(pools={"shop": {"max": 4}}, gateway={"login_key": KEY}))
    said = told(api, gateway, keys)
    assert said == (
        "not the same as here: LIFECYCLE_GATEWAY__LOGIN_KEY of worker b/7; LIFECYCLE_POOLS of worker b/7; "
        "give all processes the same settings, and restart them"
    )
    assert "worker b/7" not in api.get("/readyz").text
    note(harness, "worker b/7", of(pools={"shop": {"max": 3}}))
    assert told(api, gateway, keys) == "ok", "it was restarted"


def test_processes_that_ended_and_builds_without_notes_are_not_compared(
    harness: Harness, api: TestClient, gateway: Gateway, keys: Keys
) -> None:
    note(harness, "worker gone/7", of(quotas={"project:a": {"live_tasks": 7}}))
    note(
        harness,
        "worker newer/7",
        {**of(pools={"shop": {"max": 3}}), "LIFECYCLE_OF_A_LATER_BUILD": "0"},
    )
    note(
        harness,
        "worker older/7",
        {"LIFECYCLE_POOLS": of(pools={"shop": {"max": 3}})["LIFECYCLE_POOLS"]},
    )
    assert "LIFECYCLE_QUOTAS of worker gone/7" in told(api, gateway, keys)
    harness.clock.forward(COUNTS_S)
    assert told(api, gateway, keys) == "ok"
    assert EVERY_S * 2 < COUNTS_S, "one lost note changes nothing"


def test_each_gateway_leaves_its_own(harness: Harness, api: TestClient, gateway: Gateway) -> None:
    assert api.portal is not None
    api.portal.call(gateway.same_settings.compare)
    [found] = harness.store.notes.live_notes(SETTINGS)
    assert found["name"].startswith(f"gateway {socket.gethostname()}/")
    assert json.loads(found["note"]) == gateway.marks


def test_a_gateway_that_compares_nothing_says_nothing_of_it(
    harness: Harness, client: TestClient
) -> None:
    assert "settings" not in client.get("/readyz").json()["checks"]


def test_a_fingerprint_shows_a_difference_and_no_value() -> None:
    secret = SecretStr("2026=" + "A" * 43 + "=")
    plain, other = (
        Settings(),
        Settings(
            payloads=PayloadSettings(keys=secret),
            pools={"shop": PoolSettings(max=3)},
            quotas={"project:a": {"live_tasks": 7}},
            limits={"graphs": 3},
            retries={"max": 2},
            ends={"like": "wget"},
            cluster={"kind": "kubernetes", "slots": 9},
            gateway=GatewaySettings(login_key=SecretStr(KEY)),
        ),
    )
    one, two = fingerprints(plain, "gateway.login_key"), fingerprints(other, "gateway.login_key")
    assert set(one) == {
        f"LIFECYCLE_{path.upper().replace('.', '__')}" for path in (*ALIKE, "gateway.login_key")
    }
    assert not set(one.values()) & set(two.values())
    assert all(len(mark) == 8 for mark in two.values())
    assert two == fingerprints(other.model_copy(deep=True), "gateway.login_key")
    swapped = [of(pools=dict(pools)) for pools in ([("a", {}), ("b", {})], [("b", {}), ("a", {})])]
    assert swapped[0] == swapped[1], "the order of names is nobody's setting"


async def test_a_process_that_cannot_write_keeps_what_it_knew(harness: Harness) -> None:
    harness.clock.now = datetime.now(UTC)
    same = SameSettings(harness.store.notes, "worker", of())
    note(harness, "worker b/7", of(pools={"shop": {"max": 4}}))
    await same.compare()
    before = same.problem
    assert before
    harness.store.close()
    await same.compare()
    assert same.problem == before
