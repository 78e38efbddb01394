"""The shared volume, or the folders of the local cluster: which runs left something there, and its removal.

A run's folders are moved aside in one step each, below ``trash``, and removed there: a resume that comes meanwhile
finds nothing, and never half of something. The kubelet makes the folders above those of a task, with the rights of the
volume's top folder. Where these do not let us (older kubelets make some that are root's alone), what is in a task's own
folders goes, and empty ones stay.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run_ref import RunRef

TRASH = "trash"
#: In a task's folder of saved state: what of it waits to be removed.
ASIDE = ".removed-"
_TASKS, _STATE = "tasks", "state"
#: Why a folder cannot be removed that is none, is not empty, is not ours, or is gone.
_LEFT = (errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENOENT)
_CURE = "run it where the volume is mounted writable, as the user of crawl pods (1000) or as root"


class VolumePlace:
    """Below ``root`` lies what pods wrote (``layout``). Any number of these may be at work at once.

    What cannot be read or changed raises ``ClusterUnavailable`` with the cure.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)
        """The folder where it is mounted."""

    def runs(self) -> set[str]:
        """The names of folders where those of runs should be, whatever they are."""
        check_mounted(self._root)
        try:
            found = {folder.name for top in (_TASKS, _STATE) for folder in _folders(self._root / top)}
        except OSError as error:
            raise _cannot_clear(self._root, error) from error
        check_mounted(self._root)
        return found

    def put_aside(self, run: RunRef) -> None:
        """Take the run's folders out of the way, at once. What was taken already, or never was, is no error."""
        for top in (_TASKS, _STATE):
            folder = self._root / top / str(run)
            try:
                while _is_folder(folder) and not self._moved(folder, top):
                    continue  # another one was faster, or somebody removed the trash itself: is it still there?
            except OSError as error:
                raise _cannot_clear(folder, error) from error
        check_mounted(self._root)  # only now: without the volume everything looks as if another one had taken it

    def _moved(self, folder: Path, top: str) -> bool:
        """Move a run's folder aside, or hide what is in it; ``False`` when something vanished under our hands.

        Raises ``OSError``.
        """
        trash = self._root / TRASH
        try:
            # In one step: who empties the trash meanwhile takes all or nothing.
            trash.mkdir(exist_ok=True)
            folder.rename(trash / f"{folder.name}.{os.urandom(8).hex()}")
        except FileNotFoundError:
            return False
        except PermissionError:
            if top == _STATE:
                _hide_state(folder)
            else:  # files of an attempt that is over are in nobody's way; but are they ours to remove?
                _check_ours(folder)
        return True

    def remove(self, run: RunRef, attempt: int) -> None:
        """Remove what was put aside of the run, and what of its attempts up to this one lies where it was.

        A resume may have begun meanwhile. What is of its attempt stays, empty or not: a pod has it mounted.
        """
        top = self._root / _TASKS / str(run)
        try:
            aside = [folder for folder in _folders(self._root / TRASH) if folder.name.startswith(f"{run}.")]
            indexes = list(_folders(top))
            over = [
                one for index in indexes for one in _folders(index) if one.name.isdecimal() and int(one.name) <= attempt
            ]
            states = list(_folders(self._root / _STATE / str(run)))
            aside += [one for state in states for one in _folders(state) if one.name.startswith(ASIDE)]
        except OSError as error:
            raise _cannot_clear(self._root, error) from error
        for folder in (*aside, *over):
            _remove(folder)
        for folder in over:
            _remove_empty(folder)
        for folder in (*indexes, top, self._root / _STATE / str(run)):
            _rmdir(folder)
        check_mounted(self._root)

    def finish(self) -> list[str]:
        """Remove what calls that were killed had put aside; what could not be removed, and why."""
        incidents = []
        try:
            left = list(_folders(self._root / TRASH))
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


def _folders(folder: Path) -> Iterator[Path]:
    """The folders in it, links aside; none when it is not there, or is a link itself. Raises ``OSError``."""
    if folder.is_symlink():
        return
    try:
        with os.scandir(folder) as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        found = []
    yield from found


def _check_ours(folder: Path) -> None:
    """Raise ``PermissionError`` unless the files of the first task there is can be removed."""
    first: Path | None = folder
    for _ in ("index", "attempt", "files"):
        first = next(_folders(first), None) if first is not None else None
    if first is not None and not os.access(first, os.W_OK | os.X_OK) and _is_folder(first):  # if nobody removed it
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(first))


def _hide_state(folder: Path) -> None:
    """Make every task's saved state one that is not there. Raises ``OSError``."""
    for state in _folders(folder):
        while names := _to_hide(state):
            aside = state / f"{ASIDE}{os.urandom(8).hex()}"
            # Somebody else at it takes a name before us, or removes what we moved it to: look again what is left.
            with suppress(FileNotFoundError):
                aside.mkdir(mode=0o700)
                # The mark of a clean stop goes first: without it nothing that is left would be trusted.
                for name in sorted(names, key=lambda one: (one != "clean-stop.json", one)):
                    (state / name).rename(aside / name)


def _to_hide(state: Path) -> list[str]:
    try:
        with os.scandir(state) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(ASIDE)]
    except FileNotFoundError:
        return []


def _remove(folder: Path) -> None:
    """Remove a folder, links in it unfollowed; empty folders that are not ours may stay. Raises
    ``ClusterUnavailable``."""
    if _removed(folder):
        _open_up(folder)
        incidents = _removed(folder)
        if incidents:
            path, error = incidents[0]
            raise _cannot_clear(path, error)


def _removed(folder: Path) -> list[tuple[Path, OSError]]:
    """Remove what can be; what hides more than an empty folder."""
    incidents: list[tuple[Path, OSError]] = []

    def failed(what: object, path: str, about: tuple[type, BaseException, object]) -> None:
        error = about[1]
        harmless = what is os.rmdir or isinstance(error, FileNotFoundError)
        if isinstance(error, OSError) and not harmless:
            incidents.append((Path(path), error))

    shutil.rmtree(folder, onerror=failed)
    return incidents


def _open_up(folder: Path) -> None:
    """Give ourselves the right to what crawlers closed to themselves, as far as it is ours."""
    _open_one(folder)
    for path, names, _ in os.walk(folder, onerror=lambda error: None):
        for name in names:
            _open_one(Path(path, name))


def _open_one(folder: Path) -> None:
    with suppress(OSError):  # somebody else removes it too; what stays closed is told by the next try to remove it
        if _is_folder(folder) and folder.lstat().st_uid == os.geteuid():
            folder.chmod(0o700)


def _remove_empty(folder: Path) -> None:
    """Remove the folder and those in it that hold nothing any more, as far as we may."""
    for path, _, _ in os.walk(folder, topdown=False):
        _rmdir(Path(path))


def _rmdir(folder: Path) -> None:
    """Remove the folder if it is empty, and we may."""
    if folder.is_symlink():
        return
    try:
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
