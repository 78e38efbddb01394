"""The oracle about deployed code: what must hold for versions, canaries and roll-backs whatever
fails. It shares no code with the service.

The name of each deployed code is in its zip, and its crawler writes the name into its journal. The
name begins with the version, so it shows which version really executed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tools.faults.code_record import ENTRY, PACKAGE, SPIDERS, Canary, CodeRun
from tools.faults.oracle import OVER, Ask, Evidence

#: How the keys of starts begin.
KEYS = "faults-code-"
#: If a request was sent more than once, a process that was frozen may still execute an earlier one
#: of them this many seconds after the answer.
STALE_S = 45.0
#: A bad version may be accepted if at least this share of the crawler's runs failed anyway, because
#: faults killed them.
MANY_FAILED = 0.4
JUDGE = "judge"


@dataclass(frozen=True)
class Change:
    """A change of what runs execute that name no version."""

    version: str
    sent: float
    done: float
    """The time from which it certainly counted, if it was accepted."""
    sure: bool = True
    """False if it may have had no effect."""
    until: float = math.inf
    """The time at which it had certainly ended by itself, such as the share of a canary."""


def judge_code(e: Evidence) -> list[str]:
    """Return every violation, as a sentence."""
    return [
        *_executed(e),
        *_one_code(e),
        *_named(e),
        *_newest(e, PACKAGE, package_changes(e)),
        *_newest(e, ENTRY, entry_changes(e)),
        *_entries(e),
        *_canaries(e),
        *_refused(e),
        *_began(e),
        *_followed(e),
        *e.code.seen,
    ]


def version_of(name: str) -> str:
    """Return the version in the name of a code."""
    return name.partition("/")[0]


def _executed(e: Evidence) -> Iterator[str]:
    """Check that each task executed exactly the code that its row names."""
    rows = {task.name: task for task in e.code.tasks}
    digests = {
        ask.body["name"]: ask.answer.get("digest")
        for ask in e.asks
        if ask.kind in ("deploy", "canary", "other contents") and ask.accepted
    }
    for process in e.processes:
        row = rows.get(process.name)
        if row is None or not process.code:
            continue
        wanted = row.version, row.digest
        got = version_of(process.code), digests.get(process.code, row.digest)
        if row.digest is None:
            if row.status == "SUCCEEDED":
                yield f"task {row.name} succeeded, and its row names no code"
        elif wanted != got:
            yield f"task {row.name} executed {got}, and its row names {wanted}"
    names: dict[str, set[str]] = defaultdict(set)
    for process in e.processes:
        row = rows.get(process.name)
        if row is not None and row.digest is not None and process.code:
            names[row.digest].add(process.code)
    yield from (
        f"rows name one digest {digest} for the codes {sorted(codes)}"
        for digest, codes in names.items()
        if len(codes) > 1
    )


def _one_code(e: Evidence) -> Iterator[str]:
    """Check that a run never mixes codes, unless a resume asked for another version."""
    asked = {ask.run_id for ask in e.asks if ask.kind == "resume" and ask.body}
    attempts = {task.name: task.run_attempt for task in e.code.tasks}
    codes: dict[tuple[int, int], set[str]] = defaultdict(set)
    for process in e.processes:
        if process.code:
            attempt = attempts.get(process.name, 0) if process.run_id in asked else 0
            codes[process.run_id, attempt].add(process.code)
    for (run_id, attempt), found in codes.items():
        if attempt and len(found) > 1:
            yield f"attempt {attempt} of run {run_id} mixed the codes {sorted(found)}"
        elif run_id not in asked and len(found) > 1:
            yield f"run {run_id} mixed the codes {sorted(found)}, and nobody asked for another"


def _starts(e: Evidence, crawler: str) -> Iterator[tuple[Ask, CodeRun]]:
    """Yield the accepted starts of a crawler with their runs, unless a resume changed the code."""
    runs = {run.key: run for run in e.code.runs}
    resumed = {ask.run_id for ask in e.asks if ask.kind == "resume" and ask.body}
    for ask in e.bound("start"):
        run = runs.get(ask.key)
        if run is None or not ask.key.startswith(KEYS) or run.run_id in resumed:
            continue
        if ask.body["crawler"] == crawler:
            yield ask, run


def _named(e: Evidence) -> Iterator[str]:
    """Check that a start that names a version gets it."""
    for crawler in (PACKAGE, ENTRY):
        for ask, run in _starts(e, crawler):
            wanted = ask.body.get("version", run.version)
            if run.version != wanted:
                yield f"run {run.run_id} asked for version {wanted} and has {run.version}"


def _newest(e: Evidence, crawler: str, changes: list[Change]) -> Iterator[str]:
    """Check that a start that names no version gets one that was current at that time: after an
    acknowledged roll-back, only that version.
    """
    for ask, run in _starts(e, crawler):
        if "version" in ask.body:
            continue
        allowed = possible(changes, ask.sent, ask.answered)
        version = run.version if crawler == PACKAGE else e.code.editions.get(run.version or "")
        if version not in allowed:
            yield (
                f"run {run.run_id} of {ask.sent:.1f} to {ask.answered:.1f} got {version}, and only "
                f"{sorted(allowed)} may have been current"
            )


def possible(changes: Iterable[Change], since: float, until: float) -> set[str]:
    """Return the versions that may have been current at some moment of this time.

    Requests overlap, and the one whose answer came last need not be the last one.
    """
    begun = [change for change in changes if change.sent <= until]
    sure = [change.sent for change in begun if change.sure and change.done <= since]
    latest = max(sure, default=0.0)
    return {change.version for change in begun if change.done >= latest and change.until >= since}


def done_at(ask: Ask) -> float:
    """Return the time at which the effect of a request is certainly complete."""
    if ask.status is None:
        return math.inf
    return ask.answered if ask.tries == 1 else ask.answered + STALE_S


def _change(ask: Ask, version: str) -> Iterator[Change]:
    """Yield the change that a request caused, or may have caused."""
    if ask.accepted or ask.tries > 1 or ask.status is None:
        yield Change(version, ask.sent, done_at(ask), ask.accepted)


def package_changes(e: Evidence) -> list[Change]:
    """Return the changes of the package's current version. A canary adds its version while it is
    open.
    """
    found: list[Change] = []
    versions = {canary.canary_id: canary for canary in e.code.canaries}
    for ask in e.asks:
        if ask.kind in ("deploy", "use", "other contents"):
            found += _change(ask, ask.body["version"])
        elif ask.kind == "canary":
            canary = next((c for c in e.code.canaries if c.version == ask.body["version"]), None)
            found += _shares(e, ask, canary)
        elif ask.kind == "accept" and ask.body["canary"] in versions:
            found += _change(ask, versions[ask.body["canary"]].version)
    return found


def _shares(e: Evidence, ask: Ask, canary: Canary | None) -> Iterator[Change]:
    """Yield the changes of a canary: its version gets a share of the runs until it ends. If the
    judge accepts it, it becomes current before the end was seen.
    """
    ended = math.inf
    if canary is not None:
        open_until, ended = e.code.ended.get(canary.canary_id, (math.inf, math.inf))
        if canary.state == "accepted" and canary.ended_by == JUDGE:
            yield Change(canary.version, max(open_until, ask.sent), ended)
    yield Change(ask.body["version"], ask.sent, math.inf, sure=False, until=ended)


def entry_changes(e: Evidence) -> list[Change]:
    """Return the changes of the edition that the entry in use has."""
    found: list[Change] = []
    for ask in e.asks:
        if ask.kind == "set entry":
            found += _change(ask, ask.body["edition"])
        elif ask.kind == "use entry":
            found += _change(ask, e.code.editions.get(str(ask.body["number"]), ""))
    return found


def _entries(e: Evidence) -> Iterator[str]:
    """Check that a run of the entry executes the version of the entry that it names."""
    runs = {run.run_id: run for run in e.code.runs if run.crawler == ENTRY}
    for process in e.processes:
        run = runs.get(process.run_id)
        if run is not None:
            wanted = e.code.editions.get(run.version or "")
            if process.args.get("edition") != wanted:
                yield f"{process} of run {run.run_id} is not of version {run.version}, {wanted}"


def _canaries(e: Evidence) -> Iterator[str]:
    """Check the share and the end of each canary."""
    bad = {ask.body["version"] for ask in e.asks if ask.kind == "canary" and ask.body["bad"]}
    for canary in e.code.canaries:
        most = math.ceil(round(canary.share * canary.asked, 6))
        if canary.given > most:
            yield (
                f"canary {canary.canary_id} got {canary.given} of {canary.asked} runs, "
                f"{most} were allowed"
            )
        yield from _counted(e, canary)
        for state in ("accepted", "rejected"):
            times, wanted = e.code.events[f"canary.{state}", canary.uid], canary.state == state
            if times != wanted:
                yield f"canary {canary.canary_id} is {canary.state}, and {state} has {times} events"
        judged = canary.state == "accepted" and canary.ended_by == JUDGE
        if judged and canary.version in bad and _failed_share(e) < MANY_FAILED:
            yield f"canary {canary.canary_id} of a bad version was accepted"
    states = {canary.canary_id: canary for canary in e.code.canaries}
    for ask in e.asks:
        if ask.kind in ("accept", "reject") and ask.accepted:
            wanted_state = f"{ask.kind}ed"
            found = states.get(ask.body["canary"])
            if found is None or found.state != wanted_state:
                yield f"canary {ask.body['canary']} was {wanted_state} by a person and is {found}"


def _counted(e: Evidence, canary: Canary) -> Iterator[str]:
    """Check that a canary gave its version to exactly as many runs as it counted.

    If its version became current, or was named by a person, later runs have it, too.
    """
    chosen = {a.body["version"] for a in e.asks if a.kind == "use"}
    if canary.state == "accepted" or canary.version in chosen or e.deleted:
        return
    asks = {ask.key: ask for ask in e.asks if ask.kind == "start"}
    resumed = {ask.run_id for ask in e.asks if ask.kind == "resume" and ask.body}
    mine = [run for run in e.code.runs if run.version == canary.version]
    got = [run for run in mine if run.key in asks and "version" not in asks[run.key].body]
    sure = sum(run.run_id not in resumed for run in got)
    maybe = sum(run.run_id in resumed for run in e.code.runs)
    if not sure <= canary.given <= sure + maybe:
        yield (
            f"canary {canary.canary_id} counted {canary.given} runs, and {sure} to {sure + maybe} "
            "have its version"
        )


def _failed_share(e: Evidence) -> float:
    mine = {run.run_id for run in e.code.runs if run.crawler == PACKAGE}
    ended = [run for run in e.runs if run.run_id in mine and run.status in OVER]
    return sum(run.status == "FAILED" for run in ended) / max(len(ended), 1)


def _refused(e: Evidence) -> Iterator[str]:
    """Check that a version never gets other contents."""
    deleted = {ask.body["version"] for ask in e.asks if ask.kind == "delete version"}
    for ask in e.asks:
        if ask.kind == "other contents" and ask.accepted and ask.body["version"] not in deleted:
            yield f"version {ask.body['version']} got other contents: {ask.body['name']}"


def _began(e: Evidence) -> Iterator[str]:
    """Check that no task failed for lack of its code."""
    began = {process.name for process in e.processes}
    failed = {task.name: task.outcome or "" for task in e.tasks if task.status == "FAILED"}
    mine = {task.name for task in e.code.tasks}
    for name in sorted(mine & failed.keys() - began):
        disk = any(fault.label.startswith("disk") for fault in e.faults)
        if not disk:
            yield f"task {name} of a deployed crawler failed before it began: {failed[name]}"


def _followed(e: Evidence) -> Iterator[str]:
    """Check that the entries of a Scrapy project are the spiders of its current version."""
    version, entries = e.code.spiders
    if entries != ([] if version is None else [spider_of(version)]):
        yield f"the current version of {SPIDERS} is {version}, and its entries are {entries}"


def spider_of(version: str) -> str:
    """Return the name of the only spider of a version of the Scrapy project."""
    return f"{SPIDERS}-{version}"


def code_summary(e: Evidence) -> str:
    """Return what happened to code, in one line."""
    executed: set[str] = {process.code for process in e.processes if process.code}
    tasks = sum(bool(process.code) for process in e.processes)
    uses = sum(ask.accepted for ask in e.asks if ask.kind in ("use", "use entry"))
    states = sorted(canary.state for canary in e.code.canaries)
    return (
        f"{tasks} tasks executed {len(executed)} deployed codes; {uses} roll-backs; canaries: "
        f"{', '.join(states) or 'none'}"
    )
