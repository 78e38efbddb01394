"""Checks whether anything outside of the database has run ids that the database does not know."""

from __future__ import annotations

from collections.abc import Sequence

from crawler_lifecycle.cli.admin.run_numbers import sources
from crawler_lifecycle.cli.doctor.report import Context, Line
from crawler_lifecycle.compose import build_store
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.store import read_schema
from crawler_lifecycle.worker.run_numbers import ask, bring_forward

_CURE = "docs/operations.md, The database was restored: crawlctl audit tells what executes without a row"


def check_numbers(context: Context) -> Sequence[Line]:
    """Ask workflows, cluster and archive. With ``--fix`` new runs begin above what they know."""
    settings = context.known
    try:
        if read_schema(settings.database.url).problem is not None:
            return []  # told by the check of the database
        store = build_store(settings).run_numbers
        newest = store.newest_run_id()
        asked = sources(settings, context.call_s)
        limit_s = context.limit_s * 0.8
        known = bring_forward(store, asked, limit_s) if context.fix else ask(asked, newest, limit_s)
    except LifecycleError as error:
        return [Line("numbers", "warn", f"numbers of runs cannot be compared: {error}", "mend what is told above")]
    lines = [
        Line(
            "numbers",
            "warn",
            f"numbers of runs that {name} may still bear are not known: {text}",
            "mend it: a database that was restored would give them out again; a worker asks when it starts",
        )
        for name, text in sorted(known.troubles.items())
    ]
    if known.above > newest:
        done = f"; new ones begin above {known.above}" if context.fix else ""
        text = f"{', '.join(known.words(newest))}, and the newest of the database is {newest}{done}"
        cure = _CURE if context.fix else f"crawlctl doctor --fix, or crawlctl db upgrade; then {_CURE}"
        lines.append(Line("numbers", "warn" if context.fix else "bad", text, cure))
    elif not lines:
        lines.append(Line("numbers", "ok", f"nothing outside of the database bears a number above run {newest}"))
    return lines
