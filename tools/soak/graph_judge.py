"""Finds everything that is untrue of a graph that has ended, by the ledgers of functions and
crawlers and by the brute-force model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from crawler_lifecycle.domain.values import of_json
from crawler_lifecycle.features.graphs.domain.spec import LOST_MAX, StepKind, StepState
from tests.domain.graph.model import Model, Node
from tools.soak.checks import CLOCK_S
from tools.soak.graph_managers import jobs_of, managers
from tools.soak.graph_records import Execution, GraphCase
from tools.soak.graph_room import room
from tools.soak.graph_steps import behaviour, digest, value_of
from tools.soak.journal import clock

C, D, X = StepState.COMPLETED, StepState.DISCARDED, StepState.CANCELLED


def check(case: GraphCase) -> Iterator[str]:
    """Return every violation of this graph, as a sentence."""
    wrong = [*_steps(case)]
    if not wrong:  # Otherwise, the following checks make no sense.
        for poll in (
            _states,
            _executions,
            _order,
            _given,
            _results,
            _crawls,
            managers,
            room,
            _ends,
        ):
            wrong += poll(case)
    yield from (f"{case.plan.key}: {text}" for text in wrong)


def _steps(case: GraphCase) -> Iterator[str]:
    """Check that each requested step exists once, and that there is no other step."""
    for path in case.rows.keys() - case.specs.keys():
        yield f"the step {path} is on record, and nobody asked for it"
    for path in case.specs.keys() - case.rows.keys():
        if _sure(case, path):
            yield f"the step {path} is not on record"
    numbers = [row["number"] for row in case.rows.values()]
    if sorted(numbers) != list(range(len(numbers))):
        yield f"the numbers of its steps are {numbers}"
    for path, row in case.rows.items():
        if path in case.specs and row["kind"] != case.specs[path].kind:
            yield f"the step {path} is a {row['kind']} and should be a {case.specs[path].kind}"


def _sure(case: GraphCase, path: str) -> bool:
    """Return whether this step must exist: it was sent, certainly appended, or grafted by a step
    that has completed.
    """
    if path in {one.path for one in case.plan.spec.steps}:
        return True
    appended = {
        one.path for asked in case.asked if asked.answer == "ok" for one in asked.command.steps
    }
    grafter = next((one for one in case.above(path) if case.specs[one].graft), None)
    return path in appended if grafter is None else grafter in case.rows and case.completed(grafter)


# --- states ---------------------------------------------------------------------------------------


def _model(case: GraphCase) -> Model:
    model = Model(case.plan.spec.options.fail_fast)
    for path, row in case.rows.items():
        node = Node(
            case.specs[path], path, StepState(row["state"]), row["outcome"], bool(row["ending"])
        )
        model.nodes[path] = node
    return model


def _states(case: GraphCase) -> Iterator[str]:
    """Check that the states of the graph and of its sub-graphs follow from their steps, and that
    each step had a reason for its end.
    """
    model = _model(case)
    if case.graph["state"] != model.state:
        yield f"it is {case.graph['state']}, its steps are {model.state}"
    counts = Counter(row["state"] for row in case.rows.values() if row["kind"] != StepKind.GRAPH)
    for name, right in (
        ("state", case.graph["state"]),
        ("counts", dict(counts)),
        ("total", counts.total()),
    ):
        if case.shown.get(name) != right:
            yield f"the gateway says {name} {case.shown.get(name)}, expected {right}"
    for path, row in case.rows.items():
        if row["state"] != model.shown(path):
            yield f"{path} is {row['state']}, what is in it is {model.shown(path)}"
        elif not StepState(row["state"]).final or row["ending"]:
            yield (
                f"{path} is {row['state']}{' and ending' if row['ending'] else ''}, and the "
                "graph has ended"
            )
        elif not model.holds(model.nodes[path]) and (text := _end_of(case, model, path)):
            yield f"{path} is {row['state']} ({row['outcome']}: {row['reason']}), {text}"


def _end_of(case: GraphCase, model: Model, path: str) -> str | None:
    """Return why a step must not have ended as it has, or ``None`` if it may."""
    row, gate, spec = case.rows[path], model.gate(path), case.specs[path]
    state, last = StepState(row["state"]), (case.by_path.get(path) or [None])[-1]
    if gate == "shut":
        return "and what it depends on has not ended"
    if state is X:
        failing = model.fail_fast and (
            case.restarted or any(node.state is D for node in model.units())
        )
        planned = last is not None and last.how == "cancel"
        if gate != "doomed" and not (case.stopped(path) or failing or planned or case.restarted):
            return "and nobody cancelled it"
        return None
    if gate == "doomed" and not case.restarted:
        return "and what it depends on failed"
    if spec.kind is StepKind.FUNCTION:
        if last is None:
            return "and it was never executed"
        lost = state is D and row["tries"] >= spec.max_attempts + LOST_MAX
        right = "value" if state is C else "raise"
        if (last.how, last.attempt) != (right, row["attempt"]) and not lost:
            return f"in attempt {row['attempt']}, and its last execution was {last}"
        if state is D and row["tries"] < spec.max_attempts and not lost:
            return f"after {row['tries']} tries, and may have {spec.max_attempts}"
    return None


# --- executions -----------------------------------------------------------------------------------


def _executions(case: GraphCase) -> Iterator[str]:
    """Check that each attempt was executed at most once, one after the other, and that each
    repetition has a reason.
    """
    for path, all_of_it in case.by_path.items():
        if path not in case.rows:
            yield f"nobody knows of what was executed: {all_of_it[0]}"
            continue
        for attempt, times in Counter(one.attempt for one in all_of_it).items():
            if times > 1:
                yield f"{path}: attempt {attempt} was executed {times} times"
            if not 1 <= attempt <= case.rows[path]["attempt"]:
                yield (
                    f"{path}: attempt {attempt} was executed, on record are "
                    f"{case.rows[path]['attempt']}"
                )
        if len(keys := {one.key for one in all_of_it}) > 1:
            yield f"{path}: its executions had the keys {keys}"
        for one, other in pairwise(all_of_it):
            if other.attempt < one.attempt:
                yield f"{path}: {other} began behind {one}"
            if (one.end or 0.0) > other.begin + CLOCK_S and not case.struck(one):
                yield f"{path} was executed twice at the same time: {one}; {other}"
            if why_not := _not_again(case, one, other):
                yield f"{one}; it was executed again ({other}), and {why_not}"
        last = all_of_it[-1]
        if last.how in (None, "asked") and not (
            case.stopped(path, last.begin) or case.struck(last)
        ):
            yield f"nobody ended {last}"


def _not_again(case: GraphCase, one: Execution, other: Execution) -> str | None:
    """Return why a function should not have been executed again, or ``None`` if it should."""
    if one.how == "snooze" or case.struck(one, other.begin):
        return None
    retried = any(
        a.command.what == "retry" and a.sent < other.begin and a.at > one.begin for a in case.heard
    )
    if retried or (one.how == "raise" and _fails_within(case, one)):
        return None
    return "nothing had happened to it" if one.how != "raise" else "its attempts were spent"


def _fails_within(case: GraphCase, one: Execution) -> bool:
    """Return whether attempts were left after this failure."""
    failures = [e for e in case.by_path[one.path] if e.how == "raise" and e.begin <= one.begin]
    return case.restarted or len(failures) < case.specs[one.path].max_attempts


def of_processes(cases: Sequence[GraphCase]) -> Iterator[str]:
    """Check that at most one execution of a process has no end when the process dies, because a
    process executes one function at a time.
    """
    open_: dict[int, list[Execution]] = {}
    for one in (one for case in cases for one in case.executions if one.end is None):
        open_.setdefault(one.pid, []).append(one)
    for pid, several in open_.items():
        if len(several) > 1:
            yield (
                f"process {pid} left several executions without an end: "
                f"{'; '.join(map(str, several))}"
            )


def lost(case: GraphCase) -> list[tuple[Execution, str]]:
    """Return the executions that a strike made useless, and the name of the strike."""
    found = []
    for all_of_it in case.by_path.values():
        for one, other in pairwise(all_of_it):
            if one.how not in ("raise", "snooze") and (strike := case.struck(one, other.begin)):
                found.append((one, strike.what))
    return found


# --- order and values -----------------------------------------------------------------------------


def _waits_for(case: GraphCase, path: str) -> Iterator[str]:
    """Return the functions and crawls that must have ended before this step begins."""
    yield from (leaf for dep in case.deps(path) for leaf in case.leaves(dep))
    for above in case.above(path):
        if case.specs[above].graft:
            return
        yield from (leaf for dep in case.deps(above) for leaf in case.leaves(dep))


def _order(case: GraphCase) -> Iterator[str]:
    """Check that the dependencies of a step had ended before the step began, and that its row
    states when it executed.
    """
    for path, all_of_it in case.by_path.items():
        for dep in dict.fromkeys(_waits_for(case, path)):
            for one in all_of_it:
                yield from _ended_before(case, dep, one)
        row, last = case.rows[path], all_of_it[-1]
        if row["state"] != C or last.attempt != row["attempt"] or last.end is None:
            continue
        if not row["started_at"] - CLOCK_S <= last.begin <= last.end <= row["ended_at"] + CLOCK_S:
            yield (
                f"{path} is dated {clock(row['started_at'])} to {clock(row['ended_at'])}, and "
                f"was {last}"
            )


def _ended_before(case: GraphCase, dep: str, one: Execution) -> Iterator[str]:
    spans, spec = case.spans(dep), case.specs[dep]
    excused = case.restarted or any(case.struck(e) for e in case.by_path.get(dep, ()))
    excused = excused or (spec.kind is StepKind.MANAGER and not jobs_of(spec))
    for begin, end, text in spans:
        if begin < one.begin < end - CLOCK_S:
            yield f"{one} began while this executed, on which it depends: {text}"
    if (
        case.completed(dep)
        and not excused
        and not any(end <= one.begin + CLOCK_S for _, end, _ in spans)
    ):
        yield f"{one} began before {dep} had executed, on which it depends"


def _given(case: GraphCase) -> Iterator[str]:
    """Check that each execution got its arguments, the context, and the results of its direct
    dependencies.
    """
    for path, all_of_it in case.by_path.items():
        spec = case.specs[path]
        for one in all_of_it:
            right = {
                name: digest(of_json(value)) for name, value in spec.job.get("args", {}).items()
            }
            if spec.job["style"] in ("cascade", "item"):
                right |= _context(case, path)
                holder = path.rpartition("/")[0] if spec.job["style"] == "item" else path
                for dep in case.deps(holder) if holder else ():
                    right |= _entry(case, dep, one)
            if spec.job["style"] == "item":
                right["item"] = digest(of_json(spec.job["item"]))
            for name in sorted(right.keys() | one.given.keys()):
                if right.get(name) not in (one.given.get(name), ANY):
                    yield (
                        f"{one} was given another {name} than is right: {one.given.get(name)}, "
                        f"{right.get(name)}"
                    )


#: A value that replaces a digest that nobody can know.
ANY = "any"


def _context(case: GraphCase, path: str) -> dict[str, str]:
    found: dict[str, Any] = dict(case.plan.spec.context)
    for above in reversed(list(case.above(path))):
        found |= case.specs[above].job.get("context", {})
    return {name: digest(of_json(value)) for name, value in found.items()}


def _entry(case: GraphCase, dep: str, one: Execution) -> dict[str, str]:
    """Return what a step gets from a dependency, by the name of the dependency."""
    name = dep.rpartition("/")[2]
    if any(_touched(case, leaf, one) for leaf in case.leaves(dep)):
        return {name: ANY}
    found = _value(case, dep, one)
    return {} if found is NOTHING else {name: digest(found)}


NOTHING = object()


def _touched(case: GraphCase, leaf: str, one: Execution) -> bool:
    """Return whether the results that a step gave to this execution changed over time, or cannot be
    known from the ledger alone.
    """
    if case.stopped(leaf) or not case.restarted:
        return case.stopped(leaf)
    of_it = case.by_path.get(leaf, ())
    if (
        case.specs[leaf].kind is not StepKind.FUNCTION
        or not case.completed(leaf)
        or len(of_it) != 1
    ):
        return True
    # A retry may execute for the first time a step that failed without an execution, after steps
    # that ignore such failures.
    only = of_it[0]
    return (only.end is None or only.end > one.begin) and _by_a_retry(case, only)


def _by_a_retry(case: GraphCase, one: Execution) -> bool:
    return any(asked.command.what == "retry" and asked.sent < one.begin for asked in case.heard)


def _value(case: GraphCase, path: str, one: Execution) -> object:
    """Return the result of a step that has ended, by its ledger."""
    spec, row, children = case.specs[path], case.rows[path], case.children(path)
    if spec.kind is StepKind.GRAPH or children:
        inside = {child.rpartition("/")[2]: _value(case, child, one) for child in children}
        return {name: value for name, value in inside.items() if value is not NOTHING}
    if spec.kind is StepKind.CRAWL:
        return (
            NOTHING
            if row["run_id"] is None
            else {"run_id": row["run_id"], "outcome": "", "archive": ""}
        )
    if spec.kind is StepKind.MANAGER:
        return None if case.completed(path) else NOTHING
    if not case.completed(path):
        return NOTHING
    return {} if spec.graft else _result(case, path)


def _result(case: GraphCase, path: str) -> object:
    """Return the result of a function that completed, in the recorded attempt."""
    return (
        None
        if case.specs[path].graft
        else value_of(case.plan.key, path, case.rows[path]["attempt"])
    )


def _results(case: GraphCase) -> Iterator[str]:
    """Check that the service keeps the result of each function from the recorded attempt.

    The result of a graft is that of its steps, which are judged themselves.
    """
    for path, row in case.rows.items():
        if case.specs[path].kind is not StepKind.FUNCTION:
            continue
        right = _result(case, path) if case.completed(path) else None
        told = case.recorded.get(path)
        if not case.specs[path].graft and told != (digest(right) if case.completed(path) else None):
            yield f"the result of {path} is {told}, expected {right!r:.80}"
        executions = [e for e in case.by_path.get(path, ()) if e.attempt == row["attempt"]]
        if case.completed(path) and executions and executions[-1].gave != digest(right):
            yield (
                f"{executions[-1]} wrote down {executions[-1].gave}, and should have given "
                f"{right!r:.80}"
            )
        failed = behaviour(case.plan.key, path).failures
        if case.completed(path) and row["attempt"] <= failed:
            yield f"{path} is completed in attempt {row['attempt']}, and its first {failed} fail"


# --- crawls and the end ---------------------------------------------------------------------------


def _crawls(case: GraphCase) -> Iterator[str]:
    """Check that a step has one run, unless it should have a fresh run, and that its processes
    ended as the step reports.
    """
    crawls = {
        path: row for path, row in case.rows.items() if case.specs[path].kind is StepKind.CRAWL
    }
    fresh = sum(one.command.fresh for one in case.heard)
    if len(case.runs) > len(crawls) * (1 + fresh):
        yield (
            f"{len(case.runs)} runs of {len(crawls)} crawls, of which {fresh} times fresh ones "
            "were asked for"
        )
    for name, times in Counter((p.run_id, p.index, p.attempt) for p in case.processes).items():
        if times > 1:
            yield f"the task {name} was executed {times} times"
    for path, row in crawls.items():
        run = case.runs.get(row["run_id"])
        mine = [process for process in case.processes if process.run_id == row["run_id"]]
        if row["run_id"] is not None and run is None:
            yield f"{path} has the run {row['run_id']}, which does not belong to it"
        if (
            run is not None
            and (row["state"] == C) != (run["status"] == "COMPLETED")
            and row["state"] != X
        ):
            yield f"{path} is {row['state']}, its run {run}"
        finished = bool(mine) and mine[-1].end is not None and mine[-1].end.get("code") == 0
        if row["state"] == C and not finished:
            yield f"{path} is completed, and its last process is {mine[-1] if mine else None}"
        if row["state"] == D and finished:
            yield (
                f"{path} is discarded ({row['outcome']}), and its last process ended well: "
                f"{mine[-1]}"
            )
        named = [
            one for one in case.heard if one.command.what == "retry" and one.command.covers(path)
        ]
        for one, other in pairwise(mine):
            if other.begin < one.last:
                yield f"{path} executed twice at the same time: {one}; {other}"
            if (one.end or {}).get("code") == 0 and not named:
                yield f"{path} succeeded and was executed again: {other}"


def _ends(case: GraphCase) -> Iterator[str]:
    """Check that nothing of the graph executes after its end, and that each end was reported once."""
    over, late = case.graph["ended_at"], "it had ended at {}, and this executed: {}"
    if over is None:
        yield "it has no end"
        return
    for one in case.executions:
        if max(one.begin, one.end or 0.0) > over + CLOCK_S and not case.struck(one):
            yield late.format(clock(over), one)
    of_managers = [one for manager in case.managers.values() for one in manager["processes"]]
    for process in (*case.processes, *of_managers):
        if process.last > over + CLOCK_S:
            yield late.format(clock(over), process)
    for run in (
        *case.runs.values(),
        *(run for manager in case.managers.values() for run in manager["runs"]),
    ):
        if run["status"] not in ("COMPLETED", "FAILED"):
            yield f"it has ended, and its run {run['run_id']} is {run['status']}"
    keys = [key for key, _ in case.events if key is not None]
    if len(set(keys)) != len(keys) or case.graph["attempt"] not in [
        attempt for _, attempt in case.events
    ]:
        yield f"it is in attempt {case.graph['attempt']}, its outcomes were reported as {case.events}"
