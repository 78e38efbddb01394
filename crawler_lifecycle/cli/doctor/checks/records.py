"""Checks that read the database: plans of workers, webhooks, schedules, pools, overdue looks, run ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.cli.admin.run_numbers import sources
from crawler_lifecycle.cli.doctor.report import Check, Context, Line, bad, counted, ok, warn
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.compose import build_store
from crawler_lifecycle.domain.audits.overdue import overdue_before, overdue_words
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError
from crawler_lifecycle.domain.pools import Pools
from crawler_lifecycle.domain.webhooks.addresses import WebhookRules
from crawler_lifecycle.domain.webhooks.definition import WEBHOOKS_MAX, WebhookSpec, cure
from crawler_lifecycle.ports.managers import PLAN_MANAGER, PlanRow
from crawler_lifecycle.ports.pools import PoolRow
from crawler_lifecycle.ports.schedules import UNTOLD
from crawler_lifecycle.ports.webhooks import WebhookRow
from crawler_lifecycle.settings import Settings
from crawler_lifecycle.store import StoreDamaged, read_schema
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.worker.run_numbers import ask, bring_forward

_PLANS_SHOWN = 5
_RESTORED = "see docs/operations-database.md, The database was restored; crawlctl audit lists tasks without a row"


def plans(store: Store, context: Context) -> list[Line]:
    """Check the plans that workers have registered. This imports no module of a user."""
    return plan_lines(store.plans.list_plans(), context.known.plans.modules)


def plan_lines(rows: Sequence[PlanRow], modules: Sequence[str]) -> list[Line]:
    """Return findings about plans with errors and about modules of our settings that no worker has."""
    broken = [plan for plan in rows if plan.error is not None]
    mend = "correct the module; a worker reads it again by itself"
    lines = [bad("plans", f"{one.plan} cannot be started: {one.error}", mend) for one in broken[:_PLANS_SHOWN]]
    if len(broken) > _PLANS_SHOWN:
        lines.append(bad("plans", f"{len(broken) - _PLANS_SHOWN} more cannot be started", "see GET /v1/plans"))
    offered = {plan.plan.partition(":")[0] for plan in rows}
    start = "start a worker of the role plans with this setting; its log shows what it found in the module"
    lines += [
        warn("plans", f"LIFECYCLE_PLANS__MODULES has {module}, but no worker offers it", start)
        for module in modules
        if module not in (*offered, "*")
    ]
    good = len({plan.plan for plan in rows if plan.kind == PLAN_MANAGER and plan.error is None})
    return lines or [ok("plans", f"{counted(good, 'manager')} can be started" if good else "no worker offers any")]


def webhooks(store: Store, context: Context) -> list[Line]:
    """Check the state of webhooks. This calls no receiver."""
    return webhook_lines(store.webhooks.list_webhooks(0, WEBHOOKS_MAX), context.known.webhooks.rules)


def webhook_lines(rows: Sequence[WebhookRow], rules: WebhookRules) -> list[Line]:
    """Return a finding for each webhook that is paused, fails or is not allowed, or one finding that all is well."""
    lines = []
    for row in rows:
        try:
            rules.check(WebhookSpec.read(row.definition))
        except InvalidRequest as error:
            lines.append(bad("webhooks", f"{row.name} gets no events: {error}", f"crawlctl webhook update {row.name}"))
        if row.paused_at is not None:
            text = f"{row.name} has been paused since {row.paused_at:%Y-%m-%d %H:%M} UTC: {row.pause_reason}"
        elif row.failing_since is not None:
            since = f"{row.failing_since:%Y-%m-%d %H:%M} UTC, and will be paused a day later"
            text = f"{row.name} has failed with event {row.through_seq + 1} since {since}: {row.error}"
        else:
            continue
        lines.append(warn("webhooks", text, cure(row.name, row.through_seq, fails=row.failing_since is not None)))
    return lines or [ok("webhooks", f"{counted(len(rows), 'webhook')}, none fails or is paused")]


def schedules(store: Store, context: Context) -> list[Line]:
    """Check that Temporal has the present definitions of all schedules."""
    found = store.schedules.count_schedules(utc_now() - UNTOLD)
    if found.untold:
        text = f"{counted(found.untold, 'schedule')} changed more than ten minutes ago, but Temporal is not updated"
        audit = "start a worker of the role audit; its /readyz (schedules) and its log show why an update fails"
        return [bad("schedules", text, audit)]
    known = found.active + found.paused
    return [ok("schedules", f"{counted(found.active, 'schedule')} active, {found.paused} paused")] if known else []


def pools(store: Store, context: Context) -> list[Line]:
    """Check that the settings have the pools of runs and of crawlers."""
    crawlers: Sequence[CrawlerDefinition] = ()
    with suppress(LifecycleError):  # the check of the catalogue reports it
        crawlers = _catalogue(context.known)
    return pool_lines(store.pools.list_pools(), store.pools.known_pools, crawlers)


def _catalogue(settings: Settings) -> list[CrawlerDefinition]:
    files = filter(None, (settings.crawlers, settings.more_crawlers))
    return [crawler for path in files if path.exists() for crawler in load(path, settings.owned)]


def pool_lines(rows: Sequence[PoolRow], known: Pools, crawlers: Sequence[CrawlerDefinition]) -> list[Line]:
    """Return a finding for each pool that the settings do not have, or one finding about their use."""
    cure = "add the pool to LIFECYCLE_POOLS of all processes"
    lines = [
        warn("pools", row.problem, "correct LIFECYCLE_POOLS of all processes")
        for row in rows
        if row.problem is not None
    ]
    for crawler in crawlers:
        try:
            known.check(crawler.pool)
        except InvalidRequest as error:
            text = f"crawler {crawler.name} cannot be started: {error}"
            lines.append(bad("pools", text, f"{cure}, or change the entry of the crawler"))
    if lines or not known.counted:
        return lines
    waiting = sum(row.waiting_tasks for row in rows)
    used = ", ".join(f"{row.name} {row.in_use}{'' if row.max is None else f' of {row.max}'}" for row in rows)
    return [ok("pools", f"places in use: {used}; {counted(waiting, 'task')} waiting")]


def truth(store: Store, context: Context) -> list[Line]:
    """Check that no look is overdue and no workflow is lost."""
    now = utc_now()
    wrong = overdue_words(store.overdue.overdue_looks(overdue_before(now)), now)
    audit = "a worker of the role audit repairs this within a minute: start one, or read in its log why it fails"
    return [bad("truth", wrong, audit) if wrong else ok("truth", "no look is overdue, and no workflow is missing")]


def numbers(store: Store, context: Context) -> list[Line]:
    """Check that workflows and the cluster use no run id above the database's; with ``--fix`` raise its counter."""
    asked, limit_s = sources(context.known, context.call_s), context.limit_s * 0.8
    newest = store.run_numbers.newest_run_id()
    known = bring_forward(store.run_numbers, asked, limit_s) if context.fix else ask(asked, newest, limit_s)
    again = "correct this: a restored database could use these ids again; each worker asks at its start"
    lines = [
        warn("numbers", f"the run ids that {name} uses are not known: {text}", again)
        for name, text in sorted(known.troubles.items())
    ]
    if known.above > newest:
        text = f"{', '.join(known.words(newest))}, but the newest run of the database is {newest}"
        if context.fix:
            return [*lines, warn("numbers", f"{text}; new runs get ids above {known.above}", _RESTORED)]
        return [*lines, bad("numbers", text, f"crawlctl doctor --fix, or crawlctl db upgrade; then {_RESTORED}")]
    return lines or [ok("numbers", f"nothing outside of the database uses a run id above {newest}")]


def _asking(name: str, check: Callable[[Store, Context], list[Line]]) -> Check:
    def look(context: Context) -> Sequence[Line]:
        try:
            if read_schema(context.known.database.url).problem is not None:
                return []  # the check of the database reports it
            return check(build_store(context.known), context)
        except StoreDamaged:
            return []  # the check of the database reports it
        except LifecycleError as error:
            return [warn(name, f"{name} cannot be read: {error}", "correct the problem of the database first")]

    return Check(name, look)


CHECKS = tuple(_asking(check.__name__, check) for check in (numbers, plans, webhooks, schedules, pools, truth))
