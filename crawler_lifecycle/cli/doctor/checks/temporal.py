"""Checks of Temporal: connection, namespace, search attributes, and workers for every task
queue.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

from crawler_lifecycle.cli.doctor.report import Context, Line, bad, clock_line, ok, old, warn
from crawler_lifecycle.compose import SERVED_BY
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.temporal.errors import TemporalRefused
from crawler_lifecycle.temporal.operator.queue_findings import judged
from crawler_lifecycle.temporal.operator.server import Server, registration_command
from crawler_lifecycle.temporal.operator.task_queues import Queue
from crawler_lifecycle.temporal.plugin import DEFAULT_ADDRESS, configured_address, connect

#: The oldest supported version of the Temporal server, and the problem with older versions.
LEAST = (1, 31)
LACKS = "it has no fair task queues, and does not report which workflows are blocked"
_UNREACHABLE = (
    "start it (crawlctl dev starts one on this machine), or set TEMPORAL_ADDRESS to its address"
)


def check_temporal(context: Context) -> Sequence[Line]:
    """Check connection, server, namespace, search attributes, task queues and clock."""
    return asyncio.run(_check(context))


async def _check(context: Context) -> Sequence[Line]:
    try:
        address = configured_address() or DEFAULT_ADDRESS
    except Exception as error:
        fix = "correct the TEMPORAL_* variables or their TOML file"
        return [bad("temporal", f"its settings cannot be read: {error}", fix)]
    try:
        server = Server(await asyncio.wait_for(connect(), context.call_s), context.call_s)
    except TimeoutError:
        return [
            bad("temporal", f"{address} does not respond within {context.call_s:g} s", _UNREACHABLE)
        ]
    except Exception as error:
        return [bad("temporal", f"{address} cannot be reached: {_why(error)}", _UNREACHABLE)]
    version = await server.version()
    namespace = await _namespace(server)
    lines = [
        ok("temporal", f"{address} answers" + (f", server {version}" if version else "")),
        namespace,
    ]
    lines += old("temporal", "the Temporal server", version or "", LEAST, LACKS)
    if namespace.level != "bad":
        lines += [await _search_attributes(server, context.fix), *await queue_lines(server)]
    return lines


async def _namespace(server: Server) -> Line:
    name = server.namespace
    try:
        kept = await server.retention_s()
    except TemporalRefused as error:
        if error.forbidden:
            return warn(
                "namespace", f"this account may not describe {name!r}", "ask for this permission"
            )
        fix = f"temporal operator namespace create --namespace {name}, or set TEMPORAL_NAMESPACE"
        return bad("namespace", f"{name!r}: {error}", fix)
    except TemporalUnavailable as error:
        return bad("namespace", f"{name!r}: {error}", _UNREACHABLE)
    if 0 < kept < 86_400:
        fix = f"temporal operator namespace update --namespace {name} --retention 72h"
        return warn("namespace", f"{name!r} keeps closed workflows only for {kept // 3600} h", fix)
    return ok(
        "namespace",
        f"{name!r}" + (f", closed workflows are kept {kept // 86_400} d" if kept else ""),
    )


async def _search_attributes(server: Server, fix: bool) -> Line:
    command = registration_command(server.namespace)
    try:
        added: Sequence[str] = ()
        problem = attributes_problem(await server.search_attributes(), command)
        if problem is not None and fix:
            added = await server.register_search_attributes()
            problem = attributes_problem(await server.search_attributes(), command)
    except TemporalUnavailable as error:
        advice = f"ask somebody with more permissions to run: {command}"
        return warn("search attrs", f"they cannot be listed or registered: {error}", advice)
    done = f"; registered {', '.join(added)}" if added else ""
    return problem or ok("search attrs", f"all {len(names.SEARCH_ATTRIBUTES)} are registered{done}")


def attributes_problem(known: Mapping[str, str], command: str) -> Line | None:
    """Return the finding about wrong or missing search attributes; ``None`` if all attributes are
    correct.

    ``known`` contains the type of each attribute in the namespace.
    """
    needed = names.SEARCH_ATTRIBUTES.items()
    wrong = [
        f"{name} is {known[name]}, not {kind}"
        for name, kind in needed
        if known.get(name, kind) != kind
    ]
    if wrong:
        fix = "use another namespace: the type of a registered attribute cannot be changed"
        return bad("search attrs", "; ".join(wrong), fix)
    missing = [name for name in names.SEARCH_ATTRIBUTES if name not in known]
    if missing:
        return bad(
            "search attrs",
            f"not registered: {', '.join(missing)}",
            f"crawlctl doctor --fix, or {command}",
        )
    return None


async def queue_lines(server: Server) -> list[Line]:
    """Return a finding for each of our task queues, and one about the server's clock if that clock
    is ahead of ours.
    """
    queues = await server.task_queues([names.QUEUE_MAIN], list(SERVED_BY))
    ahead_s = max(queue.ahead_s for queue in queues)
    return [
        *map(queue_line, queues),
        *([clock_line("Temporal", ahead_s, 0.0)] if ahead_s > 0 else []),
    ]


def queue_line(queue: Queue) -> Line:
    """Return the finding about the workers of a task queue."""
    found = judged(queue, SERVED_BY[queue.name], _UNREACHABLE)
    return Line("workers", found.level, found.text, found.fix)


def _why(error: BaseException) -> str:
    """Return the reason from an SDK error, omitting the names of its types."""
    text = str(error) or type(error).__name__
    found = re.search(r'message: "([^"]+)"', text)
    return found[1] if found else text.splitlines()[0][:300]
