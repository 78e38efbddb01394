"""The forms that start managers and graphs: what a worker has registered, with a field for each of its options."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.projects import chosen, only
from crawler_lifecycle.domain.values import to_json
from crawler_lifecycle.features.graphs.gateway.commands import GraphCommands, StartGraph
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.features.managers.gateway.commands import NO_WORKER, ManagerCommands
from crawler_lifecycle.features.managers.gateway.requests import AddJobs, StartManager
from crawler_lifecycle.features.managers.ports import PLAN_GRAPH, PLAN_MANAGER, PlanRow
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.page.parts import forms as fields
from crawler_lifecycle.gateway.page.parts.options import Option, command_line, options_of, values_of
from crawler_lifecycle.gateway.page.parts.rendering import answer
from crawler_lifecycle.web.problems import Problem, of_error, refused
from crawler_lifecycle.web.turns import in_turn, turn

#: The choice of a graph that is sent as JSON.
AS_JSON = "json"
#: Options of the built-in manager, with the fields of the API. It has no others.
_EACH = {
    **{"spider": "crawler", "--spider-args": "args", "--job-settings": "settings", "--max-running-jobs": "max_running"},
    **{"--max-per-key": "max_per_key", "--retries": "retries", "--retry-delay": "retry_delay_s", "--pool": "pool"},
}
_PLACES = {
    **{name: name for name in ("plan", "name", "flow_id", "id", "tags", "project", "jobs", "steps", "context", "key")},
    **{"Idempotency-Key": "key", "options.max_parallel": "max_parallel", "options.fail_fast": "fail_fast"},
    **{"crawler": "opt-spider"},
    **{f"options.{field}": f"opt-{name}" for name, field in _EACH.items()},
}
_COMMON = ("key", "plan", "name", "tags", "project")
_OWN = {"manager": ("flow_id", "jobs", "seal"), "graph": ("id", "max_parallel", "fail_fast", "steps", "context")}


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Starts managers and graphs for the forms."""

    managers: ManagerCommands
    graphs: GraphCommands

    def plans(self, kind: str) -> tuple[dict[str, PlanRow], list[PlanRow], str | None]:
        """Return the plans that can be started by name, those that cannot, and a note about workers. Blocks."""
        rows = self.managers.plans.list_plans()
        own = [row for row in rows if row.kind == kind]
        bad = [row for row in rows if row.error is not None and row.kind != PLAN_GRAPH]
        # Of several versions of a plan, the newest is first.
        good = {row.plan: row for row in reversed(own) if row.error is None}
        return dict(sorted(good.items())), bad, None if rows else NO_WORKER

    async def fields(self, plan: PlanRow) -> list[Option]:
        """Return the fields for the options of a plan. The form has other fields for name and flow id."""
        own = ("--flow-id", "name") if plan.kind == PLAN_MANAGER else ("--flow-id",)
        options = [one for one in options_of(plan) if one.name not in own]
        if plan.kind == PLAN_MANAGER:
            pools = self.managers.managers.known_pools
            named = sorted(pools.named) if pools.counted else []
            options = [
                replace(option, choices=named) if option.name == "--pool" and named else option for option in options
            ]
        if plan.plan != BUILT_IN:
            return options
        known, _ = await self.managers.crawlers.last()
        options = [option for option in options if option.name in _EACH]
        return [replace(option, choices=sorted(known)) if option.name == "spider" else option for option in options]

    async def manager(self, plan: PlanRow, options: Sequence[Option], given: Mapping[str, str]) -> str:
        """Start a manager, and return the address of its page."""
        values = values_of(options, given)
        places = list[str]()
        body = _common(given) | ({"flow_id": given["flow_id"].strip()} if "flow_id" in given else {})
        if plan.plan == BUILT_IN:
            own = {_EACH[name]: value for name, value in values.items()}
            body |= {"crawler": own.pop("crawler")}
            if "max_per_key" in own:
                own["max_per_key"] = {
                    name: fields.whole(number)
                    for name, number in fields.assignments("opt---max-per-key", own["max_per_key"]).items()
                }
            body["options"] = own
        else:
            named = any(option.get("name") == "name" for option in plan.options)
            if named and "name" not in body:
                raise refused("name", "missing; this class needs one")
            words = [(body["name"], "name")] if named else []
            words += command_line(options, values)
            places = [place for _, place in words]
            body |= {"plan": plan.plan, "argv": [word for word, _ in words]}
        try:
            asked = fields.validated(StartManager, body)
            asked.check()
            jobs = await self._jobs(asked, given) if plan.plan == BUILT_IN else None
            started = (await self.managers.start(signed(asked), given["key"])).row
        except (Problem, LifecycleError) as error:
            raise _placed(of_error(error), places) from None
        if jobs is not None:
            await self.managers.add_jobs(started.manager_id, jobs, given["key"])
        return f"/managers/{started.manager_id}"

    async def _jobs(self, asked: StartManager, given: Mapping[str, str]) -> AddJobs | None:
        """Return the jobs of the form after all checks, so that no manager begins with only a part of them."""
        rows = [{"spider_args": args} for args in fields.objects("jobs", given.get("jobs", ""))]
        if not rows and "seal" not in given:
            return None
        body = fields.validated(AddJobs, {"jobs": rows, "seal": "seal" in given})
        body.check()
        await self.managers.checked_jobs(BUILT_IN, {"argv": asked.command_line()}, chosen(asked.project), body)
        return body

    async def graph(self, plan: PlanRow | None, options: Sequence[Option], given: Mapping[str, str]) -> str:
        """Start a graph, and return the address of its page. Its only step calls the function that builds the rest."""
        body = _common(given) | ({"id": given["id"]} if "id" in given else {})
        if plan is None:
            cure = "give a JSON list of steps"
            steps = given.get("steps", "")
            body["steps"] = await in_turn(len(steps), fields.read_json, "steps", steps, list, cure)
            if (context := given.get("context")) is not None:
                cure = 'give a JSON object, such as {"day": 1}'
                body["context"] = await in_turn(len(context), fields.read_json, "context", context, dict, cure)
        else:
            name = plan.plan.rpartition(":")[2]
            args = to_json(values_of(options, given), "args")
            job = {"call": plan.plan, "style": "plain", "args": args}
            step = {"path": name, "kind": "function", "job": job, "graft": True, "queue": plan.queue}
            body = {"name": name, **body, "steps": [step]}
        body["options"] = {"fail_fast": "fail_fast" in given}
        body["options"] |= {"max_parallel": fields.whole(given["max_parallel"])} if "max_parallel" in given else {}
        async with turn():
            started = (await self.graphs.start(signed(fields.validated(StartGraph, body)), given["key"])).row
        return f"/graphs/{quote(started.key, safe='')}"


def add_beginnings(app: FastAPI, managers: ManagerCommands, graphs: GraphCommands) -> None:
    """Add the routes that show and receive the forms."""
    own = Beginnings(managers, graphs)

    @app.get("/start/manager", operation_id="showStartManager")
    async def show_manager(request: Request, plan: str = "") -> Response:
        """Show the form that starts a manager."""
        return await _shown(own, request, PLAN_MANAGER, {"plan": plan, "seal": "yes"})

    @app.post("/start/manager", operation_id="pressStartManager")
    async def press_manager(request: Request) -> Response:
        """Start a manager and redirect to its page. A form that is sent again starts no second one."""
        return await _pressed(own, request, PLAN_MANAGER)

    @app.get("/start/graph", operation_id="showStartGraph")
    async def show_graph(request: Request, plan: str = "") -> Response:
        """Show the form that starts a graph."""
        return await _shown(own, request, PLAN_GRAPH, {"plan": plan})

    @app.post("/start/graph", operation_id="pressStartGraph")
    async def press_graph(request: Request) -> Response:
        """Start a graph and redirect to its page. A form that is sent again starts no second one."""
        return await _pressed(own, request, PLAN_GRAPH)


async def _pressed(own: Beginnings, request: Request, kind: str) -> Response:
    pairs = await fields.form(request)
    options = [name for name, _ in pairs if name.startswith("opt-")]
    given = fields.typed(pairs, [*_COMMON, *_OWN[kind], *options])

    async def started() -> str:
        if not re.fullmatch("[0-9a-f]{32}", given.get("key", "")):
            raise refused("key", "missing; load the form again")
        plan = (await run_in_threadpool(own.plans, kind))[0].get(given.get("plan", ""))
        if plan is None and (kind != PLAN_GRAPH or given.get("plan") != AS_JSON):
            raise refused("plan", "no worker has registered this now; choose another one")
        known = await own.fields(plan) if plan is not None else []
        for name in filter(given.__contains__, options):
            if name not in [one.field for one in known]:
                raise refused(
                    name, f"{name.removeprefix('opt-')}: there is no such option any more; load the form again"
                )
        if kind == PLAN_GRAPH:
            return await own.graph(plan, known, given)
        assert plan is not None
        return await own.manager(plan, known, given)

    async def again(problem: Problem) -> Response:
        return await _shown(own, request, kind, given, problem)

    return await fields.sent(started, again)


async def _shown(
    own: Beginnings, request: Request, kind: str, given: Mapping[str, str], problem: Problem | None = None
) -> Response:
    known, bad, note = await run_in_threadpool(own.plans, kind)
    plan = known.get(given.get("plan", ""))
    values: dict[str, Any] = {"kind": kind, "known": known, "bad": bad, "note": note, "plan": plan, "given": given}
    values |= {"options": await own.fields(plan) if plan else [], "each": plan is not None and plan.plan == BUILT_IN}
    values["as_json"] = kind == PLAN_GRAPH and given.get("plan") == AS_JSON
    places = _PLACES | {value.field: value.field for value in values["options"]}
    rest = "steps" if values["as_json"] else "plan"
    values["wrong"] = problem and fields.placed(problem, places, ("options",), rest)
    # A refused form keeps its key: it started nothing, and a double click still starts only one. But if the key has
    # started something with other values, the next press is meant as a new start.
    keep = given.get("key") if problem is None or problem.code != "idempotency_mismatch" else None
    values |= {"key": keep or uuid.uuid4().hex, "everywhere": only() is None}
    return answer(request, "begin.html", status=problem.status if problem else 200, **values)


def _common(given: Mapping[str, str]) -> dict[str, Any]:
    body = {name: given[name].strip() for name in ("name", "project") if name in given}
    return body | {"tags": fields.parts(given.get("tags", ""))}


def _placed(problem: Problem, places: Sequence[str]) -> Problem:
    """Return the problem, in which each error about a word of the command line names the field of this word."""
    for error in problem.errors:
        word = re.match(r"argv\[(\d+)\]", error.field)
        if word and int(word[1]) < len(places):
            error.field = places[int(word[1])]
    return problem
