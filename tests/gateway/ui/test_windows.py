"""Corrections, tasks and the access log are searched and sorted among their first rows."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.gateway.ui.parts import lists
from crawler_lifecycle.store.access import access_log
from crawler_lifecycle.store.runs.tables import correction, task_history
from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.test_lists import table
from tests.support.filling import fill_access, fill_records, fill_runs, fill_tasks

ROWS = 40
PATHS = {
    "corrections": "/corrections?since=2020-01-01T00:00:00Z&",
    "actions": "/access?",
    "tasks": "/runs/1/tasks?",
}


@pytest.fixture
def filled(harness: Harness) -> None:
    """Rows with random values, some of which are equal or missing."""
    choose = random.Random(7).choice
    numbers: list[Any] = [None, 2, 10, 100, 9_999]
    names = [None, "node-2", "Node-10", "böse <b>"]
    with harness.store.database.writer.begin() as connection:
        fill_runs(connection, ROWS)
        fill_tasks(connection, 1, 1, ROWS)
        fill_records(connection, 1, ROWS)
        fill_access(connection)
        for n in range(1, ROWS + 1):
            values: dict[str, Any] = {name: choose(numbers) for name in ("pages", "items")}
            values |= {name: choose(numbers) for name in ("errors", "peak_memory")}
            values |= {"status": choose(list(TaskStatus)[-3:]), "cause": choose(names)}
            values |= {"node": choose(names), "exit_code": choose([None, 0, 1, 137])}
            t, c, a = task_history, correction, access_log
            connection.execute(sa.update(t).where(t.c.task_id == n).values(**values))
            values = {"kind": choose(list(CorrectionKind)), "lag_ms": choose(numbers)}
            connection.execute(sa.update(c).where(c.c.id == n).values(**values))
            values = {"caller": choose(names), "requests": choose([1, 2, 10])}
            values |= {"status": choose([200, 404, 503]), "address": choose(names)}
            connection.execute(sa.update(a).where(a.c.id == n).values(**values))


def sorted_rows(rows: list[dict[str, str]], title: str, down: bool) -> list[dict[str, str]]:
    """Sort as expected: numbers by value, other texts alphabetically, and empty cells last."""
    full = [row for row in rows if row[title]]
    starts = [re.match(r"\d+(\.\d+)?(?= |$)", row[title]) for row in full]
    by_number = all(starts)

    def key(row: dict[str, str]) -> Any:
        text = row[title]
        return float(text.split()[0]) if by_number else text.casefold()

    return sorted(full, key=key, reverse=down) + [row for row in rows if not row[title]]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("plural", PATHS)
def test_each_order_is_that_of_an_independent_sort(browser: TestClient, plural: str) -> None:
    path = PATHS[plural]
    rows = table(browser, f"{path}format=csv")
    assert len(rows) == ROWS
    page = browser.get(path).text
    orders = dict(re.findall(r'href="[^"]*sort=([a-z_]+)[^"]*">([^<]+)</a></th>', page))
    assert len(orders) > 5
    for name, title in orders.items():
        for sign in ("", "-"):
            found = table(browser, f"{path}sort={sign}{name}&format=csv")
            assert found == sorted_rows(rows, title, down=sign == "-"), (name, sign)
    assert browser.get(f"{path}sort=color").status_code == 422


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("plural", PATHS)
def test_any_text_of_a_row_is_found(browser: TestClient, plural: str) -> None:
    path = PATHS[plural]
    rows = table(browser, f"{path}format=csv")
    for text in ("1", "BÖSE", "late", "node-10"):
        fits = [row for row in rows if text.casefold() in "\n".join(row.values()).casefold()]
        assert table(browser, f"{path}search={text}&format=csv") == fits, text


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("plural", PATHS)
def test_a_window_that_is_too_small_says_so(
    browser: TestClient, plural: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "WINDOW", 30)
    path = PATHS[plural]
    first = "first" if plural == "tasks" else "newest"
    note = f"Only the {first} 30 {plural} that match the other filters were searched and sorted."
    assert note in browser.get(f"{path}search=1").text
    assert note not in browser.get(path).text
    sort = {"tasks": "pages", "actions": "outcome", "corrections": "kind"}[plural]
    assert len(table(browser, f"{path}sort={sort}&format=csv")) == 30
    monkeypatch.setattr(lists, "WINDOW", ROWS)
    assert "were searched and sorted" not in browser.get(f"{path}search=1").text
