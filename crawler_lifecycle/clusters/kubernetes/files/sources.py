"""Sources of the supporting files from pods: the shared volume, or object storage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from crawler_lifecycle.clusters.volume import check_mounted, unreadable
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.cluster import TaskFiles
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.protocols import TaskBundles
from crawler_lifecycle.ports.runs import TaskRef

from .layout import files_path

NOWHERE = (
    "this cluster keeps no supporting files: neither LIFECYCLE_CLUSTER__VOLUME_CLAIM nor "
    "LIFECYCLE_CLUSTER__FILES_URL is set"
)


def task_files(
    claim: str | None, volume_path: Path | None, bundles: TaskBundles | None
) -> TaskFiles:
    """Return the source of files: object storage if it is configured, else the volume, else a
    source without files.

    Raises ``InvalidRequest`` for a claim without the path where our processes mount it.
    """
    if bundles is not None:
        return BundleFiles(bundles)
    if claim is None:
        return NoFiles()
    if volume_path is None:
        raise InvalidRequest(
            f"LIFECYCLE_CLUSTER__VOLUME_PATH: missing for the claim {claim!r}; set it to the path "
            "where the workers "
            "mount that volume, or set LIFECYCLE_CLUSTER__FILES_URL instead"
        )
    return VolumeFiles(volume_path)


class VolumeFiles:
    """Folders of a shared volume, one for each task and attempt.

    The kubelet creates them when a pod starts.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """Return the existing folders. A task whose pod never started has none.

        Raises ``ClusterUnavailable``.
        """
        found = []
        for task in tasks:
            folder = self._root / files_path(run, task.index, task.attempt)
            try:
                folder.stat(follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise unreadable(self._root, error) from error
            found.append(
                FileSource(files_prefix(task.index, task.attempt), folder, root=self._root)
            )
        # check this last, because an unmounted volume seems to have no folders
        check_mounted(self._root)
        return found


class BundleFiles:
    """Files that tasks uploaded to object storage.

    They are read only when an archive is written.
    """

    def __init__(self, bundles: TaskBundles) -> None:
        self._bundles = bundles

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """Return one bundle for each task that was deployed."""
        read = self._bundles.read
        return [
            FileSource(
                files_prefix(task.index, task.attempt),
                bundle=partial(read, run, task.index, task.attempt),
            )
            for task in tasks
            if task.uid is not None
        ]


class NoFiles:
    """The source for a cluster that keeps no files: they are lost with their pods."""

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """Return a source without files for each deployed task, with the reason."""
        deployed = [task for task in tasks if task.uid is not None]
        return [
            FileSource(files_prefix(task.index, task.attempt), missing=NOWHERE) for task in deployed
        ]
