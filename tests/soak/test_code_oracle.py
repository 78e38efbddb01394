"""The oracle of the fault tests about deployed code: what is honest passes, and every lie is found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.faults.code_oracle import (
    KEYS,
    STALE_S,
    Change,
    judge_code,
    package_changes,
    possible,
)
from tools.faults.code_record import (
    ENTRY,
    PACKAGE,
    Canary,
    CodeRecord,
    CodeRun,
    CodeTask,
    CodeWatch,
)
from tools.faults.oracle import Ask, Evidence, Run, Task
from tools.soak.journal import Process

T = 1_000_000.0
OPEN_LAST, ENDED_FIRST = T + 24, T + 26


def crawl(run: int, at: float, code: str, attempt: int = 1, **args: str) -> Process:
    """A crawl of a second with a code."""
    end = {"at": at + 1, "code": 0, "reason": "finished"}
    pid = 10 * run + attempt
    return Process(
        run, 0, attempt, pid, pid, 1, 1, args, at, at + 1, end, None, [], code=code
    )  # fmt: skip


def asked(kind: str, at: float, body: Any = None, **more: Any) -> Ask:
    key = more.pop("key", f"{kind}-{at}")
    return Ask(kind, key, at, at + 0.1, more.pop("status", 200), body=body, **more)


def deployed(kind: str, at: float, version: str, bad: bool = False) -> Ask:
    name = f"{version}/1{' bad' if bad else ''}"
    body = {"version": version, "name": name, "bad": bad}
    return asked(kind, at, body, answer={"digest": f"sha256:{version}"})


def started(run: int, at: float, crawler: str = PACKAGE, **more: str) -> Ask:
    return asked("start", at, {"crawler": crawler, **more}, key=f"{KEYS}{run}", run_id=run)


def honest() -> Evidence:
    """v1 and v2 are deployed, v1 is used again, and a canary with the bad v3 goes back. Run 1 gets
    v1, run 2 v2, run 3 v1, and run 4 v3 from the canary. Run 5 names v2, is resumed as it was, and
    run 6 is of the entry's second edition.
    """
    versions = {1: "v1", 2: "v2", 3: "v1", 4: "v3", 5: "v2"}
    names = {run: f"{version}/1" for run, version in versions.items()}
    names[4] += " bad"
    e = Evidence(
        asks=[
            deployed("deploy", T, "v1"),
            started(1, T + 1),
            deployed("deploy", T + 10, "v2"),
            started(2, T + 11),
            asked("use", T + 12, {"version": "v1"}),
            started(3, T + 13),
            deployed("canary", T + 20, "v3", bad=True),
            started(4, T + 21),
            started(5, T + 30, version="v2"),
            asked("resume", T + 32, {}, run_id=5),
            asked("set entry", T, {"edition": "e1"}),
            asked("set entry", T + 1, {"edition": "e2"}),
            started(6, T + 5, ENTRY),
            asked("other contents", T + 40, {"version": "v2", "name": "v2/2"}, status=409),
        ],
        processes=[crawl(run, T + run, name) for run, name in names.items()],
        runs=[Run(run, f"{KEYS}{run}", "COMPLETED", "finished", 1) for run in range(1, 7)],
        tasks=[Task((run, 0, 1), "SUCCEEDED", "finished") for run in versions],
    )
    e.processes += [crawl(5, T + 33, "v2/1", 2), crawl(6, T + 6, "", edition="e2")]
    e.code = CodeRecord(
        tasks=[
            CodeTask((run, 0, 1), 1, "SUCCEEDED", f"sha256:{version}", version)
            for run, version in versions.items()
        ],
        runs=[
            CodeRun(run, f"{KEYS}{run}", PACKAGE, version, f"sha256:{version}")
            for run, version in versions.items()
        ],
        canaries=[Canary(7, "uid", "v3", 0.5, "rejected", 1, 1, "judge")],
        events=Counter({("canary.rejected", "uid"): 1}),
        editions={"1": "e1", "2": "e2"},
        spiders=("v9", ["shelf-v9"]),
        ended={7: (OPEN_LAST, ENDED_FIRST)},
    )
    e.code.tasks.append(CodeTask((5, 0, 2), 2, "SUCCEEDED", "sha256:v2", "v2"))
    e.code.runs.append(CodeRun(6, f"{KEYS}6", ENTRY, "2", None))
    return e


def test_what_is_honest_passes() -> None:
    assert judge_code(honest()) == []


def _other_code(e: Evidence) -> None:
    e.processes[0] = crawl(1, T + 1, "v2/1")


def _other_contents_executed(e: Evidence) -> None:
    e.processes[0] = crawl(1, T + 1, "v1/9")


def _no_code_in_the_row(e: Evidence) -> None:
    e.code.tasks[0] = replace(e.code.tasks[0], digest=None)


def _resume_with_another(e: Evidence) -> None:
    e.processes[5] = crawl(5, T + 33, "v1/1", 2)


def _mixed_within_an_attempt(e: Evidence) -> None:
    e.asks[9] = asked("resume", T + 32, {"version": "newest"}, run_id=5)
    e.code.tasks[-1] = replace(e.code.tasks[-1], run_attempt=1)
    e.processes[5] = crawl(5, T + 33, "v1/1", 2)


def _named_and_not_got(e: Evidence) -> None:
    e.asks[8] = started(5, T + 30, version="v1")


def _rolled_back_and_not_executed(e: Evidence) -> None:
    e.code.runs[2] = replace(e.code.runs[2], version="v2")


def _old_edition(e: Evidence) -> None:
    e.code.runs[5] = replace(e.code.runs[5], version="1")
    e.processes[6] = crawl(6, T + 6, "", edition="e1")


def _wrong_edition(e: Evidence) -> None:
    e.processes[6] = crawl(6, T + 6, "", edition="e1")


def _too_many(e: Evidence) -> None:
    e.code.canaries[0] = replace(e.code.canaries[0], asked=2, given=2)


def _given_and_not_counted(e: Evidence) -> None:
    e.code.canaries[0] = replace(e.code.canaries[0], given=0)


def _after_its_end(e: Evidence) -> None:
    e.asks[7] = started(4, ENDED_FIRST + 1)


def _no_event(e: Evidence) -> None:
    e.code.events.clear()


def _two_events(e: Evidence) -> None:
    e.code.events["canary.rejected", "uid"] = 2


def _bad_and_accepted(e: Evidence) -> None:
    e.code.canaries[0] = replace(e.code.canaries[0], state="accepted")
    e.code.events = Counter({("canary.accepted", "uid"): 1})


def _decided_otherwise(e: Evidence) -> None:
    e.asks.append(asked("accept", T + 22, {"canary": 7}))


def _got_other_contents(e: Evidence) -> None:
    e.asks[-1] = replace(e.asks[-1], status=201)


def _without_its_code(e: Evidence) -> None:
    e.processes.pop(0)
    e.tasks[0] = Task((1, 0, 1), "FAILED", "code unavailable")


def _old_entries(e: Evidence) -> None:
    e.code.spiders = ("v9", ["shelf-v8"])


def _seen(e: Evidence) -> None:
    e.code.seen.append("canary 7 was rejected and is open")


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (_other_code, "its row names ('v1', 'sha256:v1')"),
        (_other_contents_executed, "one digest sha256:v1 for the codes ['v1/1', 'v1/9']"),
        (_no_code_in_the_row, "its row names no code"),
        (_resume_with_another, "run 5 mixed the codes ['v1/1', 'v2/1'], and nobody asked"),
        (_mixed_within_an_attempt, "attempt 1 of run 5 mixed the codes"),
        (_named_and_not_got, "run 5 asked for version v1 and has v2"),
        (_rolled_back_and_not_executed, "run 3 of 1000013.0 to 1000013.1 got v2, and only ['v1']"),
        (_old_edition, "run 6 of 1000005.0 to 1000005.1 got e1, and only ['e2']"),
        (_wrong_edition, "is not of version 2, e2"),
        (_too_many, "canary 7 got 2 of 2 runs, 1 were allowed"),
        (_given_and_not_counted, "canary 7 counted 0 runs, and 1 to 1 have its version"),
        (_after_its_end, "got v3, and only ['v1'] may have been current"),
        (_no_event, "canary 7 is rejected, and rejected has 0 events"),
        (_two_events, "rejected has 2 events"),
        (_bad_and_accepted, "canary 7 of a bad version was accepted"),
        (_decided_otherwise, "canary 7 was accepted by a person and is"),
        (_got_other_contents, "version v2 got other contents: v2/2"),
        (_without_its_code, "failed before it began: code unavailable"),
        (_old_entries, "current version of shelf is v9, and its entries are ['shelf-v8']"),
        (_seen, "canary 7 was rejected and is open"),
    ],
)
def test_every_lie_is_found(lie: Callable[[Evidence], None], sentence: str) -> None:
    evidence = honest()
    lie(evidence)
    assert any(sentence in text for text in judge_code(evidence)), judge_code(evidence)


def test_overlapping_changes_may_count_in_any_order() -> None:
    first, second = Change("v1", T, T + 1), Change("v2", T + 10, T + 15)
    both = [first, second]
    assert possible(both, T + 5, T + 6) == {"v1"}
    assert possible(both, T + 5, T + 11) == {"v1", "v2"}
    assert possible(both, T + 12, T + 13) == {"v1", "v2"}
    assert possible(both, T + 16, T + 17) == {"v2"}
    late = replace(first, done=T + 12)
    assert possible([late, second], T + 16, T + 17) == {"v1", "v2"}
    unsure = replace(second, sure=False)
    assert possible([first, unsure], T + 16, T + 17) == {"v1", "v2"}
    assert possible([first, replace(unsure, until=T + 16)], T + 17, T + 18) == {"v1"}


def test_a_request_that_was_sent_twice_may_count_later() -> None:
    once = asked("use", T, {"version": "v1"})
    twice = replace(once, tries=2)
    refused = replace(once, status=409)
    unanswered = replace(once, status=None)
    found = package_changes(Evidence(asks=[once, twice, refused, unanswered]))
    assert [(change.done, change.sure) for change in found] == [
        (once.answered, True),
        (once.answered + STALE_S, True),
        (math.inf, False),
    ]


def test_an_accepted_canary_is_current_after_its_end() -> None:
    e = honest()
    e.code.canaries[0] = replace(e.code.canaries[0], state="accepted")
    changes = package_changes(e)
    assert possible(changes, T + 13, T + 14) == {"v1"}
    assert possible(changes, T + 22, T + 23) == {"v1", "v3"}
    assert possible(changes, ENDED_FIRST + 1, ENDED_FIRST + 2) == {"v3"}


def test_the_watch_sees_an_end_that_is_no_end_and_code_that_was_removed(tmp_path: Path) -> None:
    watch = CodeWatch(tmp_path, lambda sql: [])
    watch.saw_states(T, [(7, "open")])
    watch.saw_states(T + 2, [(7, "rejected")])
    assert watch.ended == {7: (T, T + 2)}
    assert watch.seen == []
    watch.saw_states(T + 4, [(7, "open")])
    assert watch.seen == ["canary 7 was rejected and is open"]
    (tmp_path / "11.zip").touch()
    codes = [(1, "sha256:11"), (2, "sha256:22")]
    watch.saw_codes(codes)
    assert len(watch.seen) == 1, "run 2 may have ended meanwhile"
    watch.saw_codes(codes)
    assert watch.seen[1:] == ["run 2 is open, and its code sha256:22 was removed"]
