"""Our search attributes in a namespace: which are registered, and how they are."""

from __future__ import annotations

from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCStatusCode

from crawler_lifecycle.domain.names import SEARCH_ATTRIBUTES
from crawler_lifecycle.temporal.errors import allowing

_PREFIX = "INDEXED_VALUE_TYPE_"


async def registered_search_attributes(client: Client) -> dict[str, str]:
    """Every search attribute that the namespace knows -> its type, as ``Keyword``. Raises ``RPCError``."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    answer = await client.operator_service.list_search_attributes(request)
    kinds = answer.custom_attributes.items()
    return {name: IndexedValueType.Name(kind).removeprefix(_PREFIX).capitalize() for name, kind in kinds}


async def register_search_attributes(client: Client) -> list[str]:
    """Make sure that the namespace knows our search attributes; the names that were added.

    Upserting an unknown one would fail workflow tasks for ever, so a worker calls this before it polls.
    Raises ``RPCError`` (PERMISSION_DENIED when the right to register is missing).
    """
    known = await registered_search_attributes(client)
    missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in known}
    if not missing:
        return []
    types: dict[str, Any] = {name: IndexedValueType.Value(_PREFIX + kind.upper()) for name, kind in missing.items()}
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
    with allowing(RPCStatusCode.ALREADY_EXISTS):  # another worker was faster
        await client.operator_service.add_search_attributes(request)
    return sorted(missing)


def registration_command(namespace: str) -> str:
    """The command an operator with more rights runs instead of us."""
    pairs = " ".join(f"--name {name} --type {kind}" for name, kind in SEARCH_ATTRIBUTES.items())
    return f"temporal operator search-attribute create --namespace {namespace} {pairs}"
