"""Reading objects: whatever the server adds, whatever it leaves out, and nothing that is none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.adapters.kubernetes.client.errors import ApiError, Asked, Unreadable, from_answer, retry_after
from crawler_lifecycle.adapters.kubernetes.client.objects import (
    Event,
    Job,
    Pod,
    decode,
    decode_event,
    decode_job,
    decode_kind,
    decode_page,
)

#: One object and a page of each kind that is listed by looks.
_OBJECTS = [partial(read, kind) for read in (decode, decode_page) for kind in (Job, Pod)]
META = {"name": "a", "uid": "u"}
POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {
        **META,
        "deletionTimestamp": "2026-11-20T20:00:00Z",
        "ownerReferences": [
            {"kind": "Other", "name": "x", "uid": "no"},
            {"kind": "Job", "name": "j", "uid": "yes", "controller": True},
        ],
    },
    "spec": {"containers": [{"name": "crawler", "resources": {"limits": {"memory": "512Mi", "cpu": 2}}}]},
    "status": {
        "phase": "Failed",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
        "containerStatuses": [
            {"name": "side", "state": {}},
            {"name": "crawler", "state": {"terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled"}}},
        ],
    },
}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def test_what_is_read_of_a_pod() -> None:
    pod = decode(Pod, _json(POD))
    crawler = pod.container("crawler")
    assert crawler is not None
    assert crawler.state.terminated is not None
    assert (crawler.state.terminated.exit_code, crawler.state.terminated.signal) == (137, 9)
    assert crawler.last_state.terminated is None
    assert pod.container("none") is None
    disruption = pod.condition("DisruptionTarget")
    assert disruption is not None
    assert disruption.true
    assert pod.metadata.controller_uid == "yes"
    assert pod.metadata.deletion_timestamp == datetime(2026, 11, 20, 20, tzinfo=UTC)
    assert pod.metadata.deletion_timestamp.utcoffset() is not None
    assert pod.spec.containers[0].memory_limit == "512Mi"


def test_only_a_true_condition_of_a_job_counts() -> None:
    conditions = [{"type": "Failed", "status": "False"}, {"type": "Complete", "status": "True", "reason": "R"}]
    job = decode_job(_json({"kind": "Job", "metadata": META, "status": {"conditions": conditions}}))
    assert job.condition("Failed") is None
    complete = job.condition("Complete")
    assert complete is not None
    assert complete.reason == "R"


@pytest.mark.parametrize(
    ("fields", "at", "count"),
    [
        ({"eventTime": "2026-11-20T20:00:00.123456Z", "lastTimestamp": None, "firstTimestamp": None}, 0.123456, 1),
        ({"lastTimestamp": "2026-11-20T20:00:05Z", "firstTimestamp": "2026-11-20T20:00:01Z", "count": 7}, 5, 7),
        ({"series": {"count": 3, "lastObservedTime": "2026-11-20T20:00:09.000000Z"}, "count": None}, 9, 3),
    ],
)
def test_senders_of_events_fill_different_fields(fields: dict[str, Any], at: float, count: int) -> None:
    event = decode(Event, _json({"kind": "Event", "metadata": META, "involvedObject": {"uid": "j"}, **fields}))
    assert event.at is not None
    assert (event.at - datetime(2026, 11, 20, 20, tzinfo=UTC)).total_seconds() == at
    assert event.count == count


def test_an_event_without_any_time_has_none() -> None:
    assert decode(Event, _json({"kind": "Event", "metadata": META, "involvedObject": {}})).at is None


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        _json({}),
        _json({"kind": "Job", "metadata": META}),
        _json({"kind": "Pod"}),
        _json({"kind": "Pod", "metadata": {"name": "a"}}),
        _json({"kind": "Pod", "metadata": {"name": "", "uid": "u"}}),
        _json({"kind": "Pod", "metadata": {**META, "creationTimestamp": "yesterday"}}),
        _json({"kind": "Pod", "metadata": {**META, "creationTimestamp": "2026-11-20T20:00:00"}}),
        _json({"kind": "Pod", "metadata": META, "status": {"containerStatuses": [{"state": {}}]}}),
        _json(
            {
                "kind": "Pod",
                "metadata": META,
                "status": {"containerStatuses": [{"name": "a", "state": {"terminated": {}}}]},
            }
        ),
        _json(POD) + b"}",
        _json(POD)[:-1],
    ],
)
def test_what_is_no_pod_is_an_error(bad: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(Pod, bad)


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
_ANY = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(more=st.dictionaries(st.text(max_size=8).map(lambda name: f"x{name}"), _ANY, max_size=4))
def test_whatever_newer_servers_add_is_passed_over(more: dict[str, Any]) -> None:
    added = {**POD, **more, "metadata": {**POD["metadata"], **more}, "status": {**POD["status"], **more}}
    assert decode(Pod, _json(added)) == decode(Pod, _json(POD))


@given(value=_ANY)
def test_any_json_is_read_or_refused(value: Any) -> None:
    data = _json(value)
    for read in (*_OBJECTS, decode_event, decode_kind):
        try:
            read(data)
        except Unreadable:
            continue


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (*_OBJECTS, decode_event, decode_kind):
        try:
            read(data)
        except Unreadable:
            continue


@given(cut=st.integers(0, len(_json(POD)) - 1))
def test_no_part_of_an_object_is_one(cut: int) -> None:
    with pytest.raises(Unreadable):
        decode(Pod, _json(POD)[:cut])


@given(status=st.integers(300, 599), body=st.binary(max_size=300) | _ANY.map(_json), header=st.text(max_size=30))
def test_any_refusal_is_an_error_in_words(status: int, body: bytes, header: str) -> None:
    asked = Asked("POST", "/apis/batch/v1/namespaces/crawls/jobs")
    error = from_answer(asked, status, {"Retry-After": header}, body)
    assert isinstance(error, ApiError)
    assert error.status == status
    assert "create jobs in namespace crawls" in str(error)
    assert len(str(error)) < 1500
    assert error.retry_after_s is None or 0 < error.retry_after_s <= 60
    assert error.effect_unknown == (status >= 500)


def test_a_date_to_come_back_at() -> None:
    now = datetime(2026, 11, 20, 20, 0, 0, tzinfo=UTC)
    assert retry_after("Fri, 20 Nov 2026 20:00:30 GMT", now) == 30
    assert retry_after("Fri, 20 Nov 2026 19:00:00 GMT", now) is None
    assert retry_after("Fri, 20 Nov 2026 23:00:00 GMT", now) == 60
    assert retry_after(None) is None


@pytest.mark.parametrize(
    ("method", "path", "watching", "gesture"),
    [
        ("GET", "/api/v1/namespaces/crawls/pods", False, "list pods in namespace crawls"),
        ("GET", "/api/v1/namespaces/crawls/pods", True, "watch pods in namespace crawls"),
        ("GET", "/api/v1/namespaces/crawls/pods/a/log", False, "get pods/log a in namespace crawls"),
        ("DELETE", "/apis/batch/v1/namespaces/crawls/jobs/a", False, "delete jobs a in namespace crawls"),
        ("GET", "/api/v1/namespaces/crawls", False, "get namespaces crawls"),
        ("GET", "/api/v1/nodes", False, "list nodes"),
        ("GET", "/version", False, "GET /version"),
    ],
)
def test_requests_are_spoken_of_in_words(method: str, path: str, watching: bool, gesture: str) -> None:
    assert Asked(method, path, watching).gesture == gesture
