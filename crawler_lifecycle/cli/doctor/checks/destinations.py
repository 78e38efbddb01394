"""Checks of the destinations of results: the archive, the event bus, pushes, and the bucket for the
files of pods.

Without these checks, problems with the destinations would appear only when the first run has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from crawler_lifecycle import compose
from crawler_lifecycle.cli.doctor.report import Check, Context, Level, Line, bad, of_error, ok, warn
from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError
from crawler_lifecycle.settings import Settings

from . import component

FILES = "files"
_DOCS = 'docs/kubernetes-files.md, "In object storage"'
#: The component that writes to the bucket (through signed URLs), and the component that reads from
#: the bucket.
SIGNS = "gateway"
READS = "worker-export"


# --- archive, events, pushes ----------------------------------------------------------------------


def _asking(name: str, url: Callable[[Settings], str], ask: Callable[[Settings], str]) -> Check:
    def look(context: Context) -> Sequence[Line]:
        try:
            place = url(context.known)
            path = Path(unquote(urlsplit(place).path))
            # The doctor must not create files or folders that do not exist yet.
            if place.startswith("file:///") and not path.exists():
                return [_to_be_made(name, path)]
            return [ok(name, ask(context.known))]
        except LifecycleError as error:
            return [of_error(name, error)]

    return Check(name, look)


#: The archive check writes and removes a file. The checks of events and pushes send nothing.
CHECKS = (
    _asking(
        "archive",
        lambda settings: settings.archive.url,
        lambda settings: compose.build_archive(settings).check(),
    ),
    _asking(
        "events",
        lambda settings: settings.events.url,
        lambda settings: compose.build_sink(settings).check(),
    ),
    _asking(
        "pushes",
        lambda settings: "",
        lambda settings: "; ".join(
            notifier.check() for notifier in compose.build_notifiers(settings)
        ),
    ),
)


def _to_be_made(name: str, path: Path) -> Line:
    there = next(parent for parent in path.parents if parent.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ok(name, f"{path} does not exist yet, but can be created")
    fix = f"let this user write there, or set LIFECYCLE_{name.upper()}__URL"
    return bad(name, f"{path} does not exist, and this user cannot create it in {there}", fix)


# --- files of pods --------------------------------------------------------------------------------


def check_files(context: Context) -> Sequence[Line]:
    """Check that a storage is set for the files of pods.

    For a bucket, try each kind of access that this component needs.
    """
    of = context.known.cluster
    if of.files_url is not None:
        return bucket_lines(of.files_url, component.component())
    if of.volume_claim is not None:
        return []
    fix = (
        "set LIFECYCLE_CLUSTER__FILES_URL or LIFECYCLE_CLUSTER__VOLUME_CLAIM "
        "(docs/kubernetes-files.md)"
    )
    return [
        warn(FILES, "supporting files are lost with their pods: no storage is set for them", fix)
    ]


def bucket_lines(url: str, mine: str | None) -> list[Line]:
    """Return findings about write, list, read and remove access.

    ``mine`` is the component of this pod.
    """
    try:
        bucket = compose.open_bundles(url, probing=True)
    except InvalidRequest as error:
        return [of_error(FILES, error, fix=_DOCS)]
    wrong: list[Line] = []

    def tried(probe: Callable[[], None], level: Level = "bad") -> bool:
        try:
            probe()
        except LifecycleError as error:
            found = of_error(FILES, error, level=level, fix=_DOCS)
            if all(line.text != found.text for line in wrong):
                wrong.append(found)
            return False
        return True

    said = []
    if mine in (None, SIGNS) and tried(bucket.probe_writing):
        said.append("written to")
        if mine == SIGNS:
            # This component does not need permission to remove files. The next probe replaces the
            # file.
            with suppress(LifecycleError):
                bucket.probe_removing()
    if mine in (None, READS) and tried(bucket.probe_listing) and tried(bucket.probe_reading):
        said.append("read")
    if mine is None and tried(bucket.probe_removing, "warn"):
        said.append("cleared")
    if said:
        wrong.append(
            ok(FILES, f"{bucket.where} can be {', '.join(said)}{f' by {mine}' if mine else ''}")
        )
    return wrong
