"""The form that starts a graph, with a field for each parameter of a function that builds it, or
with its steps as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote

from fastapi import FastAPI

from crawler_lifecycle.domain.values import to_json
from crawler_lifecycle.features.managers.gateway.beginning import Beginning, common
from crawler_lifecycle.features.managers.gateway.options import Option, values_of
from crawler_lifecycle.features.managers.ports import CODE_GRAPH, UserCodeRow
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts import forms as fields
from crawler_lifecycle.web.turns import in_turn, turn

from .commands import GraphCommands, StartGraph


@dataclass(frozen=True)
class GraphBeginning(Beginning):
    """The form that starts a graph whose only step calls the function that builds the rest."""

    kind = CODE_GRAPH
    own = ("id", "max_parallel", "fail_fast", "steps", "context")
    places: ClassVar = {
        "id": "id",
        "steps": "steps",
        "context": "context",
        "options.max_parallel": "max_parallel",
        "options.fail_fast": "fail_fast",
    }
    unplanned = ("json",)
    commands: GraphCommands

    async def start(
        self, plan: UserCodeRow | None, options: Sequence[Option], given: Mapping[str, str]
    ) -> str:
        body = common(given) | ({"id": given["id"]} if "id" in given else {})
        if plan is None:
            fix = "give a JSON list of steps"
            steps = given.get("steps", "")
            body["steps"] = await in_turn(len(steps), fields.read_json, "steps", steps, list, fix)
            if (context := given.get("context")) is not None:
                fix = 'give a JSON object, such as {"day": 1}'
                body["context"] = await in_turn(
                    len(context), fields.read_json, "context", context, dict, fix
                )
        else:
            name = plan.plan.rpartition(":")[2]
            args = to_json(values_of(options, given), "args")
            job = {"call": plan.plan, "style": "plain", "args": args}
            step = {
                "path": name,
                "kind": "function",
                "job": job,
                "graft": True,
                "queue": plan.queue,
            }
            body = {"name": name, **body, "steps": [step]}
        body["options"] = {"fail_fast": "fail_fast" in given}
        if "max_parallel" in given:
            body["options"]["max_parallel"] = fields.whole(given["max_parallel"])
        async with turn():
            started = (
                await self.commands.start(signed(fields.validated(StartGraph, body)), given["key"])
            ).row
        return f"/graphs/{quote(started.key, safe='')}"


def add_beginning(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that show and receive the form."""
    GraphBeginning(gateway.store.user_code, gateway.graph_commands).add(app, "graph")
