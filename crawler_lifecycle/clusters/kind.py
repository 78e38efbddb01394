"""Kinds of clusters.

Each kind has one class, which creates all parts of such a cluster. The settings select the class by
its name. This module does not import implementations. A kind imports a part only when its method is
called, because some parts take a long time to load, and no process needs all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from types import MappingProxyType
from typing import ClassVar

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.ports.cluster import (
    Cluster,
    Deployer,
    EvidenceKeeper,
    LiveFiles,
    Observer,
    TaskFiles,
    TaskLogs,
)
from crawler_lifecycle.ports.protocols import FilesPlace, KnowsRuns, TaskBundles
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from crawler_lifecycle.settings import ClusterSettings

#: A function that returns variables for one task, such as the gateway's address and a token.
TaskEnvironment = Callable[[Deployment, QueuedTask], Mapping[str, str]]

#: The class of each kind, by name. ``LIFECYCLE_CLUSTER__KIND`` can name any other class in the same
#: form.
KINDS: Mapping[str, str] = {
    "local": "crawler_lifecycle.clusters.local.kind:LocalKind",
    "kubernetes": "crawler_lifecycle.clusters.kubernetes.kind:KubernetesKind",
}


class ClusterKind(ABC):
    """A kind of cluster, with all parts that our processes need (docs/clusters.md).

    ``settings`` is the section ``cluster``. Every method can raise ``InvalidRequest`` with the
    setting and the fix. Methods that are not abstract return the value for a cluster that lacks the
    part.
    """

    clears_itself: ClassVar[bool] = False
    """True if its deployer has ``remove_old``, which the scheduler service calls each hour to
    remove old files.
    """
    uploads: ClassVar[bool] = False
    """True if tasks upload their files to ``LIFECYCLE_CLUSTER__FILES_URL`` when that is set."""
    checks: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The checks of ``crawlctl doctor``, as ``module:function`` by name. Only that command imports
    them.
    """
    component: ClassVar[str | None] = None
    """``module:function`` that returns the component in whose pod ``crawlctl doctor`` runs."""
    window: ClassVar[int | None] = None
    """The number of tasks of a run that may wait on the full cluster without pools
    (``Pools.window``).
    """
    slow: ClassVar[Sequence[str]] = ()
    """Modules that the checks need and that take a long time to import."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings

    @abstractmethod
    def deployer(self, task_environment: TaskEnvironment | None) -> Deployer:
        """Return the object that starts tasks, for the scheduler service."""

    @abstractmethod
    def cluster(self) -> Cluster:
        """Return the object that reads the state of tasks and ends tasks, for the roles that call
        the cluster.
        """

    @abstractmethod
    def files(self, bundles: TaskBundles | None) -> TaskFiles:
        """Return the source of the tasks' files for archives, which needs no connection to the
        cluster.

        ``bundles`` reads the files that tasks uploaded.
        """

    @abstractmethod
    def numbers(self) -> KnowsRuns:
        """Return the object that reads which run numbers exist on the cluster."""

    def capacity(self) -> tuple[int | None, int]:
        """Return the number of tasks that can execute at the same time, and of further tasks that
        can wait on the cluster; ``None`` if unknown.

        The pools of an installation share these slots.
        """
        return (self.settings.slots if "slots" in self.settings.model_fields_set else None), 0

    def observer(self) -> Observer | None:
        """Return the observer that reports changes immediately.

        Without an observer, the next poll finds them.
        """
        return None

    def logs(self) -> TaskLogs | None:
        """Return the reader of the tasks' output, for the gateway."""
        return None

    def live_files(self) -> LiveFiles | None:
        """Return the reader of the files that tasks write, for the gateway.

        The reader works while the tasks are executing.
        """
        return None

    def files_elsewhere(self) -> str | None:
        """Return a sentence for people that names where the files are, if ``live_files`` cannot
        read them.
        """
        return None

    def keeper(self) -> EvidenceKeeper | None:
        """Return the object that preserves the evidence of a task's end until the database has
        recorded it.
        """
        return None

    def volume(self) -> FilesPlace | None:
        """Return the volume or the folders with the tasks' files, if this process can reach
        them.
        """
        return None


def kind_of(settings: ClusterSettings) -> ClusterKind:
    """Return the kind that the settings name. Raises ``InvalidRequest`` for an unknown kind."""
    name = settings.kind
    found = None
    wrong = f"LIFECYCLE_CLUSTER__KIND: {name!r:.200}"
    if name not in KINDS and ":" not in name:
        raise InvalidRequest(
            f"{wrong} is not a kind of cluster; give {', '.join(KINDS)}, or your own MODULE:CLASS"
        )
    try:
        found = resolve_name(KINDS.get(name, name))
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequest(
            f"{wrong} cannot be imported ({error}); install it together with this package"
        ) from error
    if not (isinstance(found, type) and issubclass(found, ClusterKind)):
        raise InvalidRequest(
            f"{wrong} is not a ClusterKind; derive the class from {__name__}.ClusterKind"
        )
    return found(settings)
