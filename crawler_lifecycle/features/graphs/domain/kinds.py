"""The kinds of steps, and a table with all their differences. All other code uses this table, and
no other code names a kind.

Two more tables have the same keys. These tables describe the work that a kind starts outside of the
graph: ``store.unrecorded.RUNS`` and ``activities.graphs.RUN_STEPS``. ``activities.starting`` checks
steps against the workers' code and the catalogue.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from crawler_lifecycle.domain.bounds import Bound, check_number, check_text, refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import check_tags
from crawler_lifecycle.domain.unknown import advise
from crawler_lifecycle.domain.values import NoValue, of_json

from .spec import NAME_MAX, StepKind

STYLES = ("plain", "worker", "cascade", "item")
#: The maximum number of seconds for which an approval waits.
APPROVAL_TIMEOUT = Bound(0, 366 * 86_400, "seconds", above=True, or_none=True)

_CALL = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_OF_MANAGER = (
    (
        "name",
        re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII),
        "at most 63 letters, digits and _ . -",
    ),
    (
        "flow_id",
        re.compile(r"[!-.0-~]{1,120}"),
        "at most 120 ASCII characters without spaces and slashes",
    ),
)

Job = Mapping[str, Any]


class StepBeginner(Protocol):
    """The current pick of the engine, for the rules of a kind.

    Each method begins the step with this number if there is capacity.
    """

    def call(self, number: int) -> None:
        """Put the step into a call of functions."""

    def start(self, number: int) -> None:
        """Let the step execute; the workflow then starts its run or manager."""

    def ask(self, number: int, what: str, verb: str) -> None:
        """Let the step execute until ``crawlctl graph VERB`` ends it.

        ``what`` describes what the step waits for.
        """


@dataclass(frozen=True, slots=True)
class StepRules:
    """The rules for one kind of step."""

    check: Callable[[str, Job], None]
    """Raises ``InvalidRequest`` unless a step may have this job. The first argument is the string
    with which the messages begin.
    """
    label: Callable[[Job], str]
    """Returns the name of the work in pictures."""
    begin: Callable[[StepBeginner, int], None] | None = None
    """Begins a step that may start. ``None`` for a step that only contains other steps."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """The options that a step of this kind cannot have, with the fix for each."""
    called: bool = False
    """True if user-code workers execute the step in calls."""
    run: str | None = None
    """The kind of work that the step starts outside of the graph and waits for, or ``None``."""
    brings_items: bool = False
    """True if the step's run has items, counters and an archive, and a fresh retry starts a new
    run.
    """
    takes_slot: bool = True
    """True if the step uses a slot of ``max_parallel`` while it is executing, and may still be
    executing after it was cancelled.
    """
    limit: Callable[[Job], float | None] = lambda job: None
    """Returns the seconds after which the graph itself ends the step, or ``None`` if the graph
    never ends the step.
    """

    @property
    def counts_as_run(self) -> bool:
        """True if the step starts a run or a manager, which must be stopped when the step is
        cancelled.
        """
        return self.run is not None


# --- checks of jobs -------------------------------------------------------------------------------


def check_call(where: str, call: object) -> None:
    """Raise ``InvalidRequest`` unless another process can import this name."""
    if isinstance(call, str) and ("<lambda>" in call or "<locals>" in call):
        raise refusal(
            where,
            call,
            "name a function of a module; lambdas and nested functions have no name",
        )
    if not isinstance(call, str) or len(call) > 500 or not _CALL.fullmatch(call):
        raise refusal(where, call, 'give "module:function", such as "shop.steps:merge"')


def check_objects(where: str, job: Job, fields: Iterable[str]) -> None:
    """Raise ``InvalidRequest`` unless these fields are missing or objects."""
    for name in fields:
        if not isinstance(job.get(name, {}), dict) or not isinstance(
            _value(where, job, name), dict
        ):
            raise refusal(f"{where}: {name}", job[name], "give an object with names and values")


def _value(where: str, job: Job, name: str) -> Any:
    """Return the value that the step's code receives for a field of its job."""
    try:
        return of_json(job.get(name, {}))
    except NoValue as error:
        raise InvalidRequest(f"{where}: {name}: {error}") from None


def _check_fields(where: str, job: Job, fields: Sequence[str]) -> None:
    for name in job:
        if name not in fields:
            raise refusal(
                f"{where}: {name}", job[name], f"this field does not exist; {advise(name, fields)}"
            )


def _check_function(where: str, job: Job) -> None:
    check_call(f"{where}: call", job.get("call"))
    if job.get("style", "plain") not in STYLES:
        raise refusal(f"{where}: style", job["style"], f"give one of {', '.join(STYLES)}")
    _check_fields(where, job, ("call", "style", "args", "item", "label", "meta", "record"))
    if not isinstance(job.get("record", True), bool):
        raise refusal(
            f"{where}: record",
            job["record"],
            "give true to keep its return value, or false",
        )
    check_objects(where, job, ("args", "meta"))
    _value(where, job, "item")


def _check_crawl(where: str, job: Job) -> None:
    check_text(f"{where}: crawler", job.get("crawler"), NAME_MAX, needed=True)
    for name in ("run_id", "request_id", "parent", "project"):
        if name in job:
            raise refusal(
                f"{where}: {name}", job[name], "leave it out: the graph gives its crawls their own"
            )


def _check_manager(where: str, job: Job) -> None:
    check_text(f"{where}: plan", job.get("plan"), NAME_MAX, needed=True)
    for name, pattern, fix in _OF_MANAGER:
        if name in job and not (isinstance(job[name], str) and pattern.fullmatch(job[name])):
            raise refusal(f"{where}: {name}", job[name], f"give {fix}, or leave it out")
    if not isinstance(job.get("options", {}), dict):
        raise refusal(f"{where}: options", job["options"], "give an object")
    tags = job.get("tags", [])
    if not isinstance(tags, list):
        raise refusal(f"{where}: tags", tags, "give a list of strings")
    check_tags(f"{where}: tags", tags)


def _check_graph(where: str, job: Job) -> None:
    _check_fields(where, job, ("context", "name", "label", "fan_out"))
    check_objects(where, job, ("context",))


def _check_approval(where: str, job: Job) -> None:
    _check_fields(where, job, ("timeout_s",))
    check_number(f"{where}: timeout_s", job.get("timeout_s"), APPROVAL_TIMEOUT)


# --- the table ------------------------------------------------------------------------------------


def _last_name(job: Job, name: str) -> str:
    return str(job.get("label") or re.split(r"[:.]", str(job.get(name) or ""))[-1])


_NO_GROUP = {"max_parallel": "set it on a group or a sub-graph"}
_NO_GRAFT = {"graft": "only a function or a worker may graft"}
_IN_IT = dict.fromkeys(("resources", "not_before"), "set it on the steps in it")
_ASKED = {
    "resources": "an approval executes nothing; set them on the steps after it",
    "timeout_s": "give its limit with the job, as in approval(timeout=3600)",
    "max_attempts": "an approval is decided once; retry the step to ask again",
}

STEP_RULES: Mapping[StepKind, StepRules] = {
    StepKind.FUNCTION: StepRules(
        check=_check_function,
        label=lambda job: _last_name(job, "call"),
        begin=lambda pick, number: pick.call(number),
        refuses=_NO_GROUP,
        called=True,
    ),
    StepKind.CRAWL: StepRules(
        check=_check_crawl,
        label=lambda job: str(job.get("label") or job.get("crawler") or ""),
        begin=lambda pick, number: pick.start(number),
        refuses=_NO_GROUP | _NO_GRAFT,
        run="run",
        brings_items=True,
    ),
    StepKind.MANAGER: StepRules(
        check=_check_manager,
        label=lambda job: _last_name(job, "plan"),
        begin=lambda pick, number: pick.start(number),
        refuses=_NO_GROUP | _NO_GRAFT,
        run="manager",
    ),
    StepKind.GRAPH: StepRules(
        check=_check_graph,
        label=lambda job: str(job.get("label") or ""),
        refuses=_NO_GRAFT | _IN_IT,
        takes_slot=False,
    ),
    StepKind.APPROVAL: StepRules(
        check=_check_approval,
        label=lambda job: "approval",
        begin=lambda pick, number: pick.ask(number, "an approval", "approve"),
        refuses=_NO_GROUP | _NO_GRAFT | _ASKED,
        takes_slot=False,
        limit=lambda job: None if job.get("timeout_s") is None else float(job["timeout_s"]),
    ),
}

#: The kinds of steps that only contain other steps.
CONTAINING = frozenset(kind for kind, rules in STEP_RULES.items() if rules.begin is None)


def asks_for(what: str, until: str, verb: str, key: str, path: str) -> str:
    """Return the sentence about a step that is waiting for a command from a person."""
    command = f"crawlctl graph {verb} {shlex.quote(key)} {shlex.quote(path)}"
    return f"it is waiting for {what}{until}: {command}"
