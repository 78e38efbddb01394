"""Reading objects: whatever the server adds or leaves out, and whatever is no object."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes.client import objects
from crawler_lifecycle.clusters.kubernetes.client.errors import (
    ApiError,
    ApiRequest,
    Unreadable,
    decode_status,
    from_status,
    retry_after,
)
from crawler_lifecycle.clusters.kubernetes.client.objects import (
    Event,
    Job,
    Pod,
    decode,
    decode_event,
    decode_kind,
    decode_page,
)
from crawler_lifecycle.clusters.kubernetes.client.odd_values import GRACE_MAX_S

#: One object and a page of each kind that polls list.
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
    "spec": {
        "containers": [{"name": "crawler", "resources": {"limits": {"memory": "512Mi", "cpu": 2}}}]
    },
    "status": {
        "phase": "Failed",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        ],
        "containerStatuses": [
            {"name": "side", "state": {}},
            {
                "name": "crawler",
                "state": {"terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled"}},
            },
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
    conditions = [
        {"type": "Failed", "status": "False"},
        {"type": "Complete", "status": "True", "reason": "R"},
    ]
    job = decode(
        Job, _json({"kind": "Job", "metadata": META, "status": {"conditions": conditions}})
    )
    assert job.condition("Failed") is None
    complete = job.condition("Complete")
    assert complete is not None
    assert complete.reason == "R"


@pytest.mark.parametrize(
    ("fields", "at", "count"),
    [
        (
            {
                "eventTime": "2026-11-20T20:00:00.123456Z",
                "lastTimestamp": None,
                "firstTimestamp": None,
            },
            0.123456,
            1,
        ),
        (
            {
                "lastTimestamp": "2026-11-20T20:00:05Z",
                "firstTimestamp": "2026-11-20T20:00:01Z",
                "count": 7,
            },
            5,
            7,
        ),
        (
            {
                "series": {"count": 3, "lastObservedTime": "2026-11-20T20:00:09.000000Z"},
                "count": None,
            },
            9,
            3,
        ),
    ],
)
def test_senders_of_events_fill_different_fields(
    fields: dict[str, Any], at: float, count: int
) -> None:
    event = decode(
        Event, _json({"kind": "Event", "metadata": META, "involvedObject": {"uid": "j"}, **fields})
    )
    assert event.at is not None
    assert (event.at - datetime(2026, 11, 20, 20, tzinfo=UTC)).total_seconds() == at
    assert event.count == count


def test_an_event_without_any_time_has_none() -> None:
    assert (
        decode(Event, _json({"kind": "Event", "metadata": META, "involvedObject": {}})).at is None
    )


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
        _json({"kind": "Pod", "metadata": {**META, "name": 5}}),
        _json(POD) + b"}",
        _json(POD)[:-1],
    ],
)
def test_what_is_no_pod_is_an_error(bad: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(Pod, bad)


#: Numbers and times that no server should send, but any could.
ODD_NUMBERS = [10**14, 2**63, -(2**63), -1, 10**300, 1.5, 1e30, "60", "many", "", True, [], {}]
ODD_TIMES = [
    *(
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "10000-01-01T00:00:00Z",
        "",
    ),
    *(
        "9999-12-31T23:59:59-12:00",
        "0001-01-01T00:00:00+14:00",
        "2026-01-05T12:00:60Z",
        "2026-01-05T12:00:00+25:00",
    ),
    *(
        "2026-01-05T12:00:00",
        "2026-01-05T14:00:03.123456789+02:00",
        "yesterday",
        1767614400,
        1.5,
        [],
        True,
    ),
]


@pytest.mark.parametrize("odd", ODD_NUMBERS, ids=repr)
def test_an_odd_number_is_bounded_and_hides_nothing_beside_it(odd: object) -> None:
    meta = {**POD["metadata"], "deletionGracePeriodSeconds": odd}
    done = {"exitCode": odd, "signal": odd, "reason": "OOMKilled"}
    status = {
        "phase": "Failed",
        "containerStatuses": [{"name": "crawler", "state": {"terminated": done}}],
    }
    strange = {
        **POD,
        "metadata": meta,
        "spec": {"terminationGracePeriodSeconds": odd},
        "status": status,
    }
    pages = _json(
        {
            "kind": "PodList",
            "metadata": {},
            "items": [strange, {**POD, "metadata": {**META, "name": "b"}}],
        }
    )
    pod, other = decode_page(Pod, pages).items
    assert pod == decode(Pod, _json(strange))
    graces = (pod.metadata.deletion_grace_period_seconds, pod.spec.termination_grace_period_seconds)
    assert all(0 <= (seconds or 0) <= GRACE_MAX_S for seconds in graces)
    crawler = pod.container("crawler")
    assert crawler is not None
    assert crawler.state.terminated is not None, "it ended all the same"
    assert abs(crawler.state.terminated.exit_code) < 2**63
    assert (other.metadata.name, other.status.phase) == ("b", "Failed")


@pytest.mark.parametrize("odd", ODD_TIMES, ids=repr)
def test_an_odd_time_is_no_time_and_hides_nothing_beside_it(odd: object) -> None:
    conditions = [{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": odd}]
    pod = decode(
        Pod,
        _json(
            {
                **POD,
                "metadata": {**META, "deletionTimestamp": odd},
                "status": {"conditions": conditions},
            }
        ),
    )
    assert pod.metadata.deletion_timestamp is not None, "it is being deleted all the same"
    mark = pod.condition("DisruptionTarget")
    assert mark is not None
    assert mark.last_transition_time in (None, datetime(2026, 1, 5, 12, 0, 3, 123457, tzinfo=UTC))


def test_whatever_newer_servers_add_is_passed_over() -> None:
    more = {"xnew": [None, True, 2**70, 1.5, "text", {"deep": [{}]}]}
    added = {
        **POD,
        **more,
        "metadata": {**POD["metadata"], **more},
        "status": {**POD["status"], **more},
    }
    assert decode(Pod, _json(added)) == decode(Pod, _json(POD))


def test_values_of_another_kind_are_left_out_one_by_one() -> None:
    strange = {
        "kind": "Pod",
        "metadata": {**META, "labels": {"b": "2"}, "finalizers": [5, "ours"]},
        "spec": 5,
        "status": {
            "phase": 5,
            "conditions": [{"type": "Ready"}, {"type": "Ready", "status": "True"}, None],
        },
    }
    pod = decode(Pod, _json(strange))
    assert (pod.metadata.labels, list(pod.metadata.finalizers)) == ({"b": "2"}, ["ours"])
    assert (pod.spec.node_name, pod.status.phase, pod.condition("Ready") is not None) == (
        None,
        None,
        True,
    )


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
_ANY = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)


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


@given(
    status=st.integers(300, 599),
    body=st.binary(max_size=300) | _ANY.map(_json),
    header=st.text(max_size=30),
)
def test_any_refusal_is_an_error_in_words(status: int, body: bytes, header: str) -> None:
    asked = ApiRequest("POST", "/apis/batch/v1/namespaces/crawls/jobs")
    error = from_status(asked, status, decode_status(body), retry_after(header))
    assert isinstance(error, ApiError)
    assert error.status == status
    assert "create jobs in namespace crawls" in str(error)
    assert len(str(error)) < 1500
    assert error.retry_after_s is None or 0 < error.retry_after_s <= 60
    assert error.effect_unknown == (status >= 500)


def test_a_date_to_come_back_at() -> None:
    now = time.time()
    assert retry_after(formatdate(now + 31, usegmt=True)) == pytest.approx(30, abs=5)
    assert retry_after(formatdate(now - 3600, usegmt=True)) is None
    assert retry_after(formatdate(now + 10_800, usegmt=True)) == 60
    assert retry_after(None) is None


@pytest.mark.parametrize(
    ("method", "path", "watching", "gesture"),
    [
        ("GET", "/api/v1/namespaces/crawls/pods", False, "list pods in namespace crawls"),
        ("GET", "/api/v1/namespaces/crawls/pods", True, "watch pods in namespace crawls"),
        (
            "GET",
            "/api/v1/namespaces/crawls/pods/a/log",
            False,
            "get pods/log a in namespace crawls",
        ),
        (
            "DELETE",
            "/apis/batch/v1/namespaces/crawls/jobs/a",
            False,
            "delete jobs a in namespace crawls",
        ),
        ("GET", "/api/v1/namespaces/crawls", False, "get namespaces crawls"),
        ("GET", "/api/v1/nodes", False, "list nodes"),
        ("GET", "/version", False, "GET /version"),
    ],
)
def test_requests_are_spoken_of_in_words(
    method: str, path: str, watching: bool, gesture: str
) -> None:
    assert ApiRequest(method, path, watching).gesture == gesture


def test_only_one_decoder_is_created_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec lets a second thread see half of what it knows about a class."""
    working = list[type]()
    together = list[type]()

    def create(kind: type) -> None:
        if working:
            together.append(kind)
        working.append(kind)
        if kind is int:
            other.start()
            other.join(0.2)
        working.remove(kind)

    monkeypatch.setattr(msgspec.json, "Decoder", create)
    monkeypatch.setattr(objects, "_DECODERS", {})
    other = threading.Thread(target=objects._decoder, args=(str,))
    objects._decoder(int)
    other.join()
    assert together == []
