"""Checks of the storage for supporting files of pods: the bucket and the shared volume."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from crawler_lifecycle import compose
from crawler_lifecycle.cli.doctor.report import Context, Level, Line, bad, of_error, ok, warn
from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError

from . import component

CHECK = "files"
_DOCS = 'docs/kubernetes-files.md, "In object storage"'
#: The component that writes to the bucket (by signed URLs), and the component that reads bucket and volume.
SIGNS, READS = "gateway", "worker-export"


def check_files(context: Context) -> Sequence[Line]:
    """Check that bucket and volume can be used. In a component's pod, only the accesses that it needs are tried."""
    settings = context.known
    mine = component.component()
    url, claim = settings.cluster.files_url, settings.cluster.volume_claim
    lines: list[Line] = []
    if url is None and claim is None:
        cure = "set LIFECYCLE_CLUSTER__FILES_URL, or add deploy/components/shared-volume (docs/kubernetes-files.md)"
        lines.append(warn(CHECK, "supporting files are lost with their pods: no storage is set for them", cure))
    if url is not None:
        lines += bucket_lines(url, mine)
    if claim is not None and mine != SIGNS and (url is None or mine is None):
        lines.append(volume_line(settings.cluster.volume_path, in_pod=mine is not None))
    return lines


# --- object storage ------------------------------------------------------------------------------------------------


def bucket_lines(url: str, mine: str | None) -> list[Line]:
    """Return findings about writing, listing, reading and removing. ``mine`` is the component of this pod."""
    try:
        bucket = compose.build_bundles_place(url, probing=True)
    except InvalidRequest as error:
        return [of_error(CHECK, error, cure=_DOCS)]
    wrong: list[Line] = []

    def tried(probe: Callable[[], None], level: Level = "bad") -> bool:
        try:
            probe()
        except LifecycleError as error:
            found = of_error(CHECK, error, level=level, cure=_DOCS)
            if all(line.text != found.text for line in wrong):
                wrong.append(found)
            return False
        return True

    said = []
    if mine in (None, SIGNS) and tried(bucket.probe_writing):
        said.append("written to")
        if mine == SIGNS:
            # This component does not need the right to remove. The next probe replaces this one.
            with suppress(LifecycleError):
                bucket.probe_removing()
    if mine in (None, READS) and tried(bucket.probe_listing) and tried(bucket.probe_reading):
        said.append("read")
    if mine is None and tried(bucket.probe_removing, "warn"):
        said.append("cleared")
    if said:
        wrong.append(ok(CHECK, f"{bucket.where} can be {', '.join(said)}{f' by {mine}' if mine else ''}"))
    return wrong


# --- shared volume -------------------------------------------------------------------------------------------------


def volume_line(path: Path | None, *, in_pod: bool) -> Line:
    """Check that the shared volume is mounted here and can be read, as exports need. Report whether it is writable."""
    if path is None:
        cure = "set LIFECYCLE_CLUSTER__VOLUME_PATH to the mount point of the volume in workers of the role export"
        return bad(CHECK, "LIFECYCLE_CLUSTER__VOLUME_CLAIM is set, but LIFECYCLE_CLUSTER__VOLUME_PATH is not", cure)
    if not in_pod and not path.exists():
        cure = "check it in its pod: kubectl exec -n crawler-lifecycle deploy/worker-export -- crawlctl doctor"
        return warn(CHECK, f"the shared volume is not mounted on this machine ({path})", cure)
    mount = "mount the claim there (deploy/components/shared-volume), or correct LIFECYCLE_CLUSTER__VOLUME_PATH"
    from crawler_lifecycle.clusters.volume import is_volume

    try:
        there = is_volume(path)
    except OSError as error:
        return bad(CHECK, f"the shared volume cannot be read at {path}: {error.strerror}", mount)
    if not there:
        return bad(CHECK, f"{path} has no folder 'tasks', and nothing is mounted there", mount)
    closed = _closed(path / "tasks", 5)
    if closed is not None:
        cure = "crawl pods write as user and group 1000: add this group to the pod (supplementalGroups: [1000])"
        return bad(CHECK, f"files on the shared volume cannot be read: {closed}: permission denied", cure)
    writes = " and written to" if os.access(path, os.W_OK | os.X_OK) else " but not written to, which is enough"
    return ok(CHECK, f"the shared volume at {path} can be read{writes}")


def _closed(folder: Path, levels: int) -> Path | None:
    """Return the first unreadable folder on the path to the files of a task; ``None`` if all can be read."""
    try:
        with os.scandir(folder) as entries:
            inner = next((Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)), None)
    except PermissionError:
        return folder
    except OSError:
        return None  # the folder was removed meanwhile, or does not exist yet
    return _closed(inner, levels - 1) if inner is not None and levels > 1 else None
