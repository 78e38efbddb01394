"""``python -m tools.faults --seed S --minutes M`` exits with 0 if nothing was untrue, lost, doubled
or stuck, and else with 1.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.kubernetes.cluster.binaries import NoBinaries
from tools.faults.code_oracle import code_summary, judge_code
from tools.faults.code_record import CodeWatch, read_code
from tools.faults.codes import CodeLoad
from tools.faults.faults import LONG_KINDS, Faults, storm
from tools.faults.harness import SLOTS, Harness, RecordAway, seconds
from tools.faults.load import AGE, MOST, TASKS, Load, Sampler
from tools.faults.oracle import (
    ENDED,
    OVER,
    SETTLE_S,
    Evidence,
    Figure,
    Run,
    Task,
    doubled,
    figure,
    judge,
    lost,
    verdicts,
)
from tools.faults.scrapyd import Scrapyd, program
from tools.faults.site_oracle import BLOCKS, HOLDERS, LEFT, judge_sites, summary
from tools.faults.sites import SiteLoad
from tools.faults.table import lines, save
from tools.soak.journal import read_journals

#: The seconds that the harness of a short test run needs to start on a machine without other work.
#: If it needs longer, all limits are extended in the same proportion.
UP_S = 15.0
#: The ``ended_at`` of a run is the time at which its last task ended. Its verdict comes later.
RUNS = (
    "SELECT run_id, request_id, status, outcome, attempt, (SELECT MAX(committed_at) "
    "FROM status_transition t WHERE t.run_id = r.run_id AND t.task_id IS NULL "
    f"AND t.to_status IN {OVER}) FROM run_history r"
)
OPEN = {
    "run {} is {}, waits for {}": (
        f"SELECT run_id, status, waiting_for FROM run_history WHERE status NOT IN {OVER}"
    ),
    "task {}/{}/{} is {}": f"{TASKS} WHERE status NOT IN {ENDED}",
    "run {}, attempt {}: its archive is not on record": "SELECT r.run_id, r.attempt FROM "
    "run_history r "
    "LEFT JOIN export_record x ON x.run_id = r.run_id AND x.attempt = r.attempt WHERE x.id IS NULL "
    "AND r.deleted_at IS NULL",
    "manager {} is {}": f"SELECT flow_id, status FROM manager WHERE status NOT IN {OVER}",
    "graph {} is {}": "SELECT graph_key, state FROM graph WHERE state IN ('draft', 'executing')",
    "the deletion of run {} has not ended": "SELECT run_id FROM run_history "
    "WHERE deleted_at IS NOT NULL AND deletion_ended_at IS NULL",
    "the webhook did not receive event {}": "SELECT e.seq FROM outbox_event e JOIN webhook w "
    "WHERE e.type = 'run.ended' AND e.seq > w.through_seq",
    "the event {} to {} is {}: {}": (
        "SELECT seq, sink, status, error FROM outbox_delivery WHERE status <> 'delivered'"
    ),
}


def left(harness: Harness, asked: Mapping[str, str] = OPEN) -> list[str]:
    """Return everything that is still open."""
    try:
        return [text.format(*row) for text, sql in asked.items() for row in harness.record(sql)]
    except RecordAway as error:
        return [f"the database cannot be read: {error}"]


def settle(harness: Harness, patience: float) -> list[str]:
    """Wait until nothing is open, as long as the number of open things reaches a new minimum within
    each ``SETTLE_S``.

    After an hour without Temporal, the backlog is larger than a fixed time could allow for, and a
    backlog that becomes smaller is not stuck. Returns what is open and stuck.
    """
    fewest, reported = float("inf"), time.monotonic()
    end = reported
    while found := left(harness):
        now = time.monotonic()
        if len(found) < fewest:
            fewest, end = len(found), now + SETTLE_S * patience
        if now > end:
            break
        harness.tick()
        if now > reported + 15:
            reported += 15
            harness.say(f"  {len(found)} left: {'; '.join(found[:3])}")
        time.sleep(1.0)
    return found


def gather(harness: Harness, evidence: Evidence) -> None:
    """Read what is recorded in the database, in journals, in the archive and at the sink."""
    sql = harness.record
    evidence.runs = [Run(*run, verdict_at=seconds(at) if at else 0.0) for *run, at in sql(RUNS)]
    rows = sql(TASKS.replace("status", "status, outcome"))
    evidence.tasks = [Task((r, i, a), status, outcome) for r, i, a, status, outcome in rows]
    evidence.exports = [
        (*row,) for row in sql("SELECT run_id, attempt, status, url FROM export_record")
    ]
    evidence.blocks = [(*row,) for row in sql(BLOCKS)]
    gone = sql(
        "SELECT run_id, deletion_ended_at IS NOT NULL FROM run_history WHERE deleted_at IS NOT NULL"
    )
    evidence.deleted = {run_id: bool(ended) for run_id, ended in gone}
    for document in list(harness.receiver.taken):
        number, attempt, _ = str(document["id"]).split("/")
        evidence.hooked.append((int(number.partition("-")[0]), int(attempt)))
    lines = sql("SELECT due_at, decision, target_id FROM schedule_due")
    evidence.due = [(seconds(at), decision, target) for at, decision, target in lines]
    evidence.events = [
        (*row,) for row in sql("SELECT run_id, attempt FROM outbox_event WHERE type = 'run.ended'")
    ]
    for line in (harness.folder / "events.jsonl").read_text().splitlines():
        with suppress(ValueError):  # A writer that was killed leaves half a line.
            number, attempt, kind = str(json.loads(line)["id"]).split("/")
            if kind == "run.ended":
                evidence.told.append((int(number.partition("-")[0]), int(attempt)))
    store = harness.folder / "s3"
    evidence.archives = {
        f"s3://{f.relative_to(store)}": f.stat().st_size for f in store.rglob("*") if f.is_file()
    }
    evidence.processes = read_journals(harness.journals)
    evidence.code = read_code(sql)


class Beside:
    """Start scrapyd in the same test run, if it was requested."""

    def __init__(self, harness: Harness) -> None:
        self.scrapyd = Scrapyd(harness)
        self.scrapyd.begin()
        self.sampler = Sampler(self.scrapyd.record, self.scrapyd.journals)
        self.sampler.start()

    def figure(self, evidence: Evidence) -> Figure:
        """Compare what scrapyd reports with what its crawlers did under the same faults."""
        self.sampler.stop()
        mine = self.scrapyd.end()
        mine.seen, mine.faults = self.sampler.untrue, evidence.faults
        return figure(mine)


def play(
    harness: Harness, seeds: range, chosen: argparse.Namespace, patience: float
) -> tuple[Evidence, Figure]:
    """Execute the load under faults, one seed after the other, wait until everything has ended, and
    judge all evidence. With scrapyd, also compute its figure.
    """
    away = 60 * chosen.away
    load = Load(harness, seeds[0], chosen.pace, chosen.most, away)
    sampler = Sampler(lambda: harness.record(TASKS), harness.journals)
    sampler.age = lambda: harness.record(AGE)
    sampler.holders = lambda: harness.record(HOLDERS)
    sites = SiteLoad(load, seeds[0])
    codes = None
    # A restored record forgets versions, a landed build may not know any, and scrapyd would not get
    # these crawls.
    if chosen.restore != "database" and harness.landed is None and not chosen.scrapyd:
        codes = CodeLoad(load, harness.entry, seeds[0])
        watch = sampler.code = CodeWatch(harness.code, harness.record)
    faults = Faults(harness, seeds[0], chosen.only, chosen.restore, away)
    beside = Beside(harness) if chosen.scrapyd else None
    if beside:
        load.beside = beside.scrapyd.want
    sampler.start()
    storm(harness, chosen.calm, load.turn)
    for seed in seeds:
        harness.say(f"seed {seed}")
        load.dice = random.Random(f"load {seed}")
        turns = [load.turn, sites.turn, faults.turn]
        sites.begin(seed)
        faults.begin(seed)
        if codes:
            codes.begin(seed)
            turns.append(codes.turn)
        storm(harness, 60 * chosen.minutes / len(seeds), *turns)
        faults.finish()
    for name in harness.parts:
        harness.parts[name].wait_ready(harness.tick)
    harness.say("the faults are over")
    load.finish()
    sites.finish()
    load.answered()
    open_yet = settle(harness, patience)
    if beside:
        end = time.monotonic() + SETTLE_S
        while beside.scrapyd.busy() and time.monotonic() < end:
            storm(harness, 1)
    evidence = Evidence(faults=faults.done, kills=faults.kills, left=open_yet, patience=patience)
    harness.say(
        f"settled; {sampler.samples} polls, {sampler.unread} without an answer; load average up to "
        f"{sampler.load:.1f}"
    )
    sampler.stop()
    gather(harness, evidence)
    harness.dump(harness.folder / "record.sql")
    if codes:
        evidence.code.ended = watch.ended
        evidence.code.seen += watch.seen
    evidence.most_holders = sampler.most_holders
    evidence.left_at_sites = left(harness, LEFT)
    evidence.asks, evidence.seen, evidence.ages = load.asks, sampler.untrue, sampler.ages
    evidence.wanted, evidence.schedule = load.wanted, load.schedule
    evidence.prompt = "temporal" if away else ""
    for name in harness.ours:  # Only the fault tests kill processes.
        died = [code for _, code in harness.parts[name].deaths if code != -signal.SIGKILL]
        evidence.died += [f"{name} ended by itself with {code}" for code in died]
    return evidence, beside.figure(evidence) if beside else {}


def interrupted(*_: object) -> None:
    """Return only once, because whatever ends the harness after that must not be interrupted again."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        help="the number of seeds, one after the other in the same harness",
    )
    parser.add_argument(
        "--minutes", type=float, help="of all of them; 3 by default, or all that --away takes"
    )
    away = (
        "minutes for which Temporal is down: frozen, killed, cut off, and frozen while nobody "
        "observes the cluster"
    )
    parser.add_argument(
        "--away", type=float, default=0.0, help=f"{away}. Records may not be late because of it"
    )
    parser.add_argument(
        "--scrapyd",
        action="store_true",
        help="scrapyd in parallel with ours, under the same faults",
    )
    parser.add_argument(
        "--calm",
        type=float,
        default=0.0,
        help="seconds of load before the first fault",
    )
    parser.add_argument(
        "--figures", type=Path, help="a file for the figures, which tools.faults.table reads"
    )
    parser.add_argument(
        "--only", default="", help="only faults whose name contains this, such as 'of database'"
    )
    told = "what is restored from a copy, too: the record, or all of Temporal's data"
    parser.add_argument("--restore", default="", choices=("", "database", "postgres"), help=told)
    parser.add_argument("--folder", type=Path, help="the folder of the stack, which is kept")
    parser.add_argument(
        "--landed", default="", help="a commit: one gateway and one worker run that build"
    )
    parser.add_argument(
        "--dev",
        action="store_true",
        help="use the dev server of Temporal's SDK instead of the production server",
    )
    parser.add_argument(
        "--sqlite", action="store_true", help="use SQLite instead of MariaDB for the record"
    )
    parser.add_argument(
        "--pace", type=float, default=0.0, help="seconds between two requests; 2 by default"
    )
    parser.add_argument(
        "--most", type=int, default=MOST, help="tasks of the largest runs, a fifth of all runs"
    )
    parser.add_argument(
        "--late",
        type=float,
        default=0.0,
        help="seconds by which a record may be late; 20 by default",
    )
    parser.add_argument(
        "--slots", type=int, default=SLOTS, help="of the local cluster: more for a faster pace"
    )
    chosen = parser.parse_args()
    if chosen.sqlite and (chosen.restore or chosen.scrapyd):
        parser.error("--sqlite: give neither --restore nor --scrapyd")
    chosen.minutes = chosen.minutes or (
        len(LONG_KINDS) * (chosen.away + 0.6) if chosen.away else 3.0
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    if chosen.scrapyd:
        program()  # Nothing is installed during a measurement.
    began = time.time()

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    try:
        with Harness.up(
            say, chosen.folder, chosen.landed, chosen.dev, chosen.slots, chosen.sqlite
        ) as harness:
            took, seeds = time.time() - began, range(chosen.seed, chosen.seed + chosen.seeds)
            say(
                f"everything is up after {took:.0f} s, {harness.processor():.0f} of processor, in "
                f"{harness.folder}"
            )
            patience = max(1.0, took / UP_S) if chosen.dev else 1.0
            evidence, theirs = play(harness, seeds, chosen, patience)
            evidence.short, folder = (
                (chosen.seeds > 1 or chosen.dev) and not chosen.away,
                harness.folder,
            )
            evidence.late = chosen.late
            say(
                f"it took {time.time() - began:.0f} s, {harness.processor():.0f} of processor; "
                f"patience {patience:.1f}"
            )
    except NoBinaries as error:
        sys.exit(str(error))
    wrong = [*judge(evidence), *judge_sites(evidence), *judge_code(evidence)]
    evidence.lost, evidence.doubled = lost(evidence), doubled(evidence)
    ours = figure(evidence)
    save(chosen.figures, ours=ours, scrapyd=theirs)
    for side, rows in (("ours", ours), ("scrapyd", theirs)):
        if rows:
            print("\n".join([f"--- {side}", *lines(rows)]))
    for label, after in verdicts(evidence).items():
        if after:
            after.sort()
            print(
                f"verdicts after {label}: p50 {after[len(after) // 2]:.1f}, last {after[-1]:.1f} s "
                f"of {len(after)}"
            )
    asked = Counter(f"{ask.kind} {ask.status}" for ask in evidence.asks)
    print(f"asked: {dict(asked)}")
    print(
        f"{len(evidence.runs)} runs, {len(evidence.tasks)} tasks, {len(evidence.processes)} "
        "processes"
    )
    print(summary(evidence))
    print(code_summary(evidence))
    for text in wrong:
        print(f"WRONG: {text}")
    verdict = f"{len(wrong)} violations" if wrong else "nothing untrue, lost, doubled or stuck"
    print(f"seed {chosen.seed}, {len(evidence.faults)} faults: {verdict}")
    if wrong:
        again = shlex.join(["python", "-m", "tools.faults", *sys.argv[1:]])
        print(f"logs, journals and the tasks' folders: {folder}; the same again: {again}")
    elif chosen.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
