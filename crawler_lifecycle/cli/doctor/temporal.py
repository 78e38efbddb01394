"""Temporal as a run needs it: reachable, with our search attributes, and with workers on every task queue of ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    GetClusterInfoRequest,
)
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.adapters.temporal import register_search_attributes, registration_command
from crawler_lifecycle.cli.doctor.clock import clock_line
from crawler_lifecycle.cli.doctor.report import Context, Line
from crawler_lifecycle.compose import ROLES
from crawler_lifecycle.domain import names
from crawler_lifecycle.temporal import DEFAULT_ADDRESS, connect

#: A worker asks for work at least once a minute; one that did not for so long is gone.
FRESH_S = 120.0
#: Work that waited longer than this was forgotten by somebody.
BACKLOG_AGE_S = 60.0

_UNREACHABLE = "start it (crawlctl dev starts one on this machine), or set TEMPORAL_ADDRESS to where it is"


@dataclass(frozen=True, slots=True)
class Queue:
    """What a task queue's description says."""

    name: str
    kind: str
    pollers: int
    backlog: int
    backlog_age_s: float


def check_temporal(context: Context) -> Sequence[Line]:
    """Connection, server, namespace, search attributes, task queues, clock."""
    return asyncio.run(_check(context))


async def _check(context: Context) -> Sequence[Line]:
    try:
        config = ClientConfig.load_client_connect_config()
    except Exception as error:
        return [Line("temporal", "bad", f"its settings cannot be read: {error}", "mend TEMPORAL_* or their TOML file")]
    address = str(config.get("target_host") or DEFAULT_ADDRESS)
    try:
        client = await asyncio.wait_for(connect(), context.call_s)
    except TimeoutError:
        return [Line("temporal", "bad", f"{address} does not answer within {context.call_s:g} s", _UNREACHABLE)]
    except Exception as error:
        return [Line("temporal", "bad", f"{address} cannot be reached: {_why(error)}", _UNREACHABLE)]
    lines = [await _server(client, address, context.call_s)]
    namespace = await _namespace(client, context.call_s)
    lines.append(namespace)
    if namespace.level == "bad":
        return lines
    lines.append(await _search_attributes(client, context.fix, context.call_s))
    lines += await _queues(client, context.call_s)
    return lines


async def _server(client: Client, address: str, call_s: float) -> Line:
    try:
        found = await asyncio.wait_for(client.workflow_service.get_cluster_info(GetClusterInfoRequest()), call_s)
    except (RPCError, TimeoutError):  # some hosted services keep it to themselves
        return Line("temporal", "ok", f"{address} answers")
    return Line("temporal", "ok", f"{address} answers, server {found.server_version}")


async def _namespace(client: Client, call_s: float) -> Line:
    name = client.namespace
    try:
        request = DescribeNamespaceRequest(namespace=name)
        found = await asyncio.wait_for(client.workflow_service.describe_namespace(request), call_s)
    except TimeoutError:
        return Line("namespace", "bad", f"nothing is said about {name!r} within {call_s:g} s", _UNREACHABLE)
    except RPCError as error:
        cure = f"temporal operator namespace create --namespace {name}, or set TEMPORAL_NAMESPACE"
        if error.status == RPCStatusCode.PERMISSION_DENIED:
            return Line("namespace", "warn", f"{name!r} may not be described by this account", "ask for that right")
        return Line("namespace", "bad", f"{name!r}: {error.message}", cure)
    kept = found.config.workflow_execution_retention_ttl.ToSeconds()
    if 0 < kept < 86_400:
        cure = f"temporal operator namespace update --namespace {name} --retention 72h"
        return Line("namespace", "warn", f"{name!r} keeps closed workflows for {kept // 3600} h only", cure)
    return Line("namespace", "ok", f"{name!r}" + (f", closed workflows are kept {kept // 86_400} d" if kept else ""))


async def _search_attributes(client: Client, fix: bool, call_s: float) -> Line:
    check = "search attrs"
    command = registration_command(client.namespace)
    try:
        request = ListSearchAttributesRequest(namespace=client.namespace)
        known = await asyncio.wait_for(client.operator_service.list_search_attributes(request), call_s)
        added: Sequence[str] = ()
        problem = attributes_problem(known.custom_attributes, command)
        if problem is not None and fix:
            added = await asyncio.wait_for(register_search_attributes(client), call_s)
            known = await asyncio.wait_for(client.operator_service.list_search_attributes(request), call_s)
            problem = attributes_problem(known.custom_attributes, command)
    except (RPCError, TimeoutError) as error:
        why = error.message if isinstance(error, RPCError) else f"no answer within {call_s:g} s"
        return Line(
            check, "warn", f"they cannot be listed or registered: {why}", f"somebody with more rights: {command}"
        )
    if problem is not None:
        return problem
    done = f"; registered {', '.join(added)}" if added else ""
    return Line(check, "ok", f"all {len(names.SEARCH_ATTRIBUTES)} are registered{done}")


def attributes_problem(known: Mapping[str, Any], command: str) -> Line | None:
    """What is wrong with the search attributes that a namespace knows (name -> indexed type)."""
    wrong = []
    for name, kind in names.SEARCH_ATTRIBUTES.items():
        if name in known and known[name] != IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}"):
            found = IndexedValueType.Name(known[name]).removeprefix("INDEXED_VALUE_TYPE_").capitalize()
            wrong.append(f"{name} is {found}, needed is {kind}")
    if wrong:
        cure = "use another namespace: the type of a registered attribute cannot be changed"
        return Line("search attrs", "bad", "; ".join(wrong), cure)
    missing = [name for name in names.SEARCH_ATTRIBUTES if name not in known]
    if missing:
        return Line(
            "search attrs", "bad", f"not registered: {', '.join(missing)}", f"crawlctl doctor --fix, or {command}"
        )
    return None


# --- task queues ---------------------------------------------------------------------------------------------------


async def _queues(client: Client, call_s: float) -> list[Line]:
    wanted = [(names.QUEUE_MAIN, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)]
    wanted += [(queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY) for queue in ROLES.values()]
    now = datetime.now(UTC)
    answers = await asyncio.gather(*(_describe(client, *one, call_s) for one in wanted), return_exceptions=True)
    lines = []
    latest: datetime | None = None
    for (queue, kind), answer in zip(wanted, answers, strict=True):
        word = "workflows" if kind == TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW else "activities"
        if isinstance(answer, BaseException):
            lines.append(Line("workers", "bad", f"{queue} ({word}) cannot be described: {answer}", _UNREACHABLE))
            continue
        seen = [poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in answer.pollers]
        latest = max([*seen, *([latest] if latest else [])], default=None)
        fresh = sum((now - one).total_seconds() < FRESH_S for one in seen)
        age = answer.stats.approximate_backlog_age.ToMicroseconds() / 1e6
        lines.append(queue_line(Queue(queue, word, fresh, answer.stats.approximate_backlog_count, age)))
    # A poll is recorded by the server's clock, some time ago: one from the future shows a clock that is behind.
    if latest is not None and latest > now:
        lines.append(clock_line("Temporal", (latest - now).total_seconds(), 0.0))
    return lines


async def _describe(
    client: Client, queue: str, kind: TaskQueueType.ValueType, call_s: float
) -> DescribeTaskQueueResponse:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind, report_stats=True
    )
    return await asyncio.wait_for(client.workflow_service.describe_task_queue(request), call_s)


def queue_line(queue: Queue) -> Line:
    """Whether somebody works on a task queue."""
    role = next(role for role, name in ROLES.items() if name == queue.name)
    what = f"{queue.name} ({queue.kind})"
    waiting = f", {queue.backlog} waiting for {queue.backlog_age_s:.0f} s" if queue.backlog else ""
    if queue.pollers == 0:
        return Line("workers", "bad", f"nobody polls {what}{waiting}", f"crawlctl worker {role}")
    if queue.backlog and queue.backlog_age_s > BACKLOG_AGE_S:
        cure = f"start more workers (crawlctl worker {role}), or raise LIFECYCLE_WORKER__THREADS"
        return Line("workers", "warn", f"{what}: {queue.pollers} pollers do not keep up{waiting}", cure)
    return Line("workers", "ok", f"{what}: {queue.pollers} polling{waiting}")


def _why(error: BaseException) -> str:
    """The SDK's texts wrap the reason in the names of its own types."""
    text = str(error) or type(error).__name__
    found = re.search(r'message: "([^"]+)"', text)
    return found[1] if found else text.splitlines()[0][:300]
