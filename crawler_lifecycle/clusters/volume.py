"""The shared volume, or the folders of the local cluster: which runs left something there, and its removal.

A run's folders are moved aside in one step each, below ``trash``, and removed there: a resume in the meantime finds no
folder, and never a half-empty one. The kubelet makes the folders above those of a task, with the rights of the volume's
top folder. Where these rights are missing (older kubelets make some folders for root only), the contents of a task's
own folders are removed, and empty folders stay.
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
#: In a task's folder of saved state: the subfolder for contents that are to be removed.
ASIDE = ".removed-"
_TASKS, _STATE = "tasks", "state"
#: Error numbers for a folder that is no folder, is not empty, is not ours, or is gone.
_LEFT = (errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENOENT)
_CURE = "run it where the volume is mounted writable, as the user of crawl pods (1000) or as root"


class VolumePlace:
    """Removes files that pods wrote below ``root`` (``layout``).

    Several processes may do this at once. Files that cannot be read or changed raise ``ClusterUnavailable`` with the
    cure.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)
        """The mount point of the volume."""

    def runs(self) -> set[str]:
        """The names of all folders at the level of runs, of whatever form."""
        check_mounted(self._root)
        try:
            found = {folder.name for top in (_TASKS, _STATE) for folder in _folders(self._root / top)}
        except OSError as error:
            raise _cannot_clear(self._root, error) from error
        check_mounted(self._root)
        return found

    def put_aside(self, run: RunRef) -> None:
        """Move the run's folders out of the way, at once. Missing folders are no error."""
        for top in (_TASKS, _STATE):
            folder = self._root / top / str(run)
            try:
                while _is_folder(folder) and not self._moved(folder, top):
                    continue  # another process was faster, or somebody removed the trash itself: does it still exist?
            except OSError as error:
                raise _cannot_clear(folder, error) from error
        check_mounted(self._root)  # only now: without the volume everything looks as if another one had taken it

    def _moved(self, folder: Path, top: str) -> bool:
        """Move a run's folder aside, or hide its contents;

        ``False`` when something disappeared meanwhile. Raises ``OSError``.
        """
        trash = self._root / TRASH
        try:
            # In one step: a process that empties the trash meanwhile removes all or nothing.
            trash.mkdir(exist_ok=True)
            folder.rename(trash / f"{folder.name}.{os.urandom(8).hex()}")
        except FileNotFoundError:
            return False
        except PermissionError:
            if top == _STATE:
                _hide_state(folder)
            else:  # files of an ended attempt may stay; but may we remove them?
                _check_ours(folder)
        return True

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove the run's folders from the trash, and those of its attempts up to this one from their location.

        A resume may have begun meanwhile. The folders of its attempt stay, empty or not: a pod has them mounted.
        """
        top = self._root / _TASKS / str(run)
        try:
            aside = [folder for folder in _folders(self._root / TRASH) if folder.name.startswith(f"{run}.")]
            indexes = _folders(top)
            over = [
                one for index in indexes for one in _folders(index) if one.name.isdecimal() and int(one.name) <= attempt
            ]
            states = _folders(self._root / _STATE / str(run))
            aside += [one for state in states for one in _folders(state) if one.name.startswith(ASIDE)]
        except OSError as error:
            raise _cannot_clear(self._root, error) from error
        for folder in (*aside, *over):
            _remove(folder)
        for folder in over:  # and empty folders that are left in it
            for path, _, _ in os.walk(folder, topdown=False):
                _rmdir(Path(path))
        for folder in (*indexes, top, self._root / _STATE / str(run)):
            _rmdir(folder)
        check_mounted(self._root)

    def finish(self) -> list[str]:
        """Remove what killed calls had put aside. Returns what could not be removed, and why."""
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
    """The folders in it, without links; none when it does not exist, or is a link itself. Raises ``OSError``."""
    if not folder.is_symlink():
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _check_ours(folder: Path) -> None:
    """Raise ``PermissionError`` unless the files of the first task there is can be removed."""
    first: Path | None = folder
    for _ in ("index", "attempt", "files"):
        first = next(iter(_folders(first)), None) if first is not None else None
    if first is not None and not os.access(first, os.W_OK | os.X_OK) and _is_folder(first):  # if it still exists
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(first))


def _hide_state(folder: Path) -> None:
    """Make every task's saved state one that is not there. Raises ``OSError``."""
    for state in _folders(folder):
        while names := _to_hide(state):
            aside = state / f"{ASIDE}{os.urandom(8).hex()}"
            # Another process may take a name before us, or remove the folder that we move it to: list the rest again.
            with suppress(FileNotFoundError):
                aside.mkdir(mode=0o700)
                # The mark of a clean stop goes first: without it nothing that is left would be trusted.
                for name in sorted(names, key=lambda one: (one != "clean-stop.json", one)):
                    (state / name).rename(aside / name)


def _to_hide(state: Path) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(state) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(ASIDE)]
    return []


def _remove(folder: Path) -> None:
    """Remove a folder without following links; empty folders that are not ours may stay. Raises
    ``ClusterUnavailable``.
    """
    if _removed(folder):
        _open_up(folder)
        if incidents := _removed(folder):
            raise _cannot_clear(*incidents[0])


def _removed(folder: Path) -> list[tuple[Path, OSError]]:
    """Remove all files that we may; hide the rest, if it is more than empty folders."""
    incidents: list[tuple[Path, OSError]] = []

    def failed(what: object, path: str, about: tuple[type, BaseException, object]) -> None:
        error = about[1]
        harmless = what is os.rmdir or isinstance(error, FileNotFoundError)
        if isinstance(error, OSError) and not harmless:
            incidents.append((Path(path), error))

    shutil.rmtree(folder, onerror=failed)
    return incidents


def _open_up(folder: Path) -> None:
    """Give ourselves the rights that crawlers removed, as far as the files are ours."""
    inside = (Path(path, name) for path, names, _ in os.walk(folder) for name in names)
    for one in chain([folder], inside):  # each before ``os.walk`` goes into it
        with suppress(OSError):  # another process removes it too; one that stays closed is reported by the next try
            if _is_folder(one) and one.lstat().st_uid == os.geteuid():
                one.chmod(0o700)


def _rmdir(folder: Path) -> None:
    """Remove the folder if it is empty and we may."""
    try:
        if not folder.is_symlink():
            folder.rmdir()
    except OSError as error:
        if error.errno not in _LEFT:
            raise _cannot_clear(folder, error) from error


def _cannot_clear(path: Path, error: OSError) -> ClusterUnavailable:
    return ClusterUnavailable(f"{str(path)!r} cannot be cleared: {error.strerror or error}; {_CURE}")


def is_volume(root: Path) -> bool:
    """Tell whether this is the volume, and not the empty folder where it should be mounted. Raises ``OSError``."""
    return "tasks" in os.listdir(root) or os.path.ismount(root)


def check_mounted(root: Path) -> None:
    """Raise ``ClusterUnavailable`` for an empty folder where a volume should be mounted: it is an outage, and not a
    volume without files."""
    try:
        there = is_volume(root)
    except OSError as error:
        raise unreadable(root, error) from error
    if not there:
        raise ClusterUnavailable(
            f"LIFECYCLE_CLUSTER__VOLUME_PATH: {str(root)!r} holds no folder 'tasks' and nothing is mounted there; "
            "mount the volume that crawl pods write to"
        )


def unreadable(root: Path, error: OSError) -> ClusterUnavailable:
    """The error for a volume that cannot be read."""
    return ClusterUnavailable(
        f"LIFECYCLE_CLUSTER__VOLUME_PATH: {str(root)!r} cannot be read: {error.strerror}; mount the volume that crawl "
        "pods write to"
    )
