"""Encrypted payloads: what an outsider reads in Temporal, what still works without a key, and how
keys change.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from crawler_lifecycle import redaction
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.compose import WORKFLOWS
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import RunResult
from crawler_lifecycle.domain.values import UndecodedPayload
from crawler_lifecycle.features.managers.domain.manager import ManagerOrder
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.codec import ENCODING, Encryption, codec_of, read_keys
from crawler_lifecycle.temporal.converter import WHY, TolerantPayloadConverter
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.fakes.cluster import Behaviour
from tests.support.temporal import temporal_server
from tests.support.testbed import WorkflowHarness, open_testbed

OLD, NEW = base64.b64encode(b"o" * 32).decode(), base64.b64encode(b"n" * 32).decode()
CONFIDENTIAL = "the-shelf-nobody-may-know"
QUICK = {"poll_minutes": [0.02], "limits": {"start_check_s": 0.1}}


@given(data=st.binary(max_size=2000), kind=st.binary(max_size=20))
async def test_what_goes_in_comes_out(data: bytes, kind: bytes) -> None:
    codec = Encryption(read_keys(f"a={OLD}"))
    payload = Payload(metadata={"encoding": kind}, data=data)
    (hidden,) = await codec.encode([payload])
    assert hidden.metadata["encoding"] == ENCODING
    assert len(data) < 8 or data not in hidden.data
    assert await codec.decode([hidden]) == [payload]
    (again,) = await codec.encode([payload])
    assert again.data != hidden.data, "a nonce is used once"


async def test_keys_rotate() -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')
    (old,) = await Encryption(read_keys(f"2025={OLD}")).encode([payload])
    both = Encryption(read_keys(f"2026={NEW}, 2025={OLD}"))
    assert await both.decode([old]) == [payload]
    (new,) = await both.encode([payload])
    assert new.metadata["encryption-key-id"] == b"2026"
    [closed] = await Encryption(read_keys(f"2026={NEW}")).decode([old])
    assert (closed.data, closed.metadata["encoding"]) == (old.data, ENCODING), (
        "it goes on as it is, for its reader"
    )
    assert (
        "key '2025'; LIFECYCLE_PAYLOADS__KEYS only has 2026; add that key"
        in closed.metadata[WHY].decode()
    )


async def test_a_changed_payload_does_not_open() -> None:
    codec = Encryption(read_keys(f"a={OLD}"))
    (hidden,) = await codec.encode([Payload(data=b"x" * 50)])
    for broken in (hidden.data[:-1] + bytes([hidden.data[-1] ^ 1]), hidden.data[:10], b""):
        [closed] = await codec.decode([Payload(metadata=dict(hidden.metadata), data=broken)])
        assert b"the payload or the key was changed" in closed.metadata[WHY]
        [value] = TolerantPayloadConverter().from_payloads([closed])
        assert isinstance(value, UndecodedPayload)
        assert value.locked


async def test_what_is_not_encrypted_is_read_as_it_is() -> None:
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"stop"')
    assert await Encryption(read_keys(f"a={OLD}")).decode([plain]) == [plain]


@pytest.mark.parametrize(
    "text", ["", " , ", OLD, f"a={OLD[:-4]}", "a=notbase64!", f"a={OLD},a={NEW}", f"={OLD}"]
)
def test_wrong_keys_are_refused_without_being_told(text: str) -> None:
    with pytest.raises(InvalidRequest, match="LIFECYCLE_PAYLOADS__KEYS") as caught:
        read_keys(text)
    assert OLD[:8] not in str(caught.value)
    assert NEW[:8] not in str(caught.value)


def test_without_keys_there_is_no_codec() -> None:
    assert codec_of(None) is None
    assert isinstance(codec_of(SecretStr(f"a={OLD}")), Encryption)
    assert OLD not in redaction.current().text(f"the key {OLD}")


# --- on a server ----------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    async with temporal_server(skipping=False) as env:
        yield env


async def _client(server: WorkflowEnvironment, keys: str | None) -> Client:
    target = server.client.service_client.config.target_host
    codec = codec_of(SecretStr(keys)) if keys else None
    return await Client.connect(target, namespace=server.client.namespace, plugins=[plugin(codec)])


async def _raw(client: Client, workflow_id: str) -> str:
    """Return a history as somebody without a key reads it, with payloads decoded from base64."""
    text = (await client.get_workflow_handle(workflow_id).fetch_history()).to_json()
    return text + "\n".join(
        base64.b64decode(data).decode("utf-8", "replace") for data in _data(json.loads(text))
    )


async def _replay(testbed: WorkflowHarness) -> None:
    """Replay with a key, because the testbed's own replay has none."""
    handles, testbed.handles = testbed.handles, []
    for handle in handles:
        for history in await testbed.chain(handle):
            codec = codec_of(SecretStr(f"2026={NEW},2025={OLD}"))
            await Replayer(workflows=WORKFLOWS, plugins=[plugin(codec)]).replay_workflow(history)


def _data(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["data"]] if isinstance(value.get("data"), str) else []
        return own + [found for member in value.values() for found in _data(member)]
    return [found for member in value for found in _data(member)] if isinstance(value, list) else []


@pytest.mark.asyncio(loop_scope="module")
async def test_a_run_is_unreadable_without_the_key_and_works_for_those_who_have_none(
    server: WorkflowEnvironment, tmp_path: Path
) -> None:
    stranger, ours = await _client(server, None), await _client(server, f"2026={NEW},2025={OLD}")
    async with open_testbed(ours, tmp_path, clock=utc_now) as testbed:
        testbed.cluster.behaviour = Behaviour(executes=None)
        request = {"crawler": "books", "args": {"shelf": CONFIDENTIAL}, **QUICK}
        handle = await testbed.start(request, id="secret")
        await testbed.until(lambda: testbed.tasks(1).get(0) == "PENDING")
        # A stop by somebody without the key, as from Temporal's CLI.
        await stranger.get_workflow_handle("secret").signal(
            names.SIGNAL_FORCE_STOP, {"reason": "plain words"}
        )
        result = await handle.result()
        assert (str(result.status), result.outcome) == ("FAILED", "cancelled")
        assert "plain words" in result.cause
        text = await _raw(stranger, "secret")
        assert CONFIDENTIAL not in text
        assert "books" in text, "search attributes are never encrypted"
        assert "encryption-key-id" in text
        # A start by somebody without the key.
        await stranger.start_workflow(
            names.LIFECYCLE_WORKFLOW,
            {"crawler": "nowhere", **QUICK},
            id="plain",
            task_queue=names.QUEUE_MAIN,
        )
        ended = await ours.get_workflow_handle("plain", result_type=RunResult).result()
        assert ended.outcome == "deploy_failed"
        await _replay(testbed)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_summary_is_unreadable_without_the_key(server: WorkflowEnvironment) -> None:
    """Even the longest one is accepted, although encryption makes it longer."""
    stranger, ours = await _client(server, None), await _client(server, f"{'k' * 40}={OLD}")
    flow = CONFIDENTIAL + "\U0001f577" * 100
    await Workflows(ours).start_for(ManagerOrder(7), names.manager_workflow_id("shops", flow))
    workflow_id = names.manager_workflow_id("shops", flow)
    found = await stranger.get_workflow_handle(workflow_id).describe()
    summary = found.raw_description.execution_config.user_metadata.summary
    assert summary.metadata["encoding"] == ENCODING
    assert CONFIDENTIAL.encode() not in summary.data
    handle = ours.get_workflow_handle(workflow_id)
    readable = str(await (await handle.describe()).static_summary())
    assert readable.startswith(f"manager shops · flow {CONFIDENTIAL}")
    await handle.terminate("end of test")


@pytest.mark.asyncio(loop_scope="module")
async def test_what_went_wrong_is_for_those_who_have_the_key(
    server: WorkflowEnvironment, tmp_path: Path
) -> None:
    stranger, ours = await _client(server, None), await _client(server, f"2025={OLD}")
    async with open_testbed(ours, tmp_path, clock=utc_now) as testbed:
        handle = await testbed.start({"crawler": "books", "colour": CONFIDENTIAL}, id="wrong")
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert "colour" in str(caught.value.cause)
        await _replay(testbed)
    text = await _raw(stranger, "wrong")
    assert "Encoded failure" in text
    # The request came through our own client, so even the input is unreadable.
    assert CONFIDENTIAL not in text


@pytest.mark.asyncio(loop_scope="module")
async def test_a_worker_without_the_key_changes_nothing_and_says_which_is_missing(
    server: WorkflowEnvironment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, lost = await _client(server, f"2025={OLD}"), await _client(server, f"2026={NEW}")
    request = {"crawler": "nowhere", **QUICK}
    await ours.start_workflow(
        names.LIFECYCLE_WORKFLOW, request, id="late", task_queue=names.QUEUE_MAIN
    )
    async with open_testbed(lost, tmp_path, clock=utc_now):
        handle = server.client.get_workflow_handle("late")
        told = "encrypted with the key '2025'; LIFECYCLE_PAYLOADS__KEYS only has 2026"
        async with asyncio.timeout(60):
            while "WORKFLOW_TASK_FAILED" not in (await handle.fetch_history()).to_json():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            while told not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    (tmp_path / "again").mkdir()
    async with open_testbed(ours, tmp_path / "again", clock=utc_now):
        ended = await asyncio.wait_for(
            ours.get_workflow_handle("late", result_type=RunResult).result(),
            timedelta(seconds=60).total_seconds(),
        )
    assert ended.outcome == "deploy_failed"
