"""The form that starts a manager from registered user code, with a field for each option. Graphs
use it too.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.projects import chosen, only
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.requests import texts
from crawler_lifecycle.gateway.ui.parts import crawler_fields
from crawler_lifecycle.gateway.ui.parts import forms as fields
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.web.problems import ERRORS_MAX, FieldError, Problem, of_error, refused

from ..domain.manager import BUILT_IN
from ..ports import CODE_GRAPH, CODE_MANAGER, UserCodeRow
from ..store.user_code import UserCodeStore
from . import job_rows
from .commands import NO_WORKER, ManagerCommands
from .options import Option, command_line, options_of, values_of
from .requests import AddJobs, StartManager

#: All options of the built-in manager, with their fields in the API.
_EACH = {
    "spider": "crawler",
    "--spider-args": "args",
    "--job-settings": "settings",
    "--max-running-jobs": "max_running",
    "--max-per-key": "max_per_key",
    "--retries": "retries",
    "--retry-delay": "retry_delay_s",
    "--pool": "pool",
    "--version": "version",
}
_COMMON = ("key", "plan", "name", "tags", "project")


@dataclass(frozen=True)
class Beginning(ABC):
    """A form that starts a manager or a graph."""

    kind: ClassVar[str]
    """The kind of user code that the form starts."""
    own: ClassVar[tuple[str, ...]]
    """The fields that only this form has, besides those of options."""
    places: ClassVar[Mapping[str, str]]
    """The field of this form for each field in errors of the API."""
    unplanned: ClassVar[tuple[str, ...]] = ()
    """Choices without a class, which start something from steps as JSON."""
    user_code: UserCodeStore

    def registered(self) -> tuple[dict[str, UserCodeRow], list[UserCodeRow], str | None]:
        """Return the user code that can be started, by name, the code that cannot, and a note about
        workers. This blocks.
        """
        rows = self.user_code.list_user_code()
        own = [row for row in rows if row.kind == self.kind]
        bad = [row for row in rows if row.error is not None and row.kind != CODE_GRAPH]
        # If a class has several versions, the newest comes first.
        good = {row.plan: row for row in reversed(own) if row.error is None}
        return dict(sorted(good.items())), bad, None if rows else NO_WORKER

    async def fields(self, plan: UserCodeRow) -> list[Option]:
        """Return the fields for the options of a class.

        The form has a separate field for the flow id.
        """
        return [option for option in options_of(plan) if option.name != "--flow-id"]

    def has_field(self, name: str) -> bool:
        """Return whether the form can have this field, in addition to its own fields and those of
        the options.
        """
        return False

    async def mistakes(self, given: Mapping[str, str]) -> list[FieldError]:
        """Return errors that ``start`` may not find, because it ends at an earlier one."""
        return []

    async def more_values(
        self, plan: UserCodeRow | None, given: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return further values for the template."""
        return {"each": False, "wrong": None}

    @abstractmethod
    async def start(
        self, plan: UserCodeRow | None, options: Sequence[Option], given: Mapping[str, str]
    ) -> str:
        """Start what the form describes, and return the address of its page."""

    def add(self, app: FastAPI, noun: str, **first: str) -> None:
        """Add the routes that show and receive the form. ``first`` are the values of an empty
        form.
        """

        @app.get(f"/start/{noun}", operation_id=f"showStart{noun.capitalize()}")
        async def show(request: Request, plan: str = "") -> Response:
            """Show the form."""
            return await self.shown(request, {"plan": plan, **first})

        @app.post(f"/start/{noun}", operation_id=f"pressStart{noun.capitalize()}")
        async def press(request: Request) -> Response:
            """Start what the form describes, and redirect to its page. A form that is sent again
            starts nothing twice.
            """
            return await self.pressed(request)

    async def pressed(self, request: Request) -> Response:
        """Receive the form. Redirect to the new page, or show the form again with its errors."""
        pairs = await fields.form(request)
        options = [name for name, _ in pairs if name.startswith("opt-")]
        more = [name for name, _ in pairs if self.has_field(name)]
        given = fields.typed(pairs, [*_COMMON, *self.own, *options, *more])
        if "show" in given:
            present_call().admitted = False  # nothing is started
            return await self.shown(request, job_rows.pressed(given))

        async def started() -> str:
            if not re.fullmatch("[0-9a-f]{32}", given.get("key", "")):
                raise refused("key", "missing; load the form again")
            known, _, _ = await run_in_threadpool(self.registered)
            plan = known.get(given.get("plan", ""))
            if plan is None and given.get("plan") not in self.unplanned:
                raise refused(
                    "plan", "this is no longer registered by any worker; choose another one"
                )
            own = await self.fields(plan) if plan is not None else []
            for name in filter(given.__contains__, options):
                if name not in [option.field for option in own]:
                    raise refused(
                        name,
                        f"{name.removeprefix('opt-')}: this option is gone; load the form again",
                    )
            return await self.start(plan, own, given)

        async def again(problem: Problem) -> Response:
            problem.errors += await self.mistakes(given)
            return await self.shown(request, given, problem)

        return await fields.sent(started, again)

    async def shown(
        self, request: Request, given: Mapping[str, str], problem: Problem | None = None
    ) -> Response:
        """Show the form with these values, and with the errors of ``problem``."""
        known, bad, note = await run_in_threadpool(self.registered)
        plan = known.get(given.get("plan", ""))
        key = fields.next_key(given, problem)
        values: dict[str, Any] = {
            "kind": self.kind,
            "known": known,
            "bad": bad,
            "note": note,
            "plan": plan,
            "given": given,
            "options": await self.fields(plan) if plan else [],
            "as_json": given.get("plan") in self.unplanned,
        }
        places = {name: name for name in _COMMON} | {"Idempotency-Key": "key", **self.places}
        places |= {value.field: value.field for value in values["options"]}
        rest = "steps" if values["as_json"] else "plan"
        values |= await self.more_values(plan, given)
        if problem is not None:
            values["wrong"] = fields.placed(problem, places, ("options",), rest)
        values |= {"key": key, "everywhere": only() is None}
        return answer(request, "begin.html", status=problem.status if problem else 200, **values)


@dataclass(frozen=True)
class ManagerBeginning(Beginning):
    """The form that starts a manager."""

    kind = CODE_MANAGER
    own = ("flow_id", "jobs", "seal", "rows", "show")
    places: ClassVar = {
        "flow_id": "flow_id",
        "jobs": "jobs",
        **{f"job{number}": f"job{number}." for number in range(1, job_rows.ROWS_MAX + 1)},
        "crawler": "opt-spider",
        "version": "opt---version",
        **{f"options.{field}": f"opt-{name}" for name, field in _EACH.items()},
    }
    commands: ManagerCommands
    versions: crawler_fields.Versions

    async def fields(self, plan: UserCodeRow) -> list[Option]:
        pools = await run_in_threadpool(self.commands.managers.known_pools)
        named = sorted(pools.named) if pools.counted else []
        options = [
            replace(option, choices=named) if option.name == "--pool" and named else option
            for option in await super().fields(plan)
            if option.name != "name"  # the form has a separate field for it
        ]
        if plan.plan != BUILT_IN:
            return options
        known, _ = await self.commands.crawlers.last()
        options = [option for option in options if option.name in _EACH]
        return [
            replace(option, choices=sorted(known)) if option.name == "spider" else option
            for option in options
        ]

    def has_field(self, name: str) -> bool:
        return job_rows.is_field(name)

    async def mistakes(self, given: Mapping[str, str]) -> list[FieldError]:
        """Return the errors in all jobs."""
        if given.get("plan") != BUILT_IN:
            return []
        found = fields.mistakes(partial(fields.objects, "jobs", given.get("jobs", "")))
        known, _ = await self.commands.crawlers.last()
        crawler = known.get(given.get("opt-spider", "").strip())
        if crawler is None:
            return found
        common: dict[str, str] = {}
        with suppress(Problem):  # the field of these arguments then has its own error
            text = given.get("opt---spider-args", "{}")
            common = texts(fields.read_json("opt---spider-args", text, dict, "give an object"))
        return found + job_rows.mistakes(crawler, common, given)

    async def more_values(
        self, plan: UserCodeRow | None, given: Mapping[str, str]
    ) -> dict[str, Any]:
        known, away = await self.commands.crawlers.last()
        is_built_in = plan is not None and plan.plan == BUILT_IN
        crawler = known.get(given.get("opt-spider", "").strip())
        return {
            "each": is_built_in,
            "crawlers": sorted(known),
            "crawler": crawler,
            "wrong": crawler_fields.hint(known, away, given, "opt-spider"),
            "versions": await crawler_fields.version_choices(self.versions, crawler),
            "rows": job_rows.row_count(given),
            "rows_max": job_rows.ROWS_MAX,
        }

    async def start(
        self, plan: UserCodeRow | None, options: Sequence[Option], given: Mapping[str, str]
    ) -> str:
        assert plan is not None
        values = values_of(options, given)
        places = list[str]()
        body = common(given) | ({"flow_id": given["flow_id"].strip()} if "flow_id" in given else {})
        if plan.plan == BUILT_IN:
            own = {_EACH[name]: value for name, value in values.items()}
            body |= {"crawler": own.pop("crawler")}
            if "max_per_key" in own:
                own["max_per_key"] = {
                    name: fields.whole(number)
                    for name, number in fields.assignments(
                        "opt---max-per-key", own["max_per_key"]
                    ).items()
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
            started = (await self.commands.start(signed(asked), given["key"])).row
        except (Problem, LifecycleError) as error:
            raise _placed(of_error(error), places) from None
        if jobs is not None:
            await self.commands.add_jobs(started.manager_id, jobs, given["key"])
        return f"/managers/{started.manager_id}"

    async def _jobs(self, asked: StartManager, given: Mapping[str, str]) -> AddJobs | None:
        """Check all jobs in the form, then return them, so that no manager begins with only some
        of them.
        """
        if wrong := await self.mistakes(given):
            detail = "; ".join(f"{error.field}: {error.message}" for error in wrong)
            raise Problem(422, "invalid_request", detail, errors=wrong[:ERRORS_MAX])
        args = [
            *job_rows.args_of_rows(given).values(),
            *fields.objects("jobs", given.get("jobs", "")),
        ]
        rows = [{"spider_args": own} for own in args]
        if not rows and "seal" not in given:
            return None
        body = fields.validated(AddJobs, {"jobs": rows, "seal": "seal" in given})
        body.check()
        await self.commands.checked_jobs(
            BUILT_IN, {"argv": asked.command_line()}, chosen(asked.project), body
        )
        return body


def add_beginning(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that show and receive the form."""
    versions = gateway.crawler_versions.of_crawler
    form = ManagerBeginning(gateway.store.user_code, gateway.manager_commands, versions)
    form.add(app, "manager", seal="yes")


def common(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a body that managers and graphs have in common."""
    body = {name: given[name].strip() for name in ("name", "project") if name in given}
    return body | {"tags": fields.parts(given.get("tags", ""))}


def _placed(problem: Problem, places: Sequence[str]) -> Problem:
    """Return the problem, in which each error about a word of the command line names the field of
    that word.
    """
    for error in problem.errors:
        word = re.match(r"argv\[(\d+)\]", error.field)
        if word and int(word[1]) < len(places):
            error.field = places[int(word[1])]
    return problem
