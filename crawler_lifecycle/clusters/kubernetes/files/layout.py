"""Paths of a task's files, in its pod and on the shared volume.

We find the files of ended runs by these paths, and pods of an earlier version still use them. If a
path changes, the files at the previous path are lost.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from crawler_lifecycle.domain.run_ref import RunRef

#: Name of the pod's volume for supporting files and saved state: the shared claim, or an
#: ``emptyDir``.
DATA_VOLUME = "crawl-data"
#: ``CRAWL_FILES_DIR`` and ``CRAWL_STATE_DIR`` inside the container.
FILES_MOUNT = "/crawl/files"
STATE_MOUNT = "/crawl/state"
#: The temporary folder, where the runner and the crawler can write in addition to the two folders
#: above. All other paths are read-only.
TMP_MOUNT = "/tmp"  # noqa: S108
#: ``CRAWL_SUMMARY_FILE``: the kubelet's termination message. The file exists already; it can be
#: written, but not replaced.
SUMMARY_FILE = "/dev/termination-log"
#: The runner's folder in an image: ``python3 /opt/crawl-runner scrapy …`` or ``… command -- …``.
RUNNER = "/opt/crawl-runner"


def files_path(run: RunRef, index: int, attempt: int) -> PurePosixPath:
    """Return the path on the shared volume that is a task's ``CRAWL_FILES_DIR``."""
    return PurePosixPath("tasks", str(run), str(index), str(attempt), "files")


def state_path(run: RunRef, index: int) -> PurePosixPath:
    """Return the path on the shared volume that is ``CRAWL_STATE_DIR`` for all attempts of this
    task index.
    """
    return PurePosixPath("state", str(run), str(index))


def end_grace_s(*, uploads: bool) -> int:
    """Return ``CRAWL_END_GRACE_S``: the seconds between the end of ``CRAWL_STOP_GRACE_S`` and the
    kubelet's SIGKILL.

    During this time, the runner ends the remaining processes, uploads the files (if ``uploads`` is
    true), and writes its summary. A pod's ``terminationGracePeriodSeconds`` is the sum of the two.
    """
    return 60 if uploads else 10
