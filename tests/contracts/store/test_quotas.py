"""Quotas: use is counted from rows, one more is refused in the transaction that records it, and
nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.errors import InvalidRequest, QuotaReached
from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.quotas import KINDS
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.runs.tables import run_history
from crawler_lifecycle.store.store import open_store
from tests.contracts.store.harness import OWNER, Clock, Harness, request

#: For each kind: the owner of the quota, and another one.
HOLDERS = {"token": ("ci", "nightly"), "pool": ("slow", "default"), "project": ("shop-a", "shop-b")}
HELD = [kind for kind, column in KINDS.items() if column in run_history.c]


@dataclass
class Quoted(Harness):
    """A harness in which runs are started by tokens, in pools."""

    def start(
        self, n: object, tasks: int | None = None, *, token: str | None = None, **fields: Any
    ) -> int:
        run, _ = self.store.initiation.reserve_run(request(tasks, **fields), f"r{n}", caller=token)
        return run.run_id

    def live(
        self, n: object, tasks: int | None = None, *, token: str | None = None, **fields: Any
    ) -> Fence:
        """A run of this token that is owned by a workflow."""
        self.start(n, tasks, token=token, **fields)
        owner = replace(OWNER, first_run_id=f"chain-{n}")
        return self.run(f"r{n}", tasks, owner, **fields)


@contextmanager
def quoted(url: str, clock: Clock, **named: dict[str, int]) -> Iterator[Quoted]:
    """A store with these quotas; ``token_ci`` is the key ``token:ci``."""
    quotas = {key.replace("_", ":", 1): quota for key, quota in named.items()}
    with closing(
        open_store(url, pool_size=25, clock=clock, pools=Pools({"slow": Pool()}), quotas=quotas)
    ) as store:
        yield Quoted(store, clock)


@pytest.fixture(params=HELD)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _key(kind: str, name: str, quota: dict[str, int]) -> Mapping[str, dict[str, int]]:
    return {f"{kind}_{name}": quota}


def test_a_start_counts_for_an_hour(store_url: str, clock: Clock, kind: str) -> None:
    mine, other = HOLDERS[kind]
    with quoted(store_url, clock, **_key(kind, mine, {"starts_per_hour": 2})) as harness:
        fence = harness.live(1, **{kind: mine})
        clock.forward(600)
        harness.start(2, **{kind: mine})
        harness.deploy(fence)
        harness.begin(fence)
        harness.finish(fence)  # an ended run still counts as started, and so does a deleted one
        harness.store.deletion.ask_deletion(fence.run_id, "ann")
        text = rf"^quota starts_per_hour of {kind} {mine}: 2 of 2 in use; free at 2026-03-01T13:00:00Z, in 3000 s$"
        with pytest.raises(QuotaReached, match=text) as refused:
            harness.start(3, **{kind: mine})
        assert refused.value.retry_after_s == 3000
        assert harness.start(2, **{kind: mine}) == fence.run_id + 1  # a repeat
        harness.start(4, **{kind: other})
        clock.forward(2999)
        with pytest.raises(QuotaReached, match=r"in 1 s$"):
            harness.start(3, **{kind: mine})
        clock.forward(1)
        harness.start(3, **{kind: mine})
        with pytest.raises(QuotaReached, match=r"free at 2026-03-01T13:10:00Z, in 600 s$"):
            harness.start(5, **{kind: mine})


def test_tasks_count_until_they_end(store_url: str, clock: Clock, kind: str) -> None:
    mine, other = HOLDERS[kind]
    with quoted(
        store_url, clock, **_key(kind, mine, {"live_tasks": 3, "waiting_tasks": 2})
    ) as harness:
        first = harness.live(1, 2, **{kind: mine})
        text = rf"^quota waiting_tasks of {kind} {mine}: 2 of 2 in use, and 1 more requested; tasks must end first: try"
        with pytest.raises(QuotaReached, match=text) as refused:
            harness.start(2, **{kind: mine})
        assert refused.value.retry_after_s == 60
        harness.begin(first)
        harness.start(2, **{kind: mine})
        with pytest.raises(
            QuotaReached, match=rf"^quota live_tasks of {kind} {mine}: 3 of 3 in use, and 1 more"
        ):
            harness.start(3, **{kind: mine})
        harness.start(4, 5, **{kind: other})
        harness.see_ends(first, failed=[0])
        harness.start(3, **{kind: mine})
        harness.end(first)
        again = harness.resume(first)  # this is no start, but its tasks are live again
        assert harness.statuses(again)[0] == "QUEUED"
        with pytest.raises(
            QuotaReached,
            match=r"waiting_tasks of .*: 3 of 2 in use|live_tasks of .*: 3 of 3 in use",
        ):
            harness.start(5, **{kind: mine})


def test_what_can_never_fit_is_refused_for_good(store_url: str, clock: Clock, kind: str) -> None:
    mine, other = HOLDERS[kind]
    most = {"live_tasks": 4, "tasks_per_run": 3}
    with quoted(store_url, clock, **_key(kind, mine, most)) as harness:
        with pytest.raises(
            InvalidRequest,
            match=rf"^tasks: 5 tasks .*; quota live_tasks of {kind} {mine} is 4: start",
        ):
            harness.start(1, 5, **{kind: mine})
        with pytest.raises(
            InvalidRequest,
            match=rf"^tasks: 4 tasks .*; quota tasks_per_run of {kind} {mine} is 3: ",
        ):
            harness.start(1, 4, **{kind: mine})
        run_id = harness.start(1, 2, **{kind: mine})
        harness.start(2, 5, **{kind: other})
        with pytest.raises(InvalidRequest, match="is 3, and it has 2: start fewer"):
            harness.store.additions.add_tasks(run_id, "a1", [{}, {}])
        harness.store.additions.add_tasks(run_id, "a2", [{}])


def test_a_refusal_tells_a_project_nothing_about_the_use_of_others(
    store_url: str, clock: Clock
) -> None:
    for what, most in (("starts_per_hour", 2), ("live_tasks", 15)):
        with quoted(store_url, clock, pool_slow={what: most}) as harness:
            # In project default.
            runs = [harness.start(f"{what}-{n}", 3, pool="slow") for n in range(2)]
            with pytest.raises(
                QuotaReached, match=rf"^quota {what} of pool slow: \d+ of {most} in use"
            ) as told:
                harness.start(f"{what}-9", 4, pool="slow")
            with limited("default"), pytest.raises(QuotaReached) as refused:
                harness.start(f"{what}-9", 4, pool="slow")
            said = f"quota {what} of pool slow: no capacity for this now; try again in 60 s"
            assert (str(refused.value), refused.value.retry_after_s) == (said, 60)
            assert str(told.value) != said
            if (
                what == "live_tasks"
            ):  # a crawler sees all projects, because its token belongs to none
                with pytest.raises(
                    QuotaReached, match=r"^quota live_tasks of pool slow: no capacity for"
                ):
                    harness.store.additions.add_tasks(runs[0], "a", [{}] * 4)


def test_added_tasks_count_for_the_token_that_started_the_run(store_url: str, clock: Clock) -> None:
    with quoted(store_url, clock, token_ci={"live_tasks": 3, "starts_per_hour": 1}) as harness:
        run_id = harness.start(1, 1, token="ci")
        added = harness.store.additions.add_tasks(run_id, "a1", [{}, {}])
        with pytest.raises(
            QuotaReached,
            match=r"^quota live_tasks of token ci: 3 of 3 in use, and 1 more requested",
        ):
            harness.store.additions.add_tasks(run_id, "a2", [{}])
        assert harness.store.additions.add_tasks(run_id, "a1", [{}, {}]) == added


@pytest.mark.parametrize("what", ["starts_per_hour", "live_tasks", "waiting_tasks"])
def test_a_quota_of_zero_is_never_free_by_itself(store_url: str, clock: Clock, what: str) -> None:
    with quoted(store_url, clock, pool_slow=dict(**{what: 0})) as harness:
        with pytest.raises(
            QuotaReached, match=f"^quota {what} of pool slow: 0 of 0 in use; nothing is free"
        ) as refused:
            harness.start(1, pool="slow")
        assert refused.value.retry_after_s is None
        harness.start(1)


def test_a_quota_of_all_counts_for_each_without_its_own(store_url: str, clock: Clock) -> None:
    one = {"starts_per_hour": 1}
    with quoted(store_url, clock, **{"token_*": one, "token_ci": {}}) as harness:
        for n, token in enumerate(["ann", "bob", "ci", "ci", None, None]):
            harness.start(n, token=token)
        for token in ("ann", "bob"):
            with pytest.raises(QuotaReached, match=f"of token {token}: 1 of 1"):
                harness.start(9, token=token)


def test_a_quota_below_the_use_waits_until_enough_has_left(store_url: str, clock: Clock) -> None:
    with quoted(store_url, clock) as harness:
        for n in range(4):
            harness.start(n, 2, token="ci")
            clock.forward(60)
    for quota, text in (
        # One is left then.
        ({"starts_per_hour": 2}, r"2 of 2 in use; free at 2026-03-01T13:02:00Z"),
        ({"live_tasks": 3}, r"4 of 3 in use"),  # it is not counted any further
    ):
        with (
            quoted(store_url, clock, token_ci=quota) as harness,
            pytest.raises(QuotaReached, match=text),
        ):
            harness.start(9, token="ci")


def test_a_clock_that_was_set_back_locks_nobody_out(store_url: str, clock: Clock) -> None:
    with quoted(store_url, clock, token_ci={"starts_per_hour": 2}) as harness:
        harness.start(1, token="ci"), harness.start(2, token="ci")
        clock.forward(-1800)
        with pytest.raises(QuotaReached, match=r"in 5400 s$"):
            harness.start(3, token="ci")
        clock.forward(-1800)
        harness.start(3, token="ci"), harness.start(4, token="ci")
        with pytest.raises(QuotaReached, match=r"in 3600 s$"):
            harness.start(5, token="ci")


@pytest.mark.parametrize("quota", [{"starts_per_hour": 5}, {"live_tasks": 5}, {"waiting_tasks": 5}])
def test_of_many_at_once_no_one_too_many_is_started(
    store_url: str, clock: Clock, quota: dict[str, int]
) -> None:
    with quoted(store_url, clock, token_ci=quota) as harness:
        for n in range(4):
            harness.start(n, token="ci")
        harness.start("other", 2)

        def one(n: int) -> bool:
            with suppress(QuotaReached):
                harness.start(n, token="ci")
                return True
            return False

        with ThreadPoolExecutor(20) as pool:
            assert sum(pool.map(one, range(100, 120))) == 1
        assert len(harness.store.runs.list_runs(limit=100)) == 6


def test_nothing_is_asked_without_a_quota(store_url: str, clock: Clock) -> None:
    def statements(n: int, **quotas: dict[str, int]) -> list[str]:
        sent = list[str]()
        with quoted(store_url, clock, **quotas) as harness:
            harness.start("first")
            note = lambda _, __, text, *___: sent.append(text.partition(" VALUES")[0])  # noqa: E731
            sa.event.listen(harness.store.database.engine, "before_cursor_execute", note)
            harness.start(n, token="ann")
        return sent

    plain = statements(1)
    assert statements(2, token_ci={"live_tasks": 3}, pool_slow={"starts_per_hour": 3}) == plain
    counted = statements(
        3,
        token_ann={"starts_per_hour": 3, "live_tasks": 3, "tasks_per_run": 3, "waiting_tasks": 3},
        pool_slow={"starts_per_hour": 3},
        token_ci={"starts_per_hour": 3},
    )
    assert len(counted) == len(plain) + 4  # one lock, and one for each counted row
