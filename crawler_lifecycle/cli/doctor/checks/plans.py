"""Checks the managers that workers of the role ``plans`` offer: which there are, and which cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from crawler_lifecycle.cli.doctor.line import Line, counted
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.compose import build_store
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.ports.managers import PLAN_MANAGER, PlanRow
from crawler_lifecycle.store import read_schema

_SHOWN = 5


def check_plans(context: Context) -> Sequence[Line]:
    """Ask the database what workers have registered. No module of a user is imported here."""
    settings = context.known
    try:
        if read_schema(settings.database.url).problem is not None:
            return []  # told by the check of the database
        return plan_lines(build_store(settings).plans.list_plans(), settings.plans.modules)
    except LifecycleError as error:
        return [Line("plans", "warn", f"the managers that workers offer cannot be read: {error}", "mend the database")]


def plan_lines(plans: Sequence[PlanRow], modules: Sequence[str]) -> list[Line]:
    """A line for each plan that cannot be used, for each module of ours that nobody offers, and one for the rest."""
    broken = [plan for plan in plans if plan.error is not None]
    cure = "mend the module; a worker reads it again by itself"
    lines = [Line("plans", "bad", f"{one.plan} cannot be started: {one.error}", cure) for one in broken[:_SHOWN]]
    if len(broken) > _SHOWN:
        lines.append(Line("plans", "bad", f"and {len(broken) - _SHOWN} more", "GET /v1/plans lists all of them"))
    offered = {plan.plan.partition(":")[0] for plan in plans}
    for module in modules:
        if module not in (*offered, "*"):
            text = f"LIFECYCLE_PLANS__MODULES names {module}, and no worker has it"
            cure = "start a worker of the role plans with this setting; its log says what it found in the module"
            lines.append(Line("plans", "warn", text, cure))
    good = len({plan.plan for plan in plans if plan.kind == PLAN_MANAGER and plan.error is None})
    return lines or [Line("plans", "ok", f"{counted(good, 'manager')} can be started" if good else "none is offered")]
