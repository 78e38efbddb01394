"""Checks of where supporting files of pods go: the bucket, the shared volume."""

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
_DOCS = 'docs/kubernetes.md, "In object storage"'
#: In whose pods which of the two is used.
SIGNS, READS = "gateway", "worker-export"


def check_files(context: Context) -> Sequence[Line]:
    """Check whether bucket and volume can be used: in a component's pod as it uses them, elsewhere in every way."""
    settings = context.known
    mine = component.component()
    url, claim = settings.cluster.files_url, settings.cluster.volume_claim
    lines: list[Line] = []
    if url is None and claim is None:
        cure = "set LIFECYCLE_CLUSTER__FILES_URL, or take in deploy/components/shared-volume (docs/kubernetes.md)"
        lines.append(warn(CHECK, "supporting files are lost with their pods: there is no place for them", cure))
    if url is not None:
        lines += bucket_lines(url, mine)
    if claim is not None and mine != SIGNS and (url is None or mine is None):
        lines.append(volume_line(settings.cluster.volume_path, in_pod=mine is not None))
    return lines


# --- object storage ------------------------------------------------------------------------------------------------


def bucket_lines(url: str, mine: str | None) -> list[Line]:
    """Lines about what is refused of writing, listing, reading and removing; ``mine``: the component that we are."""
    try:
        bucket = compose.build_bundles_place(url, probing=True)
    except InvalidRequest as error:
        return [of_error(CHECK, error, cure=_DOCS)]
    wrong: list[Line] = []

    def tried(probe: Callable[[], None], level: Level = "bad") -> bool:
        try:
            probe()
        except LifecycleError as error:
            told = of_error(CHECK, error, level=level, cure=_DOCS)
            if all(line.text != told.text for line in wrong):
                wrong.append(told)
            return False
        return True

    said = []
    if mine in (None, SIGNS) and tried(bucket.probe_writing):
        said.append("written to")
        if mine == SIGNS:
            # It need not be able to, and the next probe has the same name.
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
    """Check whether the shared volume is mounted here, and can be read, as exports need; or written to as well."""
    if path is None:
        cure = "set LIFECYCLE_CLUSTER__VOLUME_PATH to where workers of the role export have the volume mounted"
        return bad(CHECK, "LIFECYCLE_CLUSTER__VOLUME_PATH is not set, and LIFECYCLE_CLUSTER__VOLUME_CLAIM is", cure)
    if not in_pod and not path.exists():
        cure = "kubectl exec -n crawler-lifecycle deploy/worker-export -- crawlctl doctor tells how it is there"
        return warn(CHECK, f"the shared volume is not mounted on this machine ({path})", cure)
    mount = "mount the claim there (deploy/components/shared-volume), or set LIFECYCLE_CLUSTER__VOLUME_PATH right"
    from crawler_lifecycle.clusters.volume import is_volume

    try:
        there = is_volume(path)
    except OSError as error:
        return bad(CHECK, f"the shared volume cannot be read at {path}: {error.strerror}", mount)
    if not there:
        return bad(CHECK, f"{path} holds no folder 'tasks', and nothing is mounted there", mount)
    closed = _closed(path / "tasks", 5)
    if closed is not None:
        cure = "crawl pods write as user and group 1000: add that group to this one's (supplementalGroups: [1000])"
        return bad(CHECK, f"files on the shared volume cannot be read: {closed}: permission denied", cure)
    writes = " and written to" if os.access(path, os.W_OK | os.X_OK) else ", and not written to, as exports need it"
    return ok(CHECK, f"the shared volume at {path} can be read{writes}")


def _closed(folder: Path, levels: int) -> Path | None:
    """The first folder on the way to some task's files that we may not read; ``None`` when all of them can be."""
    try:
        with os.scandir(folder) as entries:
            inner = next((Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)), None)
    except PermissionError:
        return folder
    except OSError:
        return None  # removed meanwhile, or none yet
    return _closed(inner, levels - 1) if inner is not None and levels > 1 else None
