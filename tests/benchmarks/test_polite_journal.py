"""The judge of the ``polite`` benchmark: what it reads from a journal, and what the site writes."""

from __future__ import annotations

import math
import socket
from pathlib import Path

import httpx
import pytest

from benchmarks.polite_fleets import target
from benchmarks.polite_journal import Journal, Refusals, most_at_once, most_in_a_second


def test_a_second_contains_what_begins_before_its_end() -> None:
    assert most_in_a_second([]) == 0
    assert most_in_a_second([n / 8 for n in range(40)]) == 8
    assert most_in_a_second([0.0, 0.5, 1.0, 1.25, 1.375, 5.0]) == 4


def test_what_begins_when_another_ends_is_not_at_once() -> None:
    assert most_at_once([]) == 0
    assert most_at_once([(0, 1), (1, 2), (1, 3), (2.5, math.inf)]) == 2


def test_refusals_are_counted_from_the_first_answer() -> None:
    requests = [
        [9.5, 9.6, 200, "/before", ""],
        [9.9, 10.2, 200, "/in-flight", ""],
        [10.0, 10.1, 429, "/told", ""],
        [10.05, 10.3, 429, "/in-flight", ""],
        [10.6, 10.7, 429, "/later", ""],
        [31.0, 31.1, 200, "/probe", ""],
        [31.05, 31.2, 200, "/with-the-probe", ""],
        [31.5, None, 200, "/after", ""],
    ]
    data = {"requests": requests, "connections": [[9.0, None]], "closings": [[10.0, 30.0]]}
    journal = Journal.from_json(data)
    refusals = journal.refusals()
    assert refusals == Refusals(2, [10.6 - 10.1], 2, 1.0)
    assert journal.most_requests == 3
    assert journal.most_connections == 1
    assert len(journal.between(10.0, 31.0).requests) == 3


@pytest.mark.processes
def test_the_site_writes_down_requests_and_connections(tmp_path: Path) -> None:
    with target(tmp_path) as site:
        with socket.create_connection(("127.0.0.1", site.port)) as idle:
            assert httpx.get(f"{site.url}/p/1", trust_env=False).status_code == 200
            site.ask("/close?for=60")
            refused = httpx.get(f"{site.url}/p/2", trust_env=False)
            idle.close()
        journal = site.journal()
        assert not site.journal().requests
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "60"
    assert [(one.status, one.path) for one in journal.requests] == [(200, "/p/1"), (429, "/p/2")]
    assert all(0.02 <= one.end - one.at < 1 for one in journal.requests)
    assert journal.most_connections == 2
    assert journal.most_requests == 1
