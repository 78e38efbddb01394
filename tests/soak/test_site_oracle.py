"""The oracle of the fault tests for sites: honest records pass, and every false one is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tools.faults.oracle import Ask, Evidence, Run, Task
from tools.faults.site_oracle import (
    BOTH,
    CAPPED,
    KEYS,
    MOODY,
    ON_ITS_WAY_S,
    cap_at,
    judge_sites,
)
from tools.soak.journal import Process

T = 1_000_000.0


def visit(run: int, begin: float, *, site: str = CAPPED, requests: int = 3) -> Process:
    """A crawl of five seconds with some requests, half a second apart."""
    sent = [(site, begin + n / 2, begin + n / 2 + 0.1) for n in range(requests)]
    end = {"at": begin + 5, "code": 0, "reason": "finished"}
    args = {"site": site}
    return Process(
        run, 0, 1, run, run, 1, 1, args, begin, begin + 5, end, None, [], None, sent, False
    )


def asked(kind: str, at: float, site: str = MOODY, body: Any = None, **more: Any) -> Ask:
    return Ask(
        kind, more.pop("key", f"{kind}-{at}"), at, at + 0.1, 200, site=site, body=body, **more
    )


def honest() -> Evidence:
    """Two crawls of one site at once, and a third one later; a person and a crawl closed it."""
    third = replace(visit(3, T + 5), refused=True)
    return Evidence(
        processes=[visit(1, T), visit(2, T + 0.25), third],
        runs=[Run(n, f"{KEYS}{n}", "COMPLETED", "finished", 1) for n in (1, 2, 3)],
        tasks=[Task((n, 0, 1), "SUCCEEDED", "finished") for n in (1, 2, 3)],
        asks=[
            *(asked("start", T, CAPPED, key=f"{KEYS}{n}", run_id=n) for n in (1, 2, 3)),
            asked("close", T, CAPPED, {"for_s": 3}, key="site-4"),
        ],
        most_holders=Counter({CAPPED: 2}),
        blocks=[(CAPPED, "site-4", None), (CAPPED, None, 3)],
    )


def test_what_is_honest_passes() -> None:
    assert judge_sites(honest()) == []


def _third_at_once(e: Evidence) -> None:
    e.processes[2] = visit(3, T + 1)


def _third_of_both(e: Evidence) -> None:
    e.processes[2] = visit(3, T + 1, site=MOODY)
    e.asks[2] = replace(e.asks[2], site=BOTH)
    e.blocks.pop()


def _holders(e: Evidence) -> None:
    e.most_holders[CAPPED] = 3


def _many_requests(e: Evidence) -> None:
    e.processes[0].requests[:] = [(CAPPED, T + n / 100, T + n / 100) for n in range(7)]


def _long_requests(e: Evidence) -> None:
    e.processes[0].requests[:] = [(CAPPED, T, T + 5)] * 3


def _unknown_person(e: Evidence) -> None:
    e.blocks[0] = (CAPPED, "nobody", None)


def _not_refused(e: Evidence) -> None:
    e.blocks[1] = (CAPPED, None, 2)


def _never_began(e: Evidence) -> None:
    e.tasks.append(Task((1, 1, 1), "FAILED", "crashed"))


def _waits(e: Evidence) -> None:
    e.runs[0] = replace(e.runs[0], status="PROCESSING")


def _left(e: Evidence) -> None:
    e.left_at_sites.append("run 3 waits in the line of site capped.example")


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (_third_at_once, "3 tasks executed on capped.example, which allows 2"),
        (_third_of_both, "3 tasks executed on capped.example, which allows 2"),
        (_holders, "3 recorded tasks held a slot"),
        (_many_requests, "requests reached capped.example within a second"),
        (_long_requests, "requests were in progress at capped.example"),
        (_unknown_person, "by nobody, who did not do that"),
        (_not_refused, "closed by run 2"),
        (_never_began, "(1, 1, 1) of a run with a site is FAILED"),
        (_waits, "run 1 of a site never ended"),
        (_left, "waits in the line"),
    ],
)
def test_every_lie_is_found(lie: Callable[[Evidence], None], sentence: str) -> None:
    evidence = honest()
    lie(evidence)
    assert any(sentence in text for text in judge_sites(evidence)), judge_sites(evidence)


def test_the_cap_is_the_highest_that_may_be_valid() -> None:
    e = Evidence(asks=[asked("limits", T, body={"tasks": 3})])
    later = T + ON_ITS_WAY_S
    assert cap_at(e, MOODY, T - 1) > 1000
    assert cap_at(e, MOODY, later - 1) > 1000, "it may have got its slot before"
    assert cap_at(e, MOODY, later + 1) == 3
    unanswered = asked("limits", T + 1, body={"tasks": 5})
    e.asks.append(replace(unanswered, status=None))
    assert cap_at(e, MOODY, later + 9) == 5
    e.asks.append(asked("limits", T + 2, body={"tasks": 1}))
    assert cap_at(e, MOODY, later + 9) == 5, "the answer may come late"
    e.asks[1] = unanswered
    assert cap_at(e, MOODY, later + 9) == 1
    e.asks.append(asked("close", T + 10, body={"for_s": 60}))
    assert cap_at(e, MOODY, later + 20) == 0
    e.asks.append(asked("open", T + 15))
    assert cap_at(e, MOODY, later + 20) == 1
