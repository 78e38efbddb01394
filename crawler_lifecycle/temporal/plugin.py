"""The client's connection, and the plugin (converters, runner, interceptors) that client, worker
and replayer share.

All three use the same plugin, because a replay with a different converter or runner than the
worker's proves nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import threading
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, Plugin
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadCodec, PayloadConverter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import GrpcCompression

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import LifecycleError

from .converter import TolerantPayloadConverter
from .floods import FewSignals
from .interceptors import Observing

#: The address of Temporal's dev server, which is used if neither the environment nor a profile sets
#: an address.
DEFAULT_ADDRESS = "127.0.0.1:7233"

#: The maximum size of a failure with its causes, in bytes. The server keeps failures of up to 4,096
#: bytes. It replaces a larger failure with "Failure exceeds size limit." and drops its type
#: (measured). Encryption later adds a few hundred bytes.
FAILURE_BYTES = 3_000
#: The maximum number of nested causes that are kept, and of characters of a message or stack that
#: are kept before redaction.
CAUSES_MAX = 3
TEXT_MAX = 16 * 1024
#: Sizes that are tried until the failure fits, because strings grow when they are encoded as JSON.
_BUDGETS = (FAILURE_BYTES, 2_000, 1_200, 600)
#: The replacement for a message that is in the encoded attributes. The SDK uses the same string.
_HIDDEN = "Encoded failure"
_inside = threading.local()


class RedactingFailureConverter(DefaultFailureConverter):
    """Converts errors for Temporal without secrets, because many people can read histories, and
    Temporal keeps them for a long time.

    It removes known secrets, values of secret names and credentials in URLs from the message, the
    stack trace, the details and every cause. It cuts the strings until the failure is small enough
    for the server. The log has the full strings. Our own errors (``LifecycleError`` and its
    subclasses) get their stable type string, which retry policies and readers use.
    """

    hidden = False
    """True if the message and the stack trace are put into a payload, which a codec can encrypt."""

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        """Convert an exception; see the base class.

        That class also calls this for each cause, but only the whole failure is cut.
        """
        whole = not getattr(_inside, "a_failure", False)
        _inside.a_failure = True
        try:
            super().to_failure(exception, payload_converter, failure)
        except UnicodeError:  # a lone surrogate, which protobuf refuses
            failure.Clear()
            super().to_failure(_of_whole_characters(exception), payload_converter, failure)
        finally:
            _inside.a_failure = not whole
        if isinstance(exception, LifecycleError):
            failure.application_failure_info.type = exception.code
        if whole:
            self._bounded(failure, payload_converter)

    def _bounded(self, failure: Failure, payload_converter: PayloadConverter) -> None:
        redactor = redaction.current()
        for part in _chain(failure):  # causes of a received failure are not redacted yet
            part.message = redactor.text(part.message, TEXT_MAX)
            part.stack_trace = redactor.text(_last_lines(part.stack_trace, TEXT_MAX), TEXT_MAX)
            for details in _details(part):
                _redact(details)
            if part.message != _HIDDEN:
                # The message and stack trace are already decoded.
                part.ClearField("encoded_attributes")
        # An encoded part from another service cannot be cut here, but that service has cut it.
        encoded = sum(part.encoded_attributes.ByteSize() for part in _chain(failure))
        whole = Failure()
        whole.CopyFrom(failure)
        for most in _BUDGETS:
            failure.CopyFrom(whole)
            _fit(failure, most + encoded)
            if self.hidden:
                _hide(failure, payload_converter)
            if failure.ByteSize() <= FAILURE_BYTES + encoded:
                break


class HidingFailureConverter(RedactingFailureConverter):
    """Also puts the message and the stack trace into an encrypted payload, for readers with the
    key.
    """

    hidden = True


def _of_whole_characters(exception: BaseException) -> ApplicationError:
    message = getattr(exception, "message", None) or str(exception)
    kind = (
        getattr(exception, "type", None)
        or getattr(exception, "code", None)
        or type(exception).__name__
    )
    final = bool(getattr(exception, "non_retryable", False))
    clean = ApplicationError(_whole(str(message)), type=_whole(str(kind)), non_retryable=final)
    return clean.with_traceback(exception.__traceback__)


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _chain(failure: Failure) -> list[Failure]:
    """Return the failure and its causes, at most 100 in total."""
    chain = [failure]
    while chain[-1].HasField("cause") and len(chain) < 100:
        chain.append(chain[-1].cause)
    return chain


def _details(failure: Failure) -> list[Payloads]:
    """Return the payloads of a failure, without those of its causes."""
    kind = failure.WhichOneof("failure_info")
    if kind == "application_failure_info":
        return [failure.application_failure_info.details]
    if kind == "canceled_failure_info":
        return [failure.canceled_failure_info.details]
    return (
        [failure.timeout_failure_info.last_heartbeat_details]
        if kind == "timeout_failure_info"
        else []
    )


def _fit(failure: Failure, most: int) -> None:
    """Cut a failure to ``most`` bytes.

    Its message gets a third of them, the message of each cause a twelfth, and the stack traces the
    rest.
    """
    chain = _chain(failure)
    if len(chain) > CAUSES_MAX + 1:
        chain = chain[: CAUSES_MAX + 1]
        chain[-1].ClearField("cause")
    stacks = [part.stack_trace for part in chain]
    for n, part in enumerate(chain):
        part.stack_trace, part.message = "", _first_bytes(part.message, most // (12 if n else 3))
        part.source = _first_bytes(part.source, 60)
        if part.WhichOneof("failure_info") == "application_failure_info":
            part.application_failure_info.type = _first_bytes(
                part.application_failure_info.type, 100
            )
        for details in _details(part):
            if details.ByteSize() > most // 12:
                del details.payloads[:]
    for part, stack in zip(chain, stacks, strict=True):
        free = most - failure.ByteSize() - 20  # the length fields also need a few bytes
        if stack and free > 100:
            part.stack_trace = _last_lines(stack, free)


def _first_bytes(text: str, most: int) -> str:
    raw = text.encode()
    return text if len(raw) <= most else raw[: most - 3].decode(errors="ignore") + "…"


def _last_lines(text: str, most: int) -> str:
    """Return the last whole lines, which are the innermost calls.

    Half a line could contain half of a secret.
    """
    raw = text.encode(errors="backslashreplace")
    if len(raw) <= most:
        return text
    return "…\n" + raw[4 - most :].partition(b"\n")[2].decode(errors="ignore")


def _hide(failure: Failure, payload_converter: PayloadConverter) -> None:
    if failure.message != _HIDDEN:
        attributes = {"message": failure.message, "stack_trace": failure.stack_trace}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
        failure.message = _HIDDEN
        failure.stack_trace = ""
    if failure.HasField("cause"):
        _hide(failure.cause, payload_converter)


def _redact(payloads: Payloads) -> None:
    redactor = redaction.current()
    for payload in payloads.payloads:
        if payload.metadata.get("encoding", b"").startswith(b"json/"):
            try:
                redacted = redactor.value(json.loads(payload.data))
            except (ValueError, RecursionError):  # drop it: unreadable data may contain a secret
                redacted = "unreadable"
            payload.data = json.dumps(redacted).encode()


def plugin(codec: PayloadCodec | None = None) -> SimplePlugin:
    """Return the plugin: converters, runner, log fields and metrics.

    It does not use the SDK's sandbox, which imports modules again for each workflow and is entered
    again for each payload. This took a third of a worker's time per run. Instead, a test
    (tests/workflows/test_sources.py) refuses the same constructs in the sources of workflows: the
    clock, random numbers, input and output, threads and imports.

    Only the SDK's own failures end a workflow; an invalid input raises one. Any other exception is
    a bug, or a payload that this build cannot read. The run then visibly waits until a fix is
    deployed.
    """
    return SimplePlugin(
        "crawler_lifecycle",
        data_converter=dataclasses.replace(
            pydantic_data_converter,
            payload_converter_class=TolerantPayloadConverter,
            payload_codec=codec,
            failure_converter_class=HidingFailureConverter
            if codec is not None
            else RedactingFailureConverter,
        ),
        interceptors=[Observing()],
        workflow_runner=FewSignals(),
    )


def logging_of_core() -> LoggingConfig:
    """Return options that send log lines of the SDK's core to Python's logging, in the same format
    as ours.
    """
    return LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            logger=logging.getLogger("temporalio.core"),
            append_target_to_name=False,
            prepend_target_on_message=False,
        ),
    )


@functools.cache
def default_runtime() -> Runtime:
    """Return the runtime for processes that do not create their own.

    It is created once, because each runtime has threads.
    """
    return Runtime(telemetry=TelemetryConfig(logging=logging_of_core()))


def configured_address() -> str | None:
    """Return ``HOST:PORT`` of the server from the environment or a profile, or ``None``.

    Errors of the SDK are passed on if these settings cannot be read.
    """
    return ClientConfig.load_client_connect_config().get("target_host")


async def connect(
    *,
    runtime: Runtime | None = None,
    plugins: Sequence[Plugin] = (),
    codec: PayloadCodec | None = None,
) -> Client:
    """Return a client.

    Temporal's environment variables (``TEMPORAL_ADDRESS`` …) and TOML profiles configure it.

    ``plugins`` come after ours. Errors of the SDK are passed on if no server responds; the calling
    program adds the fix.
    """
    config: dict[str, Any] = {**ClientConfig.load_client_connect_config()}
    config.setdefault("target_host", DEFAULT_ADDRESS)
    # Redaction does not know keys from profiles yet.
    if isinstance(key := config.get("api_key"), str):
        redaction.learn([key])
    # Compression takes a fifteenth of the processor time of a run. It is worthwhile for a remote
    # server.
    config.setdefault(
        "grpc_compression", GrpcCompression.GZIP if config.get("tls") else GrpcCompression.NONE
    )
    return await Client.connect(
        **config, plugins=[plugin(codec), *plugins], runtime=runtime or default_runtime()
    )
