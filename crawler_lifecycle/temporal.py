"""How we speak with Temporal: one connection, and one plugin that client, worker and replayer share.

Sharing the plugin is the point: a replayer with another converter or sandbox than the worker proves nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Sequence

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, Plugin
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadCodec, PayloadConverter
from temporalio.envconfig import ClientConfig
from temporalio.plugin import SimplePlugin
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.observability import redaction
from crawler_lifecycle.observability.interceptors import Observing
from crawler_lifecycle.patience import Patient
from crawler_lifecycle.payloads import TolerantPayloadConverter

#: Loaded once and shared by all workflows: data, names, tables, activity stubs. Modules with the workflows' own steps
#: stay inside of the sandbox, which executes them anew for every workflow and refuses what is not deterministic.
PASSED_THROUGH = (
    "crawler_lifecycle.domain",
    "crawler_lifecycle.ports",
    "crawler_lifecycle.activities",
    "crawler_lifecycle.payloads",
    "crawler_lifecycle.workflows.policies",
    "crawler_lifecycle.workflows.requests",
    "crawler_lifecycle.workflows.state",
)

#: The dev server of the embedded default; used when neither environment nor a profile names an address.
DEFAULT_ADDRESS = "127.0.0.1:7233"


#: Longest message and longest stack trace of a failure that enters a history, in characters.
FAILURE_MAX, STACK_MAX = 4 * 1024, 16 * 1024
#: What stands in the place of a message that is in the encoded attributes; the SDK's own word.
_HIDDEN = "Encoded failure"


class RedactingFailureConverter(DefaultFailureConverter):
    """What went wrong, told to Temporal without what must stay secret: a history is read by many and kept for long.

    Message, stack trace, details and every cause lose known secrets, values of secret names and credentials of URLs,
    and are cut where they are too long for a history. Errors of the domain, an adapter's own kinds of them included,
    are told by their stable type string, which is what retry policies and readers go by.
    """

    hidden = False
    """Whether message and stack trace go into a payload, which a codec can encrypt."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See the base class, which calls this for each cause as well."""
        super().to_failure(exception, payload_converter, failure)
        if isinstance(exception, LifecycleError):
            failure.application_failure_info.type = exception.code
        redactor, whole = redaction.current(), failure
        for _ in range(100):  # a failure that was received brings its causes along as they are
            failure.message = redactor.text(failure.message, FAILURE_MAX)
            failure.stack_trace = redactor.text(failure.stack_trace, STACK_MAX)
            kind = failure.WhichOneof("failure_info")
            if kind == "application_failure_info":
                _redact(failure.application_failure_info.details)
            elif kind == "canceled_failure_info":
                _redact(failure.canceled_failure_info.details)
            if not failure.HasField("cause"):
                break
            failure = failure.cause
        if self.hidden:
            _hide(whole, payload_converter)


class HidingFailureConverter(RedactingFailureConverter):
    """The same where payloads are encrypted: what went wrong is for those who have the key."""

    hidden = True


def _hide(failure: Failure, payload_converter: PayloadConverter) -> None:
    if failure.message != _HIDDEN:
        attributes = {"message": failure.message, "stack_trace": failure.stack_trace}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
        failure.message, failure.stack_trace = _HIDDEN, ""
    if failure.HasField("cause"):
        _hide(failure.cause, payload_converter)


def _redact(payloads: Payloads) -> None:
    redactor = redaction.current()
    for payload in payloads.payloads:
        if payload.metadata.get("encoding", b"").startswith(b"json/"):
            try:
                told = redactor.value(json.loads(payload.data))
            except (ValueError, RecursionError):  # a stranger's: what cannot be read cannot be searched for secrets
                told = "unreadable"
            payload.data = json.dumps(told).encode()


def _workflow_runner(existing: WorkflowRunner | None) -> WorkflowRunner:
    if existing is None:
        existing = SandboxedWorkflowRunner()
    if isinstance(existing, SandboxedWorkflowRunner):
        restrictions = existing.restrictions or SandboxRestrictions.default
        return dataclasses.replace(existing, restrictions=restrictions.with_passthrough_modules(*PASSED_THROUGH))
    return existing


def plugin(codec: PayloadCodec | None = None) -> SimplePlugin:
    """The plugin: converters, sandbox rules, log fields and meters.

    No exception but the SDK's own failures ends a workflow (an input that is no request raises one of those); any other
    is a bug, or a payload that this build cannot read: a fix can be deployed while the run waits, which it does in
    sight of everybody.
    """
    return SimplePlugin(
        "crawler_lifecycle",
        data_converter=dataclasses.replace(
            pydantic_data_converter,
            payload_converter_class=TolerantPayloadConverter,
            payload_codec=codec,
            failure_converter_class=HidingFailureConverter if codec is not None else RedactingFailureConverter,
        ),
        interceptors=[Patient(), Observing()],
        workflow_runner=_workflow_runner,
    )


def logging_of_core() -> LoggingConfig:
    """The lines of the SDK's core go through Python's logging, so that they look like all others."""
    return LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            logger=logging.getLogger("temporalio.core"), append_target_to_name=False, prepend_target_on_message=False
        ),
    )


@functools.cache
def default_runtime() -> Runtime:
    """The runtime of processes that bring none of their own; made once, because each has threads."""
    return Runtime(telemetry=TelemetryConfig(logging=logging_of_core()))


async def connect(
    *, runtime: Runtime | None = None, plugins: Sequence[Plugin] = (), codec: PayloadCodec | None = None
) -> Client:
    """A client by Temporal's own environment variables (``TEMPORAL_ADDRESS`` …) and TOML profiles.

    ``plugins`` come after ours. Raises whatever the SDK raises when no server answers; entry points turn that into an
    instruction.
    """
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", DEFAULT_ADDRESS)
    if isinstance(key := config.get("api_key"), str):  # a profile's key is in no variable
        redaction.learn([key])
    return await Client.connect(**config, plugins=[plugin(codec), *plugins], runtime=runtime or default_runtime())
