"""The auditors of outside clients and schedules: honest records pass, every false one is found, and
a seed gives a plan.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, cast

import pytest

from crawler_lifecycle import sqlite_files
from tools.soak import api_client as client
from tools.soak import strikes
from tools.soak.api_client import Told, left, settled
from tools.soak.harness import SoakHarness
from tools.soak.journal import Process
from tools.soak.odd_records import check_strangers
from tools.soak.odd_texts import FIELDS, LENGTHS, Odd, Sent, odd_requests, odd_text
from tools.soak.schedule_records import check_schedules
from tools.soak.schedules import EVERY_S, NAMES, Schedules, Wanted
from tools.soak.strikes import Striker

#: A due time: 13:46:40 of 12 January 1970.
T = 1_000_000.0
FLOW = "e\u0301😀"


def stamp(seconds: float) -> str:
    return f"1970-01-12 13:{46 + int(40 + seconds) // 60}:{int(40 + seconds) % 60:02}"


class Rows:
    """A run, a manager and a graph of outside clients, and two due times, the second of which a
    person requested.
    """

    def __init__(self) -> None:
        self.db = sqlite_files.driver.connect(":memory:")
        request = json.dumps({"tags": ["t\u202e"]})
        self.db.executescript(
            f"""
            CREATE TABLE run_history (run_id, request_id, status, outcome, cause, flow_id, parent, request);
            CREATE TABLE manager (manager_id, name, status, outcome, cause, flow_id, parent, tags, waiting_for, error);
            CREATE TABLE graph (graph_id, graph_key, state, cause, parent, tags, waiting_for);
            CREATE TABLE schedule (schedule_id, name);
            CREATE TABLE schedule_due (due_id, schedule_id, due_at, decision, reason, target_kind, target_id);
            INSERT INTO run_history VALUES (1, 'odd-1', 'COMPLETED', 'finished', '', '{FLOW}', NULL, '{request}'),
                (2, 'odd-2', 'FAILED', 'cancelled', '', NULL, NULL, '{{}}'),
                (3, 'schedule/{NAMES[0]}/1', 'COMPLETED', 'finished', '', NULL, NULL, '{{}}');
            INSERT INTO manager VALUES (5, 'odd', 'COMPLETED', 'finished', '', 'odd-3', NULL, '[]', NULL, NULL);
            INSERT INTO graph VALUES (7, 'ß', 'completed', '', NULL, '[]', NULL);
            INSERT INTO schedule VALUES (1, '{NAMES[0]}');
            INSERT INTO schedule_due VALUES (1, 1, '{stamp(0)}', 'paused', 'x', 'run', NULL),
                (2, 1, '{stamp(EVERY_S)}', 'started', NULL, 'run', 3);
            """
        )
        answered: Any = {"sent": T, "at": T + 1, "status": 202}
        run = Odd(1, "run", {"flow_id": FLOW, "tag": "t\u202e", "note": "\u0301"}, None)
        stopped, manager = Odd(2, "run", {}, "enough\a"), Odd(3, "manager", {}, None)
        self.sent = [
            Sent(run, Told("POST /v1/runs", **answered, answer={"run_id": 1})),
            Sent(
                stopped,
                Told("POST /v1/runs", **answered, answer={"run_id": 2}),
                stop=Told("stop", **answered),
            ),
            Sent(
                manager,
                Told("POST /v1/managers", **answered, answer={"manager_id": 5}),
                Told("jobs", **answered),
            ),
            Sent(
                Odd(4, "graph", {"id": "ß"}, None),
                Told("POST /v1/graphs", **answered, answer={"id": "ß"}),
            ),
            Sent(Odd(5, "graph", {"id": "\0"}, None), Told("POST /v1/graphs", T, T, 422)),
        ]
        self.processes = [self.crawl(1, note="\u0301"), self.crawl(3)]
        self.lives = [(NAMES[0], T - 5, T + EVERY_S + 5)]
        self.wanted = [Wanted(NAMES[0], T + EVERY_S, Told("trigger", **answered))]
        self.told = [Told("trigger", **answered), Told("DELETE", T, T, 404)]

    @staticmethod
    def crawl(run_id: int, **args: str) -> Process:
        return Process(run_id, 0, 1, 1, 10, 1, 9, args, T, T, {"at": T, "code": 0}, None, [])

    def query(self, sql: str, *values: object) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def cli_list(self, which: str) -> list[Any]:
        return []

    def open_runs(self) -> list[int]:
        return []

    def violations(self) -> str:
        harness = cast(SoakHarness, self)
        found = [*check_strangers(harness, self.sent, self.processes)]
        found += check_schedules(harness, self.lives, self.wanted, self.told, self.processes)
        return "\n".join([*found, *left(harness)])


def test_honest_rows_pass() -> None:
    rows = Rows()
    assert rows.violations() == ""
    rows.db.execute("UPDATE schedule_due SET decision = 'queued' WHERE due_id = 2")
    assert rows.violations() == "", "what waited is called so when it has begun, too"


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("DELETE FROM run_history WHERE run_id = 1", "it was accepted, and 0 are on record"),
        ("UPDATE run_history SET status = 'FAILED', outcome = 'failed' WHERE run_id = 1", "accepted and is FAILED"),
        ("UPDATE run_history SET status = 'FAILED', outcome = 'cancelled' WHERE run_id = 1", "expected"),
        ("UPDATE run_history SET status = 'PROCESSING' WHERE run_id = 2", "accepted and is PROCESSING"),
        ("UPDATE run_history SET flow_id = 'é😀' WHERE run_id = 1", "flow_id was sent as"),
        ("UPDATE run_history SET request = '{}' WHERE run_id = 1", "is not among []"),
        ("UPDATE manager SET outcome = 'errors in hooks: 1'", "a manager with nothing odd: it was accepted and is"),
        ("UPDATE manager SET status = 'PROCESSING'", "manager 5 is PROCESSING, waits for"),
        ("UPDATE graph SET state = 'discarded'", "it was accepted and is discarded"),
        ("UPDATE graph SET state = 'executing'", "graph 'ß' is executing"),
        ("UPDATE graph SET graph_key = 'SS'", "it was accepted, and 0 are on record"),
        ("UPDATE schedule_due SET target_id = NULL WHERE due_id = 2", "does not say what it began"),
        ("UPDATE schedule_due SET target_id = NULL WHERE due_id = 2", "is started without a target"),
        ("UPDATE schedule_due SET target_id = NULL WHERE due_id = 2", "a person was promised"),
        ("UPDATE schedule_due SET target_id = NULL WHERE due_id = 2", "run 3 was begun for schedule/"),
        ("UPDATE schedule_due SET decision = 'queued', target_id = NULL WHERE due_id = 2", "queued without a target"),
        ("UPDATE schedule_due SET decision = 'missed' WHERE due_id = 2", "does not say what it began"),
        ("DELETE FROM schedule_due WHERE due_id = 1", "13:46:40.000 has no line"),
        ("DELETE FROM schedule_due WHERE due_id = 2", "and it is: None"),
        ("UPDATE schedule_due SET due_at = (SELECT due_at FROM schedule_due WHERE due_id = 2)", "has 2 lines for"),
        ("UPDATE schedule_due SET decision = 'started', target_id = 3", "2 due times began the run 3"),
        ("INSERT INTO run_history SELECT 9, request_id, status, outcome, '', '', '', '{}' FROM run_history "
         "WHERE run_id = 3", "2 of the kind run were begun for schedule/"),
        ("INSERT INTO manager (manager_id, name, flow_id, status, tags) VALUES (6, 'aside', 'aside-a.1', 'COMPLETED', "
         "'[]')", "manager 6 was begun for aside-a.1, and no line says so"),
        ("INSERT INTO graph (graph_id, graph_key, state) VALUES (8, 'schedule.aside-a.1', 'completed')",
         "graph 8 was begun for schedule.aside-a.1, and no line says so"),
    ],
)  # fmt: skip
def test_lies_on_record_are_found(lie: str, told: str) -> None:
    rows = Rows()
    rows.db.execute(lie)
    assert told in rows.violations()


def an_error_of_the_service(rows: Rows) -> None:
    rows.sent[4].start = Told("POST /v1/graphs", T, T, 500)


def no_answer(rows: Rows) -> None:
    rows.told[0] = Told("trigger", T, T, None)


def a_refusal_of_what_is_ordinary(rows: Rows) -> None:
    rows.sent[2].jobs = Told("jobs", T, T, 422)


def executed_twice(rows: Rows) -> None:
    rows.processes.append(rows.crawl(1, note="\u0301"))


def a_due_time_twice(rows: Rows) -> None:
    rows.processes.append(rows.crawl(3))


def never_executed(rows: Rows) -> None:
    del rows.processes[0]


def another_text(rows: Rows) -> None:
    rows.processes[0].args["note"] = "?"


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (an_error_of_the_service, "nobody said yes or no: POST /v1/graphs: 500"),
        (no_answer, "nobody said yes or no: trigger"),
        (a_refusal_of_what_is_ordinary, "what is ordinary was refused"),
        (executed_twice, "its run 1 executed 2 times"),
        (a_due_time_twice, "of a due time was executed 2 times"),
        (never_executed, "its run 1 never executed"),
        (another_text, "its crawler was given '?'"),
    ],
)
def test_lies_of_answers_and_crawlers_are_found(lie: Any, told: str) -> None:
    rows = Rows()
    lie(rows)
    assert told in rows.violations()


# --- plans ----------------------------------------------------------------------------------------


def test_a_seed_sends_the_same_texts() -> None:
    one, same, other = (list(itertools.islice(odd_requests(seed), 300)) for seed in (1, 1, 2))
    assert one == same != other
    assert {(odd.kind, field) for odd in one for field in odd.texts} == {
        (k, f) for k in FIELDS for f in FIELDS[k]
    }
    assert any(not odd.texts for odd in one), "ordinary ones stand beside them"
    json.dumps([odd.body() for odd in one])


def test_texts_have_every_odd_kind_of_character_and_every_length() -> None:
    dice = random.Random(1)
    texts = [odd_text(dice) for _ in range(2000)]
    assert {len(text) for text in texts} >= set(LENGTHS)
    everything = "".join(texts)
    for what in ("😀", "\u202e", "\u0301", "\u200d", "\0", "\x1b", "\ud800", "العربية"):
        assert what in everything


class Notebook:
    """A client that accepts every request."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def until_told(self, method: str, path: str, body: Any = None, key: str | None = None) -> Told:
        self.asked.append(f"{method} {path.rpartition('/')[2] if method == 'POST' else ''}".strip())
        due = [
            {"due_at": "1970-01-12T13:46:40Z", "asked_by": "a person"},
            {"due_at": "1970", "asked_by": None},
        ]
        return Told(f"{method} {path}", T, T + 1, 202, {"due": due} if method == "POST" else {})


def test_schedules_are_triggered_backfilled_and_deleted_in_any_order() -> None:
    api = Notebook()
    actor = Schedules(cast(Any, api), 1, "m:Aside")
    for _ in range(300):
        actor.turn()
    actor.finish()
    assert set(api.asked) == {
        "PUT",
        "DELETE",
        "POST pause",
        "POST resume",
        "POST trigger",
        "POST backfill",
    }
    assert len(actor.lives) == api.asked.count("DELETE") > 10
    asked = list(zip(api.asked, api.asked[1:], strict=False))
    assert ("POST trigger", "DELETE") in asked
    assert ("POST backfill", "DELETE") in asked
    assert {one.due_at for one in actor.wanted} == {T}


# --- terminations ---------------------------------------------------------------------------------


class Terminated(Rows):
    """Workflows, one of which is ended by a storm, with or without a successor."""

    def __init__(self, *, healed: bool) -> None:
        super().__init__()
        self.healed, self.gone = healed, list[str]()

    def cli_list(self, which: str) -> list[Any]:
        kinds = {"GraphWorkflow": "graph/g", "CrawlManagerWorkflow": "manager/stream/chaos"}
        assert all(f"'{kind}'" in which for kind in kinds)
        return [
            {"execution": {"workflowId": one}, "type": {"name": kind}}
            for kind, one in kinds.items()
        ]

    def talk(self, call: Any) -> list[Any]:
        self.gone.append("terminated")
        return []

    def open_workflows(self, ids: list[str]) -> list[str]:
        return ids if self.healed else []


@pytest.mark.parametrize("healed", [True, False])
def test_what_nobody_carries_within_a_minute_is_told(
    healed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(strikes, "HEALED_S", 0.01)
    (tmp_path / "m.py").write_text("")
    harness = Terminated(healed=healed)
    striker = Striker(cast(SoakHarness, harness), tmp_path / "m.py", 1, 1.0)
    striker._terminate()
    assert harness.gone == ["terminated"]
    assert bool(striker.wrong) is not healed
    assert all("nothing carries what it carried" in text for text in striker.wrong)


def test_a_row_of_due_times_settles_one_by_one_and_what_stands_still_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each waits for the verdict before it; a minute for each is no standstill, and two minutes for
    one are.
    """
    rows, now = Rows(), [0.0]
    rows.db.execute("UPDATE schedule_due SET decision = 'queued', target_id = NULL")

    def sleep(seconds: float) -> None:
        now[0] += 20.0
        if now[0] in begins:
            rows.db.execute(
                "UPDATE schedule_due SET target_id = 3 WHERE due_id = ?",
                (begins.index(now[0]) + 1,),
            )

    monkeypatch.setattr(client.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(client.time, "sleep", sleep)
    begins = [60.0, 120.0]
    assert settled(cast(SoakHarness, rows)) == []
    rows.db.execute("UPDATE schedule_due SET decision = 'queued', target_id = NULL")
    now[0], begins = 0.0, [60.0]
    assert [text.partition(" (")[0] for text in settled(cast(SoakHarness, rows))] == [
        "90 s after the faults ended the due time 2"
    ]


def test_what_has_ended_needs_no_other_workflow() -> None:
    assert strikes.ended(cast(SoakHarness, Rows())) == {"manager/odd/odd-3", "graph/ß"}
