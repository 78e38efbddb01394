"""Paths of a task's files, in its pod and on the shared volume.

Files of ended runs are found by these rules, and pods of an earlier version continue to use them: a changed path loses
the files under the former path.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from crawler_lifecycle.domain.run_ref import RunRef

#: Name of the pod's volume that holds supporting files and saved state: the shared claim, or an ``emptyDir``.
DATA_VOLUME = "crawl-data"
#: ``CRAWL_FILES_DIR`` and ``CRAWL_STATE_DIR`` inside the container.
FILES_MOUNT = "/crawl/files"
STATE_MOUNT = "/crawl/state"
#: Other paths that the runner and the crawler may write; the rest of the root is read-only.
TMP_MOUNT = "/tmp"  # noqa: S108 - a mount of the pod's own
#: ``CRAWL_SUMMARY_FILE``: the kubelet's termination message. A file that exists, and can be written but not replaced.
SUMMARY_FILE = "/dev/termination-log"
#: The runner's folder in an image: ``python3 /opt/crawl-runner scrapy …`` or ``… command -- …``.
RUNNER = "/opt/crawl-runner"


def files_path(run: RunRef, index: int, attempt: int) -> PurePosixPath:
    """The sub-path of the shared volume that a task has as ``CRAWL_FILES_DIR``."""
    return PurePosixPath("tasks", str(run), str(index), str(attempt), "files")


def state_path(run: RunRef, index: int) -> PurePosixPath:
    """The sub-path that all attempts of one index have as ``CRAWL_STATE_DIR``."""
    return PurePosixPath("state", str(run), str(index))


def end_grace_s(*, uploads: bool) -> int:
    """``CRAWL_END_GRACE_S``: seconds between the end of ``CRAWL_STOP_GRACE_S`` and the kubelet's SIGKILL.

    In this time the runner ends the remaining processes, uploads the files to object storage if there is one
    (``uploads``), and writes its summary. A pod's ``terminationGracePeriodSeconds`` is the sum of both.
    """
    return 60 if uploads else 10
