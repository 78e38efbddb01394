"""The user that runs local crawlers, if this is not the user that runs our own processes."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from crawler_lifecycle.domain.errors import InvalidRequest

_SETTING = "LIFECYCLE_CLUSTER__RUN_AS"


@dataclass(frozen=True, slots=True)
class RunAs:
    """A user on this machine, with only its main group."""

    uid: int
    gid: int
    name: str
    home: str

    @classmethod
    def of(cls, setting: str) -> RunAs:
        """Return the user with this name or number.

        Raises ``InvalidRequest`` with the fix.
        """
        if os.geteuid() != 0:
            raise InvalidRequest(
                f"{_SETTING}: {setting!r} needs a scheduler service that runs as root, but this "
                "one has the uid "
                f"{os.geteuid()}; start the service as root, or unset this setting and start the "
                "service as that user"
            )
        try:
            known = (
                pwd.getpwuid(int(setting))
                if setting.isascii() and setting.isdecimal()
                else pwd.getpwnam(setting)
            )
        except (KeyError, OverflowError):
            fix = (
                f"create the user (useradd --system {setting})"
                if not setting.isdecimal()
                else "name a user that exists"
            )
            raise InvalidRequest(
                f"{_SETTING}: there is no user {setting!r} on this machine; {fix}"
            ) from None
        if known.pw_uid == 0:
            raise InvalidRequest(
                f"{_SETTING}: {setting!r} is root, but no crawler may run as root; name "
                "another user"
            )
        return cls(known.pw_uid, known.pw_gid, known.pw_name, known.pw_dir)

    def environment(self) -> dict[str, str]:
        """Return the variables that differ from our own environment."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def check_way(self, folder: Path) -> None:
        """Raise ``InvalidRequest`` if the user cannot reach the folder.

        ``let_pass`` has already opened our own folders.
        """
        for parent in reversed(folder.parents):
            found = parent.stat()
            bit = stat.S_IXOTH
            if found.st_uid == self.uid:
                bit = stat.S_IXUSR
            elif found.st_gid == self.gid:
                bit = stat.S_IXGRP
            if not found.st_mode & bit:
                raise InvalidRequest(
                    f"{_SETTING}: user {self.name!r} cannot enter {parent} (mode "
                    f"{stat.S_IMODE(found.st_mode):04o}), "
                    f"so it cannot reach {folder}; set LIFECYCLE_CLUSTER__STATE_DIR to a folder "
                    "that others may enter, "
                    f"or run: chmod o+x {parent}"
                )

    def own(self, folder: Path) -> None:
        """Give the folder to this user, and deny access to all others.

        We are root, so we can still use the folder.
        """
        os.chown(folder, self.uid, self.gid, follow_symlinks=False)
        os.chmod(folder, 0o700)

    def share(self, folder: Path) -> None:
        """Let the user create files in the folder, but not remove ours."""
        os.chown(folder, 0, self.gid, follow_symlinks=False)
        os.chmod(folder, stat.S_ISVTX | 0o770)  # noqa: S103


def let_pass(*folders: Path) -> None:
    """Let other users enter these folders of ours, but not list them."""
    for folder in folders:
        os.chmod(folder, 0o711)  # noqa: S103
