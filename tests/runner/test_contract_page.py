"""The program in docs/contract.md keeps the limits of a site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.runner.lease_gateway import JournalSite, LeaseGateway

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"


def program() -> dict[str, Any]:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def test_it_keeps_the_rate_and_reports_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = LeaseGateway(connections=1, requests_per_s=5)
    for name, value in gateway.environment().items():
        monkeypatch.setenv(name, value)
    site = JournalSite(delay_s=0.0)
    fetch = program()["fetch"]
    assert {fetch(site.url) for _ in range(6)} == {b"page" * 50}
    questions = [question["127.0.0.1"] for question in gateway.questions]
    assert questions == 6 * [{"wanted": 1}, {"wanted": 0, "passed": True}]
    pauses = [after - before for before, after in zip(site.began, site.began[1:], strict=False)]
    assert min(pauses) > 0.15
    assert max(pauses) < 0.4
    with pytest.raises(HTTPError):
        fetch(f"{site.url}busy")
    assert gateway.questions[-1]["127.0.0.1"] == {"wanted": 0, "block": {"status": 429}}


def test_it_keeps_a_lane_whose_turn_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = LeaseGateway(connections=1, requests_per_s=0.2)
    for name, value in gateway.environment().items():
        monkeypatch.setenv(name, value)
    site = JournalSite(delay_s=0.0)
    names = program()
    slept: list[float] = []
    monkeypatch.setattr(names["time"], "sleep", slept.append)
    leases = iter([8.0, 6.0, 2.5, 0.0])
    ask = names["ask"]

    def later(host: str, **more: Any) -> Any:
        lease = ask(host, **more)
        lease["lanes"][0]["first_s"] = next(leases)
        return lease

    names["ask"] = later
    names["fetch"](site.url)
    assert [seconds for seconds in slept if seconds] == [2, 2, 2.5]
    questions = [question["127.0.0.1"] for question in gateway.questions]
    assert [question.get("kept") for question in questions[:3]] == [None, [0], [0]]
