"""A task is gone only where it was created: in another namespace, or on another cluster, nothing is
proved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.polls.namespace_identity import NamespaceIdentity
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.runs import TaskRef
from tests.clusters.kubernetes.polls.harness import RUN, Harness
from tests.support.kube_api.faults import Answer
from tests.support.kube_api.store import NAMESPACES
from tests.support.run_refs import run_ref


def placed(harness: Harness, *, stopping: bool = False, missed_s: float | None = None) -> TaskRef:
    """A task whose place of creation is on record."""
    return replace(harness.ref(stopping=stopping, missed_s=missed_s), place=harness.cluster.place())


def seen(harness: Harness, task: TaskRef) -> Observation:
    return harness.poll(task).observations[0]


def uid_of(harness: Harness, name: str) -> str:
    found = harness.server.store.get(NAMESPACES, ("", name))
    return str(found["metadata"]["uid"])


def move(harness: Harness, name: str = "elsewhere") -> None:
    """From now on, the setting names another namespace."""
    if harness.server.store.find(NAMESPACES, lambda found: found["metadata"]["name"] == name) == []:
        harness.server.add_namespace(name)
    harness.api.namespace = name


def made_anew(harness: Harness) -> None:
    """The namespace was deleted, and another one was created with its name."""
    harness.server.delete_behind(harness.name())
    harness.server.store.remove(NAMESPACES, ("", "crawls"))
    harness.server.add_namespace("crawls")


def another_cluster(harness: Harness) -> None:
    """The kubeconfig now leads to a cluster that has a namespace of the same name."""
    made_anew(harness)
    harness.server.store.remove(NAMESPACES, ("", "kube-system"))
    harness.server.add_namespace("kube-system")


def says(harness: Harness, *old: str) -> None:
    """Record a person's statement that these namespaces are gone for good."""
    note = {labels.REPLACES: ",".join(old)}
    harness.server.store.update(
        NAMESPACES,
        ("", harness.api.namespace),
        lambda found: found["metadata"].update(annotations=note),
    )


def test_the_place_is_the_namespace_and_its_cluster(harness: Harness) -> None:
    assert (
        harness.cluster.place()
        == f"crawls/{uid_of(harness, 'crawls')}/{uid_of(harness, 'kube-system')}"
    )
    assert len(f"{'n' * 63}/{uid_of(harness, 'crawls')}/{uid_of(harness, 'kube-system')}") <= 200


@pytest.mark.parametrize(
    "place",
    [
        NamespaceIdentity("crawls"),
        NamespaceIdentity("crawls", "u"),
        NamespaceIdentity("a-b", "u", "c"),
    ],
)
def test_a_place_is_read_as_it_was_recorded(place: NamespaceIdentity) -> None:
    assert NamespaceIdentity.read(str(place)) == place


@pytest.mark.parametrize("text", ["", "local", "a/b", "a/b/c/d", "/b/c"])
def test_what_is_no_namespace_is_none(text: str) -> None:
    assert NamespaceIdentity.read(text) is None


@pytest.mark.parametrize(("stopping", "missed_s"), [(False, None), (False, 60.0), (True, None)])
@pytest.mark.parametrize("change", [move, another_cluster])
def test_in_another_namespace_nothing_is_missing_and_nothing_is_gone(
    harness: Harness, change: Callable[[Harness], None], stopping: bool, missed_s: float | None
) -> None:
    harness.deploy()
    task, uid = placed(harness, stopping=stopping, missed_s=missed_s), uid_of(harness, "crawls")
    change(harness)
    with pytest.raises(ClusterUnavailable) as raised:
        harness.poll(task)
    text, name = str(raised.value), harness.api.namespace
    assert f"created in namespace crawls (uid {uid})" in text
    assert f"this process reads {name} (uid {uid_of(harness, name)})" in text
    assert "LIFECYCLE_CLUSTER__NAMESPACE" in text
    assert f"kubectl annotate --overwrite namespace {name} crawler-lifecycle/replaces={uid}" in text


def test_with_the_setting_put_back_all_is_as_before(harness: Harness) -> None:
    harness.deploy()
    task = placed(harness)
    move(harness)
    with pytest.raises(ClusterUnavailable):
        harness.poll(task)
    move(harness, "crawls")
    assert seen(harness, task).phase is Phase.EXECUTING


def test_another_installations_job_of_the_same_name_does_not_end_ours(harness: Harness) -> None:
    """Both count their runs from 1."""
    harness.deploy()
    task = placed(harness)
    move(harness)
    job = harness.server.store.find(_jobs(), lambda found: True)[0]
    meta = {**job["metadata"], "uid": "another", "namespace": "elsewhere"}
    harness.server.store.create(_jobs(), ("elsewhere", harness.name()), {**job, "metadata": meta})
    with pytest.raises(ClusterUnavailable, match="may still execute there"):
        harness.poll(task)


def _jobs() -> Any:
    from tests.support.kube_api.store import JOBS

    return JOBS


def test_a_call_without_an_answer_is_looked_for_where_it_went(harness: Harness) -> None:
    """No uid is on record, and a stop would take its absence as proof that it never existed."""
    harness.deploy()
    task = replace(placed(harness), uid=None)
    move(harness)
    with pytest.raises(ClusterUnavailable, match="created in namespace crawls"):
        harness.poll(task)


@pytest.mark.parametrize("method", ["stop", "kill"])
@pytest.mark.parametrize("answered", [True, False])
def test_a_stop_that_finds_nothing_in_another_namespace_is_not_done(
    harness: Harness, method: str, answered: bool
) -> None:
    harness.deploy()
    task = placed(harness) if answered else replace(placed(harness), uid=None)
    move(harness)
    with pytest.raises(ClusterUnavailable, match="may still execute there"):
        getattr(harness.cluster, method)(run_ref(RUN), task)
    assert harness.calls("DELETE") == 0
    move(harness, "crawls")
    getattr(harness.cluster, method)(run_ref(RUN), task)
    assert harness.calls("DELETE") > 0


def test_a_namespace_that_was_deleted_and_made_anew_took_its_tasks_along(harness: Harness) -> None:
    harness.deploy()
    task = placed(harness)
    made_anew(harness)
    found = seen(harness, task)
    assert found.phase is Phase.GONE
    assert "was deleted" in (found.reason or "")
    harness.cluster.stop(run_ref(RUN), task)
    harness.cluster.kill(run_ref(RUN), task)
    assert harness.cluster.place([task.place or ""]) != task.place, "new ones may be put there"


def test_a_namespace_that_was_deleted_is_gone_on_its_own_cluster_only(harness: Harness) -> None:
    harness.deploy()
    task = placed(harness)
    harness.server.delete_behind(harness.name())
    harness.server.store.remove(NAMESPACES, ("", "crawls"))
    assert seen(harness, task).phase is Phase.GONE
    harness.server.store.remove(NAMESPACES, ("", "kube-system"))
    with pytest.raises(ClusterUnavailable, match="crawls, which does not exist") as raised:
        harness.poll(task)
    assert "kubectl create namespace crawls && kubectl annotate" in str(raised.value)


@pytest.mark.parametrize("when", ["put", "looked for"])
def test_without_the_clusters_identity_a_person_has_to_say_it(harness: Harness, when: str) -> None:
    """It may have been created again, or belong to another cluster: nobody can distinguish the two."""
    if when == "put":
        harness.server.deny("get", "namespaces", "kube-system")
    harness.deploy()
    task, uid = placed(harness), uid_of(harness, "crawls")
    made_anew(harness)
    harness.server.deny("get", "namespaces", "kube-system")
    with pytest.raises(ClusterUnavailable, match="perhaps of another cluster"):
        harness.poll(task)
    says(harness, "something-older", uid)
    assert seen(harness, task).phase is Phase.GONE


def test_a_person_may_say_it_of_a_namespace_of_another_name(harness: Harness) -> None:
    harness.deploy()
    task, uid = placed(harness), uid_of(harness, "crawls")
    move(harness)
    says(harness, "someone-else")
    with pytest.raises(ClusterUnavailable):
        harness.poll(task)
    says(harness, uid)
    assert seen(harness, task).phase is Phase.GONE


def test_without_the_right_to_read_the_namespace_nothing_is_gone_and_all_else_goes_on(
    harness: Harness,
) -> None:
    harness.deploy()
    task = placed(harness, missed_s=60)
    harness.server.deny("get", "namespaces")
    assert seen(harness, task).phase is Phase.EXECUTING
    harness.server.delete_behind(harness.name())
    with pytest.raises(
        ClusterUnavailable, match=r"cannot be proved to be gone.*grant permission"
    ) as raised:
        harness.poll(task)
    assert "needs permission to get namespaces crawls" in str(raised.value)
    harness.server.allow("get", "namespaces")
    assert seen(harness, task).phase is Phase.GONE


def test_a_namespace_that_could_not_be_read_is_known_by_its_name(harness: Harness) -> None:
    harness.server.deny("get", "namespaces")
    harness.deploy()
    task = placed(harness, missed_s=60)
    assert task.place == "crawls/-/-"
    harness.server.allow("get", "namespaces")
    move(harness)
    with pytest.raises(ClusterUnavailable, match=r"crawls \(uid unknown\).*replaces=crawls"):
        harness.poll(task)
    move(harness, "crawls")
    harness.server.delete_behind(harness.name())
    assert seen(harness, task).phase is Phase.GONE, "by two polls, as far as anybody can know"


def test_what_is_found_is_there_whatever_is_on_record(harness: Harness) -> None:
    harness.deploy()
    task = replace(harness.ref(), place="crawls/another/cluster")
    assert seen(harness, task).phase is Phase.EXECUTING


def test_a_task_of_another_kind_of_cluster_is_not_gone(harness: Harness) -> None:
    task = TaskRef(1, 0, 1, "uid", place="somewhere")
    with pytest.raises(ClusterUnavailable, match="LIFECYCLE_CLUSTER__KIND"):
        harness.poll(task)


def test_new_tasks_are_not_put_beside_those_of_another_namespace(harness: Harness) -> None:
    old = harness.cluster.place()
    assert old is not None
    move(harness)
    with pytest.raises(ClusterUnavailable, match="created in namespace crawls"):
        harness.cluster.place([old])
    assert harness.cluster.place() == harness.cluster.place([str(harness.cluster.place())]) != old


def test_a_server_that_does_not_say_is_no_place(harness: Harness) -> None:
    harness.server.faults.add("GET", "/namespaces/crawls$", Answer(503), times=None)
    with pytest.raises(ClusterUnavailable):
        harness.cluster.place()


def test_the_namespace_is_read_once_and_only_when_something_is_missing(harness: Harness) -> None:
    harness.deploy(2)
    tasks = [replace(harness.ref(index), place=harness.cluster.place()) for index in (0, 1)]
    harness.forget_calls()
    harness.poll(*tasks)
    assert harness.calls("GET", r"/namespaces/[a-z-]+$") == 0
    for index in (0, 1):
        harness.server.delete_behind(harness.name(index))
    assert [one.phase for one in harness.poll(*tasks).observations] == [Phase.ABSENT] * 2
    assert harness.calls("GET", r"/namespaces/[a-z-]+$") == 1


def test_two_harnesses(tmp_path: Path) -> None:
    """Two clusters with a namespace of the same name."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = Harness(tmp_path / "a"), Harness(tmp_path / "b")
    try:
        one.deploy()
        with pytest.raises(ClusterUnavailable, match=", of another cluster: "):
            other.cluster.poll(run_ref(RUN), [placed(one, missed_s=60)])
    finally:
        one.close()
        other.close()
