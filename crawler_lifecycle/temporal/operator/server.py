"""Facts about a Temporal server for operators: version, namespace, search attributes, and pollers
of task queues.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetClusterInfoRequest
from temporalio.client import Client
from temporalio.service import RPCStatusCode

from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.names import SEARCH_ATTRIBUTES
from crawler_lifecycle.temporal.errors import allowing, answering

from .task_queues import Queue, describe_queues


class Server:
    """A namespace of a Temporal server.

    Methods raise ``TemporalUnavailable`` if a call is not answered within ``call_s`` seconds, and
    its subclass ``TemporalRefused`` if the server responds with an error.
    """

    def __init__(self, client: Client, call_s: float) -> None:
        self._client = client
        self.namespace = client.namespace
        """The name of the namespace."""
        self._call_s = call_s

    async def version(self) -> str | None:
        """Return the server's version; ``None`` if the server does not report it, as some hosted
        servers do not. Never raises.
        """
        try:
            async with answering(self._call_s):
                answer = await self._client.workflow_service.get_cluster_info(
                    GetClusterInfoRequest(), retry=True
                )
        except TemporalUnavailable:
            return None
        return answer.server_version

    async def retention_s(self) -> int:
        """Return the seconds for which closed workflows are kept; 0 if the server does not report
        them.
        """
        async with answering(self._call_s):
            request = DescribeNamespaceRequest(namespace=self.namespace)
            found = await self._client.workflow_service.describe_namespace(request, retry=True)
        return found.config.workflow_execution_retention_ttl.ToSeconds()

    async def search_attributes(self) -> dict[str, str]:
        """Return every registered search attribute with its type, such as ``Keyword``."""
        async with answering(self._call_s):
            return await registered_search_attributes(self._client)

    async def register_search_attributes(self) -> list[str]:
        """Register our missing search attributes. Return their names."""
        async with answering(self._call_s):
            return await register_search_attributes(self._client)

    async def task_queues(self, workflows: Sequence[str], activities: Sequence[str]) -> list[Queue]:
        """Return facts about these queues, or for each queue the reason why there are none.

        Never raises.
        """
        return await describe_queues(self._client, workflows, activities, self._call_s)


async def serves(address: str, namespace: str, timeout_s: float) -> bool:
    """Return whether a Temporal server at ``HOST:PORT`` serves this namespace. Never raises."""
    try:
        async with answering(timeout_s):
            client = await Client.connect(address, namespace=namespace)
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=namespace), retry=True
            )
    except (TemporalUnavailable, RuntimeError):
        return False
    return True


_PREFIX = "INDEXED_VALUE_TYPE_"


async def registered_search_attributes(client: Client) -> dict[str, str]:
    """Return every search attribute of the namespace with its type, such as ``Keyword``.

    Raises ``RPCError``.
    """
    request = ListSearchAttributesRequest(namespace=client.namespace)
    answer = await client.operator_service.list_search_attributes(request, retry=True)
    kinds = answer.custom_attributes.items()
    return {
        name: IndexedValueType.Name(kind).removeprefix(_PREFIX).capitalize() for name, kind in kinds
    }


async def register_search_attributes(client: Client) -> list[str]:
    """Register our missing search attributes in the namespace. Return their names.

    A worker calls this before it polls, because a workflow that sets an unknown attribute fails on
    every retry. Raises ``RPCError`` (PERMISSION_DENIED if this account may not register them).
    """
    known = await registered_search_attributes(client)
    missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in known}
    if not missing:
        return []
    types = {name: IndexedValueType.Value(_PREFIX + kind.upper()) for name, kind in missing.items()}
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
    with allowing(RPCStatusCode.ALREADY_EXISTS):  # another worker registered it first
        await client.operator_service.add_search_attributes(request, retry=True)
    return sorted(missing)


def registration_command(namespace: str) -> str:
    """Return the command that registers our search attributes, for an operator who has more
    permissions than this process.
    """
    pairs = " ".join(f"--name {name} --type {kind}" for name, kind in SEARCH_ATTRIBUTES.items())
    return f"temporal operator search-attribute create --namespace {namespace} {pairs}"
