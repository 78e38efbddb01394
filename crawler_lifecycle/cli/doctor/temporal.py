"""Temporal as a run needs it: reachable, with our search attributes, and with workers on every task queue of ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetClusterInfoRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.cli.doctor.line import Line
from crawler_lifecycle.cli.doctor.queues import check_queues
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.domain import names
from crawler_lifecycle.temporal.directory import register_search_attributes, registration_command
from crawler_lifecycle.temporal.plugin import DEFAULT_ADDRESS, connect

_UNREACHABLE = "start it (crawlctl dev starts one on this machine), or set TEMPORAL_ADDRESS to where it is"


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
    lines += await check_queues(client, context.call_s, _UNREACHABLE)
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


def _why(error: BaseException) -> str:
    """The SDK's texts wrap the reason in the names of its own types."""
    text = str(error) or type(error).__name__
    found = re.search(r'message: "([^"]+)"', text)
    return found[1] if found else text.splitlines()[0][:300]
