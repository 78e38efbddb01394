"""Removal of old runs' files from the shared volume, or from the folders of the local cluster.

Each folder of a run is first atomically moved below ``trash``, and then removed there. A resume in
the meantime therefore finds no folder, but never a half-empty one. The kubelet creates the folders
above those of a task, with the permissions of the volume's top folder. Older kubelets create some
of these folders for root only. In that case, only the contents of the task's own folders are
removed, and empty folders remain.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from itertools import chain
from pathlib import Path

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run_ref import RunRef

TRASH = "trash"
#: The prefix of a subfolder in a task's saved state, to which contents are moved before their
#: removal.
ASIDE = ".removed-"
_TASKS = "tasks"
_STATE = "state"
#: Errors after which a folder may remain, because it is not a folder, is not empty, is not ours, or
#: is gone.
_LEFT = (errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENOENT)
_FIX = "run it where the volume is mounted writable, as the user of crawl pods (1000) or as root"


class VolumePlace:
    """Removes the files that pods wrote below ``root`` (``layout`` has the paths).

    Several processes can remove files at the same time. If a file cannot be read or changed,
    ``ClusterUnavailable`` is raised with the fix.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)
        """The mount point of the volume."""

    def runs(self) -> set[str]:
        """Return the names of all folders at the level of runs, including names that do not belong
        to a run.
        """
        check_mounted(self._root)
        try:
            found = {
                folder.name for top in (_TASKS, _STATE) for folder in _folders(self._root / top)
            }
        except OSError as error:
            raise _cannot_clear(self._root, error) from error
        check_mounted(self._root)
        return found

    def put_aside(self, run: RunRef) -> None:
        """Move the run's folders to the trash. A missing folder is not an error."""
        for top in (_TASKS, _STATE):
            folder = self._root / top / str(run)
            try:
                while _is_folder(folder) and not self._moved(folder, top):
                    # Another process moved the folder, or the trash itself was removed, so check
                    # again whether the folder exists.
                    continue
            except OSError as error:
                raise _cannot_clear(folder, error) from error
        check_mounted(self._root)  # last: without its mount, a volume has no folders

    def _moved(self, folder: Path, top: str) -> bool:
        """Move a run's folder to the trash, or hide its contents if we are not allowed to move it.

        Return ``False`` if the folder or the trash disappeared meanwhile. Raises ``OSError``.
        """
        trash = self._root / TRASH
        try:
            # A rename is atomic, so a process that empties the trash at this moment sees the whole
            # folder or nothing.
            trash.mkdir(exist_ok=True)
            folder.rename(trash / f"{folder.name}.{os.urandom(8).hex()}")
        except FileNotFoundError:
            return False
        except PermissionError:
            if top == _STATE:
                _hide_state(folder)
            # The files of a finished attempt may remain here until ``remove`` is called. Check that
            # we can remove them.
            else:
                _check_ours(folder)
        return True

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove the run's folders from the trash, and the folders of its attempts up to
        ``attempt``.

        A resume may have begun a later attempt meanwhile. The folders of that attempt are kept even
        if they are empty, because a pod mounts them.
        """
        top = self._root / _TASKS / str(run)
        try:
            aside = [
                folder
                for folder in _folders(self._root / TRASH)
                if folder.name.startswith(f"{run}.")
            ]
            indexes = _folders(top)
            over = [
                folder
                for index in indexes
                for folder in _folders(index)
                if folder.name.isdecimal() and int(folder.name) <= attempt
            ]
            states = _folders(self._root / _STATE / str(run))
            aside += [
                folder
                for state in states
                for folder in _folders(state)
                if folder.name.startswith(ASIDE)
            ]
        except OSError as error:
            raise _cannot_clear(self._root, error) from error
        for folder in (*aside, *over):
            _remove(folder)
        for folder in over:  # remove the empty folders that remain
            for path, _, _ in os.walk(folder, topdown=False):
                _rmdir(Path(path))
        for folder in (*indexes, top, self._root / _STATE / str(run)):
            _rmdir(folder)
        check_mounted(self._root)

    def finish(self) -> list[str]:
        """Empty the trash, where killed calls may have left folders.

        Return one sentence for each folder that cannot be removed.
        """
        incidents = []
        try:
            left = _folders(self._root / TRASH)
        except OSError as error:
            return [str(_cannot_clear(self._root, error))]
        for folder in left:
            try:
                _remove(folder)
            except ClusterUnavailable as error:
                incidents.append(str(error))
        return incidents


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _folders(folder: Path) -> list[Path]:
    """Return the folders in ``folder`` as ``folders_in`` does, but none if ``folder`` itself is a
    link.
    """
    return [] if folder.is_symlink() else folders_in(folder)


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in ``folder``, excluding links; none if ``folder`` does not exist.

    Raises ``OSError``.
    """
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _check_ours(folder: Path) -> None:
    """Raise ``PermissionError`` if we are not allowed to remove the files of the first task below
    ``folder``.
    """
    first: Path | None = folder
    for _ in ("index", "attempt", "files"):
        first = next(iter(_folders(first)), None) if first is not None else None
    # The permission is checked only if the folder still exists.
    if first is not None and not os.access(first, os.W_OK | os.X_OK) and _is_folder(first):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(first))


def _hide_state(folder: Path) -> None:
    """Move every task's saved state to a subfolder, so that no attempt finds it.

    Raises ``OSError``.
    """
    for state in _folders(folder):
        while names := _to_hide(state):
            aside = state / f"{ASIDE}{os.urandom(8).hex()}"
            # Another process may have moved a name first, or removed our subfolder. List the
            # remaining names again.
            with suppress(FileNotFoundError):
                aside.mkdir(mode=0o700)
                # Move the marker of a clean stop first, because without it no attempt uses the
                # remaining state.
                for name in sorted(names, key=lambda one: (one != "clean-stop.json", one)):
                    (state / name).rename(aside / name)


def _to_hide(state: Path) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(state) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(ASIDE)]
    return []


def _remove(folder: Path) -> None:
    """Remove a folder.

    Links are not followed, and empty folders that are not ours may remain. Raises
    ``ClusterUnavailable``.
    """
    if _remove_tree(folder):
        _restore_rights(folder)
        if incidents := _remove_tree(folder):
            raise _cannot_clear(*incidents[0])


def _remove_tree(folder: Path) -> list[tuple[Path, OSError]]:
    """Remove as much below ``folder`` as possible, and return the path and error of each remaining
    file.
    """
    incidents: list[tuple[Path, OSError]] = []

    def failed(what: object, path: str, about: tuple[type, BaseException, object]) -> None:
        error = about[1]
        harmless = what is os.rmdir or isinstance(error, FileNotFoundError)
        if isinstance(error, OSError) and not harmless:
            incidents.append((Path(path), error))

    shutil.rmtree(folder, onerror=failed)
    return incidents


def _restore_rights(folder: Path) -> None:
    """Restore our permissions for the folders that we own, because a crawler may have removed
    them.
    """
    inside = (Path(path, name) for path, names, _ in os.walk(folder) for name in names)
    for inner in chain([folder], inside):  # each folder before ``os.walk`` enters it
        # Another process may have removed the folder. Missing permissions are reported by the next
        # removal.
        with suppress(OSError):
            if _is_folder(inner) and inner.lstat().st_uid == os.geteuid():
                inner.chmod(0o700)


def _rmdir(folder: Path) -> None:
    """Remove the folder if it is empty and we are allowed to."""
    try:
        if not folder.is_symlink():
            folder.rmdir()
    except OSError as error:
        if error.errno not in _LEFT:
            raise _cannot_clear(folder, error) from error


def _cannot_clear(path: Path, error: OSError) -> ClusterUnavailable:
    return ClusterUnavailable(f"{str(path)!r} cannot be removed: {error.strerror or error}; {_FIX}")


def is_volume(root: Path) -> bool:
    """Return whether this is the volume, and not the empty folder of its mount point.

    Raises ``OSError``.
    """
    return "tasks" in os.listdir(root) or os.path.ismount(root)


def check_mounted(root: Path) -> None:
    """Raise ``ClusterUnavailable`` if no volume is mounted here, which is an outage and not a
    volume without files.
    """
    try:
        there = is_volume(root)
    except OSError as error:
        raise unreadable(root, error) from error
    if not there:
        raise ClusterUnavailable(
            f"LIFECYCLE_CLUSTER__VOLUME_PATH: {str(root)!r} holds no folder 'tasks' and nothing is "
            "mounted there; mount the volume that crawl pods write to"
        )


def unreadable(root: Path, error: OSError) -> ClusterUnavailable:
    """Return the error for a volume that cannot be read."""
    return ClusterUnavailable(
        f"LIFECYCLE_CLUSTER__VOLUME_PATH: {str(root)!r} cannot be read: {error.strerror}; mount "
        "the volume that crawl "
        "pods write to"
    )
