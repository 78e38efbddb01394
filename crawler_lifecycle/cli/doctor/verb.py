"""``crawlctl doctor``: runs the checks and shows the findings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from crawler_lifecycle.cli.admin.services import keep_files_private
from crawler_lifecycle.cli.output import emit, show_finding, show_rows
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.subjects import Column, Document

if TYPE_CHECKING:
    from crawler_lifecycle.settings import Settings

    from .report import Check, Context, Line

#: Seconds for all checks together, which run concurrently.
LIMIT_S = 15.0
SETTINGS = (
    Column("Setting", "name"),
    Column("Value", "value"),
    Column("From", "source"),
)
_STYLES = {"ok": "green", "warn": "yellow", "bad": "red bold"}


def doctor(
    *,
    fix: bool = False,
    state_dir: Path | None = None,
    settings: bool = False,
    cluster: bool = False,
    services: str = "crawler-lifecycle",
) -> int:
    """Check an installation: settings, versions, Temporal, database, cluster permissions, archive,
    event bus.

    Each line shows ok, warn or bad, and the fix. The exit code is 1 if any line shows bad. Nothing
    is changed without --fix, except that a probe is written to the archive and removed again.

    With --cluster, from any machine with a kubeconfig: the versions, permissions of each service
    account, namespaces and clocks of the systems that an installation needs.

    Parameters
    ----------
    fix
        register search attributes, upgrade the schema
    state_dir
        check the stack of crawlctl dev in this folder; default: the nearest .crawl
    settings
        also show every setting and its source
    cluster
        check Kubernetes, Temporal and the database before or after an installation
    services
        with --cluster: the namespace of the services, whose accounts need permissions
    """
    keep_files_private()  # with --fix, a check may create a database
    from .report import load, run

    context, in_force, problem = _prepare(fix, state_dir, services if cluster else None)
    lines: list[Line] = []
    checks, where = _here(_checks(context.settings), context)
    if context.settings is not None:
        load(context.settings)
    for line in [*problem, *where, *run(checks, context)]:
        lines.append(line)
        if current().for_people:
            show_finding(line.level.ljust(6), _STYLES[line.level], line.check, line.text, line.fix)
    counts = {level: sum(line.level == level for line in lines) for level in ("ok", "warn", "bad")}
    rows = [asdict(line) for line in lines]
    document = {"summary": counts, "checks": rows, "settings": in_force}
    if settings and in_force and current().for_people:
        print()
        show_rows(in_force, SETTINGS, empty="")
    names = [line.check for line in lines if line.level == "bad"]
    emit(document, names=list(dict.fromkeys(names)), table=lambda: None, rows=rows)
    say(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['bad']} bad")
    return Exit.ERROR if counts["bad"] else Exit.DONE


def _prepare(
    fix: bool, state_dir: Path | None, services: str | None
) -> tuple[Context, Sequence[Document], Sequence[Line]]:
    from crawler_lifecycle import redaction
    from crawler_lifecycle.clusters.kind import kind_of
    from crawler_lifecycle.domain.errors import InvalidRequest
    from crawler_lifecycle.settings import Settings

    from . import sources
    from .report import Context, bad, ok

    found = sources.collect(state_dir)
    if url := current().gateway_url:
        os.environ["LIFECYCLE_GATEWAY__URL"] = url
    redactor = redaction.Redactor(redaction.secrets_of_environment(os.environ))
    limit_s = current().timeout_s or LIMIT_S
    if services is not None:
        os.environ["LIFECYCLE_CLUSTER__KIND"] = "kubernetes"
    try:
        settings = Settings.load()
        kind_of(settings.cluster)
    except InvalidRequest as error:
        wrong = bad(
            "settings",
            redactor.text(str(error)),
            "correct this setting; checks that need settings were not run",
        )
        return Context(None, found, redactor, fix, limit_s), (), (wrong,)
    line = ok(
        "settings", f"addresses come from {found.dev_json}" if found.dev_json else "all are valid"
    )
    context = Context(settings, found, redactor, fix, limit_s, services)
    return context, sources.in_force(settings, found, redactor), (line,)


def _checks(settings: Settings | None) -> Sequence[Check]:
    from crawler_lifecycle.clusters.kind import kind_of

    from .checks import database, destinations, environment, temporal
    from .report import Check

    of_cluster = {} if settings is None else kind_of(settings.cluster).checks
    return (
        Check("environment", environment.check_environment, needs_settings=False),
        Check("versions", environment.check_versions, needs_settings=False),
        Check("quotas", environment.check_quotas),
        Check("temporal", temporal.check_temporal),
        Check("database", database.check_database),
        *(Check(name, resolve_name(function)) for name, function in of_cluster.items()),
        *destinations.CHECKS,
    )


def _here(checks: Sequence[Check], context: Context) -> tuple[Sequence[Check], Sequence[Line]]:
    """Return the checks that apply here and, if some checks do not apply, a line with the reason.

    In the pod of a component, only the systems that it uses are checked. If only the address of a
    gateway is configured, no system is checked, because the gateway reports its own state.
    """
    from crawler_lifecycle.clusters.kind import kind_of

    from .checks import component
    from .report import ok

    mine = None
    if (
        context.settings is not None
        and (asked := kind_of(context.settings.cluster).component) is not None
    ):
        mine = resolve_name(asked)()
    if context.services is not None:
        wanted = component.INSTALLATION
        who = "only what an installation needs is checked"
    elif context.sources.alone:
        wanted = component.NAMED
        who = "only the address of a gateway is set: its /readyz shows its state"
    elif mine is not None:
        wanted = component.OWN | component.USES[mine]
        who = f"this is {mine}: only the parts that it uses are checked"
    else:
        return checks, ()
    text = f"{who}; not checked: {', '.join(c.name for c in checks if c.name not in wanted)}"
    return [check for check in checks if check.name in wanted], (ok("component", text),)
