"""What a Temporal server tells an operator: version, namespace, search attributes, and who polls task queues."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetClusterInfoRequest
from temporalio.client import Client

from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.temporal.errors import answering

from .search_attributes import register_search_attributes, registered_search_attributes
from .task_queues import Queue, describe_queues


class Server:
    """One namespace of a server. Raises ``TemporalUnavailable`` for anything but an answer within ``call_s`` seconds,
    which is a ``TemporalRefused`` when the server answered with an error."""

    def __init__(self, client: Client, call_s: float) -> None:
        self._client = client
        self._call_s = call_s

    @property
    def namespace(self) -> str:
        """Its name."""
        return self._client.namespace

    async def version(self) -> str | None:
        """The server's version; ``None`` where it does not tell, as some hosted services. Raises nothing."""
        try:
            async with answering(self._call_s):
                return (await self._client.workflow_service.get_cluster_info(GetClusterInfoRequest())).server_version
        except TemporalUnavailable:
            return None

    async def retention_s(self) -> int:
        """For how many seconds closed workflows are kept; 0 when the server does not tell."""
        async with answering(self._call_s):
            request = DescribeNamespaceRequest(namespace=self.namespace)
            found = await self._client.workflow_service.describe_namespace(request)
        return found.config.workflow_execution_retention_ttl.ToSeconds()

    async def search_attributes(self) -> dict[str, str]:
        """Every registered search attribute -> its type."""
        async with answering(self._call_s):
            return await registered_search_attributes(self._client)

    async def register_search_attributes(self) -> list[str]:
        """Register those of ours that are missing; their names."""
        async with answering(self._call_s):
            return await register_search_attributes(self._client)

    async def task_queues(self, workflows: Sequence[str], activities: Sequence[str]) -> list[Queue]:
        """What is known about these queues. Raises nothing: a queue says why it cannot be described."""
        return await describe_queues(self._client, workflows, activities, self._call_s)


async def serves(address: str, namespace: str, timeout_s: float) -> bool:
    """Whether a Temporal server at ``HOST:PORT`` serves this namespace. Raises nothing."""
    try:
        async with answering(timeout_s):
            client = await Client.connect(address, namespace=namespace)
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    except (TemporalUnavailable, RuntimeError):
        return False
    return True
