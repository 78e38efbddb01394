"""How we speak with Temporal: one connection, and one plugin that client, worker and replayer share.

Sharing the plugin is the point: a replayer with another converter or sandbox than the worker proves nothing.
"""

from __future__ import annotations

import dataclasses

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.plugin import SimplePlugin
from temporalio.runtime import Runtime
from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

#: Loaded once and shared by all workflows: data, names, tables, activity stubs. Modules with the workflows' own steps
#: stay inside of the sandbox, which executes them anew for every workflow and refuses what is not deterministic.
PASSED_THROUGH = (
    "crawler_lifecycle.domain",
    "crawler_lifecycle.ports",
    "crawler_lifecycle.activities",
    "crawler_lifecycle.workflows.policies",
    "crawler_lifecycle.workflows.requests",
    "crawler_lifecycle.workflows.state",
)

#: The dev server of the embedded default; used when neither environment nor a profile names an address.
DEFAULT_ADDRESS = "127.0.0.1:7233"


def _workflow_runner(existing: WorkflowRunner | None) -> WorkflowRunner:
    if existing is None:
        existing = SandboxedWorkflowRunner()
    if isinstance(existing, SandboxedWorkflowRunner):
        restrictions = existing.restrictions or SandboxRestrictions.default
        return dataclasses.replace(existing, restrictions=restrictions.with_passthrough_modules(*PASSED_THROUGH))
    return existing


def plugin() -> SimplePlugin:
    """The plugin: pydantic converter, sandbox rules, and which exceptions fail a workflow instead of its task.

    Only an input that does not validate fails a run; any other exception is a bug whose fix can be deployed while the
    run waits.
    """
    return SimplePlugin(
        "crawler_lifecycle",
        data_converter=pydantic_data_converter,
        workflow_runner=_workflow_runner,
        workflow_failure_exception_types=[ValidationError],
    )


async def connect(*, runtime: Runtime | None = None) -> Client:
    """A client by Temporal's own environment variables (``TEMPORAL_ADDRESS`` …) and TOML profiles.

    Raises whatever the SDK raises when no server answers; entry points turn that into an instruction.
    """
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", DEFAULT_ADDRESS)
    return await Client.connect(**config, plugins=[plugin()], runtime=runtime)
