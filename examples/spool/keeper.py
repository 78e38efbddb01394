"""The keeper of one task, which waits for a slot, starts the crawler, passes on one stop, and writes
the end.

``keeper.py FOLDER EXPIRES_AT`` returns when it has taken over the task, and continues in the
background. Everything that it knows is in the folder. Its environment names the folder, which shows
other processes that it is alive. It uses only the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

#: The files of a task. ``SPEC`` exists before the keeper starts. ``BEGUN`` shows that a keeper has
#: taken over the task, and that no other keeper may do so.
SPEC, BEGUN, WAITING, STARTED, END = (
    "task.json",
    "begun",
    "waiting.json",
    "started.json",
    "end.json",
)
#: Files that others create to request something.
STOP, KILL = "stop", "kill"
EXPIRED = 5
_TICK, _SUBREAPER = 0.02, 36


def create(path: str | Path) -> bool:
    """Create an empty file, and return whether it is new."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def write(name: str, **said: Any) -> None:
    """Write a JSON file in one step, with the time."""
    Path(f"{name}.new").write_text(
        json.dumps({"at": datetime.now(timezone.utc).isoformat(), **said})  # noqa: UP017
    )
    os.replace(f"{name}.new", name)


def _lock(path: str) -> int | None:
    """Return the open, locked file, or ``None`` while another process has the lock.

    The lock ends with this process.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def main(folder: str, expires_at: float) -> int:
    """Take over the task, and supervise it to its end."""
    os.chdir(folder)
    if not create(BEGUN):
        return 0  # Another keeper has or had this task.
    # The time is checked only now, so that a process which checked after that time and found no
    # keeper can rely on this.
    if time.time() >= expires_at:
        os.unlink(BEGUN)
        return EXPIRED
    spec = json.loads(Path(SPEC).read_text())
    slot = _free_slot(spec)
    if slot is None:
        write(WAITING, reason="waiting: {0} of {0} slots in use".format(spec["slots"]))
    if os.fork():
        return 0
    os.setsid()
    while slot is None and not _ending():
        time.sleep(_TICK)
        slot = _free_slot(spec)
    if slot is None or _ending():
        write(END, reason="Cancelled", message="It was stopped while it waited and never executed")
    else:
        _execute(spec)
    return 0


def _free_slot(spec: dict[str, Any]) -> int | None:
    found = (_lock(os.path.join(spec["slots_dir"], str(number))) for number in range(spec["slots"]))
    return next((slot for slot in found if slot is not None), None)


def _ending() -> bool:
    return os.path.exists(STOP) or os.path.exists(KILL)


def _execute(spec: dict[str, Any]) -> None:
    # Orphaned processes of the crawler become children of this process, so that all of them can be
    # found.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        with open("log", "ab") as log:
            environment = {**os.environ, **spec["env"]}
            child = subprocess.Popen(
                spec["argv"], cwd=spec["cwd"], env=environment, stdout=log, stderr=log
            )
    except OSError as error:
        write(
            END, reason="ContainerCannotRun", message=f"The crawler could not be started: {error}"
        )
        return
    write(STARTED)
    told = False
    while (code := child.poll()) is None:
        if os.path.exists(KILL):
            child.kill()
        elif os.path.exists(STOP) and not told:
            child.terminate()
            told = True
        time.sleep(_TICK)
    _kill_the_rest()
    ended = {"exit_code": 128 - code, "signal": -code} if code < 0 else {"exit_code": code}
    write(END, reason="Error" if code else "Completed", **ended)


def _kill_the_rest() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := children.read_text().split():
        os.kill(int(pids[0]), signal.SIGKILL)
        os.waitpid(int(pids[0]), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
