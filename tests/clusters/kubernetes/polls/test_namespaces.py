"""A task is gone only where it was put: in another namespace, or on another cluster, nothing is
proved about it.
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
from tests.clusters.kubernetes.polls.world import RUN, World
from tests.support.kube_api.faults import Answer
from tests.support.kube_api.store import NAMESPACES
from tests.support.run_refs import run_ref


def placed(world: World, *, stopping: bool = False, missed_s: float | None = None) -> TaskRef:
    """A task of which it is on record where it was put."""
    return replace(world.ref(stopping=stopping, missed_s=missed_s), place=world.cluster.place())


def seen(world: World, task: TaskRef) -> Observation:
    return world.poll(task).observations[0]


def uid_of(world: World, name: str) -> str:
    found = world.server.store.get(NAMESPACES, ("", name))
    return str(found["metadata"]["uid"])


def move(world: World, name: str = "elsewhere") -> None:
    """The setting names another namespace from now on."""
    if world.server.store.find(NAMESPACES, lambda found: found["metadata"]["name"] == name) == []:
        world.server.add_namespace(name)
    world.api.namespace = name


def made_anew(world: World) -> None:
    """The namespace was deleted, and there is another one of its name."""
    world.server.delete_behind(world.name())
    world.server.store.remove(NAMESPACES, ("", "crawls"))
    world.server.add_namespace("crawls")


def another_cluster(world: World) -> None:
    """The kubeconfig leads to a cluster that has a namespace of the same name."""
    made_anew(world)
    world.server.store.remove(NAMESPACES, ("", "kube-system"))
    world.server.add_namespace("kube-system")


def says(world: World, *old: str) -> None:
    """A person's word that these namespaces are gone for good."""
    note = {labels.REPLACES: ",".join(old)}
    world.server.store.update(
        NAMESPACES,
        ("", world.api.namespace),
        lambda found: found["metadata"].update(annotations=note),
    )


def test_the_place_is_the_namespace_and_its_cluster(world: World) -> None:
    assert (
        world.cluster.place() == f"crawls/{uid_of(world, 'crawls')}/{uid_of(world, 'kube-system')}"
    )
    assert len(f"{'n' * 63}/{uid_of(world, 'crawls')}/{uid_of(world, 'kube-system')}") <= 200


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
    world: World, change: Callable[[World], None], stopping: bool, missed_s: float | None
) -> None:
    world.deploy()
    task, uid = placed(world, stopping=stopping, missed_s=missed_s), uid_of(world, "crawls")
    change(world)
    with pytest.raises(ClusterUnavailable) as raised:
        world.poll(task)
    text, name = str(raised.value), world.api.namespace
    assert f"created in namespace crawls (uid {uid})" in text
    assert f"this process reads {name} (uid {uid_of(world, name)})" in text
    assert "LIFECYCLE_CLUSTER__NAMESPACE" in text
    assert f"kubectl annotate --overwrite namespace {name} crawler-lifecycle/replaces={uid}" in text


def test_with_the_setting_put_back_all_is_as_before(world: World) -> None:
    world.deploy()
    task = placed(world)
    move(world)
    with pytest.raises(ClusterUnavailable):
        world.poll(task)
    move(world, "crawls")
    assert seen(world, task).phase is Phase.EXECUTING


def test_another_installations_job_of_the_same_name_does_not_end_ours(world: World) -> None:
    """Both count their runs from 1."""
    world.deploy()
    task = placed(world)
    move(world)
    job = world.server.store.find(_jobs(), lambda found: True)[0]
    meta = {**job["metadata"], "uid": "another", "namespace": "elsewhere"}
    world.server.store.create(_jobs(), ("elsewhere", world.name()), {**job, "metadata": meta})
    with pytest.raises(ClusterUnavailable, match="may still execute there"):
        world.poll(task)


def _jobs() -> Any:
    from tests.support.kube_api.store import JOBS

    return JOBS


def test_a_call_without_an_answer_is_looked_for_where_it_went(world: World) -> None:
    """No uid is on record, and a stop would take its absence for proof that it never came to
    life.
    """
    world.deploy()
    task = replace(placed(world), uid=None)
    move(world)
    with pytest.raises(ClusterUnavailable, match="created in namespace crawls"):
        world.poll(task)


@pytest.mark.parametrize("method", ["stop", "kill"])
@pytest.mark.parametrize("answered", [True, False])
def test_a_stop_that_finds_nothing_in_another_namespace_is_not_done(
    world: World, method: str, answered: bool
) -> None:
    world.deploy()
    task = placed(world) if answered else replace(placed(world), uid=None)
    move(world)
    with pytest.raises(ClusterUnavailable, match="may still execute there"):
        getattr(world.cluster, method)(run_ref(RUN), task)
    assert world.calls("DELETE") == 0
    move(world, "crawls")
    getattr(world.cluster, method)(run_ref(RUN), task)
    assert world.calls("DELETE") > 0


def test_a_namespace_that_was_deleted_and_made_anew_took_its_tasks_along(world: World) -> None:
    world.deploy()
    task = placed(world)
    made_anew(world)
    found = seen(world, task)
    assert found.phase is Phase.GONE
    assert "was deleted" in (found.reason or "")
    world.cluster.stop(run_ref(RUN), task)
    world.cluster.kill(run_ref(RUN), task)
    assert world.cluster.place([task.place or ""]) != task.place, "new ones may be put there"


def test_a_namespace_that_was_deleted_is_gone_on_its_own_cluster_only(world: World) -> None:
    world.deploy()
    task = placed(world)
    world.server.delete_behind(world.name())
    world.server.store.remove(NAMESPACES, ("", "crawls"))
    assert seen(world, task).phase is Phase.GONE
    world.server.store.remove(NAMESPACES, ("", "kube-system"))
    with pytest.raises(ClusterUnavailable, match="crawls, which does not exist") as raised:
        world.poll(task)
    assert "kubectl create namespace crawls && kubectl annotate" in str(raised.value)


@pytest.mark.parametrize("when", ["put", "looked for"])
def test_without_the_clusters_identity_a_person_has_to_say_it(world: World, when: str) -> None:
    """Deleted and made anew, or of another cluster: nobody can tell them apart."""
    if when == "put":
        world.server.deny("get", "namespaces", "kube-system")
    world.deploy()
    task, uid = placed(world), uid_of(world, "crawls")
    made_anew(world)
    world.server.deny("get", "namespaces", "kube-system")
    with pytest.raises(ClusterUnavailable, match="perhaps of another cluster"):
        world.poll(task)
    says(world, "something-older", uid)
    assert seen(world, task).phase is Phase.GONE


def test_a_person_may_say_it_of_a_namespace_of_another_name(world: World) -> None:
    world.deploy()
    task, uid = placed(world), uid_of(world, "crawls")
    move(world)
    says(world, "someone-else")
    with pytest.raises(ClusterUnavailable):
        world.poll(task)
    says(world, uid)
    assert seen(world, task).phase is Phase.GONE


def test_without_the_right_to_read_the_namespace_nothing_is_gone_and_all_else_goes_on(
    world: World,
) -> None:
    world.deploy()
    task = placed(world, missed_s=60)
    world.server.deny("get", "namespaces")
    assert seen(world, task).phase is Phase.EXECUTING
    world.server.delete_behind(world.name())
    with pytest.raises(
        ClusterUnavailable, match=r"cannot be proved to be gone.*grant the right"
    ) as raised:
        world.poll(task)
    assert "needs permission to get namespaces crawls" in str(raised.value)
    world.server.allow("get", "namespaces")
    assert seen(world, task).phase is Phase.GONE


def test_a_namespace_that_could_not_be_read_is_known_by_its_name(world: World) -> None:
    world.server.deny("get", "namespaces")
    world.deploy()
    task = placed(world, missed_s=60)
    assert task.place == "crawls/-/-"
    world.server.allow("get", "namespaces")
    move(world)
    with pytest.raises(ClusterUnavailable, match=r"crawls \(uid unknown\).*replaces=crawls"):
        world.poll(task)
    move(world, "crawls")
    world.server.delete_behind(world.name())
    assert seen(world, task).phase is Phase.GONE, "by two polls, as far as anybody can know"


def test_what_is_found_is_there_whatever_is_on_record(world: World) -> None:
    world.deploy()
    task = replace(world.ref(), place="crawls/another/cluster")
    assert seen(world, task).phase is Phase.EXECUTING


def test_a_task_of_another_kind_of_cluster_is_not_gone(world: World) -> None:
    task = TaskRef(1, 0, 1, "uid", place="somewhere")
    with pytest.raises(ClusterUnavailable, match="LIFECYCLE_CLUSTER__KIND"):
        world.poll(task)


def test_new_tasks_are_not_put_beside_those_of_another_namespace(world: World) -> None:
    old = world.cluster.place()
    assert old is not None
    move(world)
    with pytest.raises(ClusterUnavailable, match="created in namespace crawls"):
        world.cluster.place([old])
    assert world.cluster.place() == world.cluster.place([str(world.cluster.place())]) != old


def test_a_server_that_does_not_say_is_no_place(world: World) -> None:
    world.server.faults.add("GET", "/namespaces/crawls$", Answer(503), times=None)
    with pytest.raises(ClusterUnavailable):
        world.cluster.place()


def test_the_namespace_is_read_once_and_only_when_something_is_missing(world: World) -> None:
    world.deploy(2)
    tasks = [replace(world.ref(index), place=world.cluster.place()) for index in (0, 1)]
    world.forget_calls()
    world.poll(*tasks)
    assert world.calls("GET", r"/namespaces/[a-z-]+$") == 0
    for index in (0, 1):
        world.server.delete_behind(world.name(index))
    assert [one.phase for one in world.poll(*tasks).observations] == [Phase.ABSENT] * 2
    assert world.calls("GET", r"/namespaces/[a-z-]+$") == 1


def test_two_worlds(tmp_path: Path) -> None:
    """Two clusters, a namespace of the same name on each."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = World(tmp_path / "a"), World(tmp_path / "b")
    try:
        one.deploy()
        with pytest.raises(ClusterUnavailable, match=", of another cluster: "):
            other.cluster.poll(run_ref(RUN), [placed(one, missed_s=60)])
    finally:
        one.close()
        other.close()
