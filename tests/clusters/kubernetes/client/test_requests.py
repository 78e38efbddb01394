"""What is sent over the network: exactly one request for each operation."""

from __future__ import annotations

import pytest
from urllib3.connection import HTTPConnection

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import Conflict, NotFound, TooLate
from crawler_lifecycle.clusters.kubernetes.client.objects import Event, Job, Pod, decode
from tests.support.kube_api import Answer, FakeApiServer
from tests.support.kube_objects import job


def test_each_gesture_is_one_request(api: Api, server: FakeApiServer) -> None:
    made = decode(Job, api.post(api.jobs_path(), job("a", {"run": "1"})))
    pod = server.pod_starts("a")["metadata"]["name"]
    server.pod_prints("a", b"hello\n")
    api.get(api.jobs_path("a"))
    api.read(api.pods_path(pod, "log"), container="crawler")
    api.listing(api.jobs_path(), Job)
    api.listing(api.pods_path(), Pod, labels="run=1")
    api.listing(api.path("events"), Event)
    api.patch(api.pods_path(pod), {"metadata": {"labels": {"seen": "yes"}}})
    api.delete(
        api.jobs_path("a"),
        {"propagationPolicy": "Foreground", "preconditions": {"uid": made.metadata.uid}},
    )
    assert [request.method for request in server.requests] == [
        *("POST", "GET", "GET", "GET", "GET", "GET", "PATCH", "DELETE")
    ]


def test_the_time_left_is_asked_when_the_connection_is_there(
    api: Api, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    connect = HTTPConnection.connect

    def connected(self: HTTPConnection) -> None:
        connect(self)
        order.append("connected")

    def left_s() -> float:
        order.append("asked")
        return 2.4567

    monkeypatch.setattr(HTTPConnection, "connect", connected)
    api.post(api.jobs_path(), job("a"), left_s=left_s)
    assert order == ["connected", "asked"]
    [request] = server.requests
    assert (request.query["timeout"], request.query["fieldValidation"]) == ("2.456s", "Strict"), (
        "never more than is left"
    )


@pytest.mark.parametrize("left", [0.0, -1.0, 0.0004])
def test_what_is_too_late_is_not_sent_and_has_no_effect(
    api: Api, server: FakeApiServer, left: float
) -> None:
    for _ in range(3):
        with pytest.raises(TooLate) as raised:
            api.post(api.jobs_path(), job("a"), left_s=lambda: left)
        assert not raised.value.effect_unknown
    assert not server.requests
    api.post(api.jobs_path(), job("a"), left_s=lambda: 1.0)
    assert [request.method for request in server.requests] == ["POST"]


def test_each_sending_has_its_own_time(
    api: Api, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api._wire._access, "renew", lambda *_: True)
    left = iter([2.0, 1.25])
    server.faults.add("POST", "/jobs", Answer(401))
    api.post(api.jobs_path(), job("a"), left_s=lambda: next(left))
    assert [request.query["timeout"] for request in server.requests] == ["2.000s", "1.250s"]


def test_a_list_never_names_a_version_and_comes_in_pages(api: Api, server: FakeApiServer) -> None:
    for index in range(5):
        api.post(api.jobs_path(), job(f"job-{index}"))
    found = api.listing(api.jobs_path(), Job, limit=2)
    lists = [request for request in server.requests if request.method == "GET"]
    assert [item.metadata.name for item in found.items] == [f"job-{index}" for index in range(5)]
    assert [request.query["limit"] for request in lists] == ["2", "2", "2"]
    assert all("resourceVersion" not in request.query for request in lists)
    assert found.resource_version == str(server.store.version)


def test_of_a_long_list_only_what_is_wanted_is_kept(api: Api) -> None:
    for index in range(3):
        api.post(api.jobs_path(), job(f"job-{index}"))
    names = api.listing(api.jobs_path(), Job, limit=2, keep=lambda found: found.metadata.name)
    assert names.items == ["job-0", "job-1", "job-2"]


def test_who_asks_is_said(api: Api, server: FakeApiServer) -> None:
    api.listing(api.jobs_path(), Job)
    headers = server.requests[0].headers
    assert headers["authorization"] == "Bearer test"
    assert headers["user-agent"].startswith("crawler-lifecycle/")
    assert headers["accept"] == "application/json"


def test_names_and_selectors_are_quoted(api: Api, server: FakeApiServer) -> None:
    with pytest.raises(NotFound):
        api.get(api.jobs_path("a/../b?watch=true"))
    assert server.requests[0].query == {}
    assert server.requests[0].target.endswith("/jobs/a%2F..%2Fb%3Fwatch%3Dtrue")
    api.listing(api.pods_path(), Pod, labels="a=b,!c", fields="status.phase=Running")
    assert server.requests[1].query["labelSelector"] == "a=b,!c"
    assert server.requests[1].query["fieldSelector"] == "status.phase=Running"


def test_a_create_asks_the_server_to_refuse_what_it_does_not_know(
    api: Api, server: FakeApiServer
) -> None:
    api.post(api.jobs_path(), job("a"), dry_run=True)
    assert server.requests[0].query == {"fieldValidation": "Strict", "dryRun": "All"}
    with pytest.raises(NotFound):
        api.get(api.jobs_path("a"))


def test_options_of_a_deletion_arrive(api: Api, server: FakeApiServer) -> None:
    api.post(api.jobs_path(), job("a"))
    with pytest.raises(Conflict) as refused:
        api.delete(
            api.jobs_path("a"),
            {"propagationPolicy": "Foreground", "preconditions": {"uid": "another"}},
        )
    assert refused.value.status == 409
    assert "does not match the UID in record" in refused.value.words
    assert server.requests[-1].body == {
        **{"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"},
        "preconditions": {"uid": "another"},
    }
    assert decode(Job, api.get(api.jobs_path("a"))).metadata.deletion_timestamp is None


def test_a_patch_of_another_object_under_the_name_is_a_conflict(
    api: Api, server: FakeApiServer
) -> None:
    made = decode(Job, api.post(api.jobs_path(), job("a")))
    assert api.patch(
        api.jobs_path("a"), {"metadata": {"uid": made.metadata.uid, "labels": {"x": "1"}}}
    )
    server.recreate_behind("a")
    with pytest.raises(Conflict, match="field is immutable") as refused:
        api.patch(
            api.jobs_path("a"), {"metadata": {"uid": made.metadata.uid, "labels": {"x": "2"}}}
        )
    assert refused.value.status == 422  # what a real server returns
    assert decode(Job, api.get(api.jobs_path("a"))).metadata.labels["x"] == "1"


def test_a_log_comes_as_it_is(api: Api, server: FakeApiServer) -> None:
    api.post(api.jobs_path(), job("a"))
    name = server.pod_starts("a")["metadata"]["name"]
    server.pod_prints("a", b"one\n\xff\x00two\nthree")
    assert api.read(api.pods_path(name, "log")) == b"one\n\xff\x00two\nthree"
    assert api.read(api.pods_path(name, "log"), tailLines=1) == b"three"
    assert api.read(api.pods_path(name, "log"), limitBytes=5) == b"one\n\xff"


def test_the_servers_clock_is_noticed(api: Api) -> None:
    assert api.skew_s is None
    api.listing(api.jobs_path(), Job)
    assert api.skew_s is not None
    assert abs(api.skew_s) < 60
