"""The client's connection, and the plugin that client, worker and replayer share: converters, runner, interceptors.

Sharing the plugin is the point: a replayer with another converter or runner than the worker proves nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import threading
from collections.abc import Sequence

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, Plugin
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadCodec, PayloadConverter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import LifecycleError

from .converter import TolerantPayloadConverter
from .floods import FewSignals
from .interceptors import Observing

#: The dev server of the embedded default; used when neither environment nor a profile names an address.
DEFAULT_ADDRESS = "127.0.0.1:7233"

#: Bytes of a failure with its causes. The server keeps the failure of a try up to 4,096 bytes; of a larger one it keeps
#: "Failure exceeds size limit." and forgets the type (measured). Encryption, which comes after us, adds some hundred.
FAILURE_BYTES = 3_000
#: The most nested causes that are kept, and characters of a message or stack that are searched for secrets.
CAUSES_MAX, TEXT_MAX = 3, 16 * 1024
#: Ever smaller sizes, until it fits: texts grow when they become JSON in an encoded failure.
_BUDGETS = (FAILURE_BYTES, 2_000, 1_200, 600)
#: The text in place of a message that is in the encoded attributes; the SDK uses the same.
_HIDDEN = "Encoded failure"
_inside = threading.local()


class RedactingFailureConverter(DefaultFailureConverter):
    """Failures as Temporal is told them, without secrets: a history is read by many and kept for long.

    Message, stack trace, details and every cause lose known secrets, values of secret names and credentials of URLs,
    and are cut until the server keeps the failure whole; the log has all of it. Errors of the domain, an adapter's own
    kinds of them included, are told by their stable type string, which is what retry policies and readers go by.
    """

    hidden = False
    """True if message and stack trace go into a payload, which a codec can encrypt."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See the base class, which calls this for each cause as well; only the whole is cut and hidden."""
        whole = not getattr(_inside, "a_failure", False)
        _inside.a_failure = True
        try:
            super().to_failure(exception, payload_converter, failure)
        except UnicodeError:  # half a character, which protobuf does not take
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
        for part in _chain(failure):  # a failure that was received brings its causes along as they are
            part.message = redactor.text(part.message, TEXT_MAX)
            part.stack_trace = redactor.text(_last_lines(part.stack_trace, TEXT_MAX), TEXT_MAX)
            for details in _details(part):
                _redact(details)
            if part.message != _HIDDEN:
                part.ClearField("encoded_attributes")  # they were decoded into the message
        # An encoded part of another service cannot be cut, and was cut when it was made.
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
    """The same with encrypted payloads: the error is only for readers with the key."""

    hidden = True


def _of_whole_characters(exception: BaseException) -> ApplicationError:
    told = getattr(exception, "message", None) or str(exception)
    kind = getattr(exception, "type", None) or getattr(exception, "code", None) or type(exception).__name__
    final = bool(getattr(exception, "non_retryable", False))
    clean = ApplicationError(_whole(str(told)), type=_whole(str(kind)), non_retryable=final)
    return clean.with_traceback(exception.__traceback__)


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _chain(failure: Failure) -> list[Failure]:
    """The failure and its causes, the first of very many."""
    chain = [failure]
    while chain[-1].HasField("cause") and len(chain) < 100:
        chain.append(chain[-1].cause)
    return chain


def _details(failure: Failure) -> list[Payloads]:
    """Everything in one failure that is payloads."""
    kind = failure.WhichOneof("failure_info")
    if kind == "application_failure_info":
        return [failure.application_failure_info.details]
    if kind == "canceled_failure_info":
        return [failure.canceled_failure_info.details]
    return [failure.timeout_failure_info.last_heartbeat_details] if kind == "timeout_failure_info" else []


def _fit(failure: Failure, most: int) -> None:
    """Cut it to ``most`` bytes: a third for its message, less for those of its causes, the rest for the stack."""
    chain = _chain(failure)
    if len(chain) > CAUSES_MAX + 1:
        chain = chain[: CAUSES_MAX + 1]
        chain[-1].ClearField("cause")
    stacks = [part.stack_trace for part in chain]
    for n, part in enumerate(chain):
        part.stack_trace, part.message = "", _first_bytes(part.message, most // (12 if n else 3))
        part.source = _first_bytes(part.source, 60)
        if part.WhichOneof("failure_info") == "application_failure_info":
            part.application_failure_info.type = _first_bytes(part.application_failure_info.type, 100)
        for details in _details(part):
            if details.ByteSize() > most // 12:
                del details.payloads[:]
    for part, stack in zip(chain, stacks, strict=True):
        room = most - failure.ByteSize() - 20  # lengths of lengths
        if stack and room > 100:
            part.stack_trace = _last_lines(stack, room)


def _first_bytes(text: str, most: int) -> str:
    raw = text.encode()
    return text if len(raw) <= most else raw[: most - 3].decode(errors="ignore") + "…"


def _last_lines(text: str, most: int) -> str:
    """The last whole lines: the innermost calls. Half a line could contain half of a secret."""
    raw = text.encode(errors="backslashreplace")
    if len(raw) <= most:
        return text
    return "…\n" + raw[4 - most :].partition(b"\n")[2].decode(errors="ignore")


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


def plugin(codec: PayloadCodec | None = None) -> SimplePlugin:
    """The plugin: converters, runner, log fields and meters.

    The sandbox is left out. It executes what it does not share anew for each workflow, and enters itself once more for
    each payload, which was a third of what a run costs a worker. What it would refuse, a test of the sources refuses
    (tests/workflows/test_sources.py): clock, random numbers, input and output, threads and imports.

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
        interceptors=[Observing()],
        workflow_runner=FewSignals(),
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


def configured_address() -> str | None:
    """``HOST:PORT`` of the server that the environment or a profile names, if one does.

    Raises whatever the SDK raises when these settings cannot be read.
    """
    return ClientConfig.load_client_connect_config().get("target_host")


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
