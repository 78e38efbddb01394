"""Services that are started by hand beside a ``crawlctl dev``: they join its stack, or refuse and say why.

Without this, a second gateway would serve a database of its own beside the one that everybody looks at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from crawler_lifecycle import dev_json
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.process_identity import start_time
from crawler_lifecycle.cli.session import current


def join(service: str) -> None:
    """Give this process the settings of the nearest stack, where nothing else names a system for it.

    Raises ``CommandFailed`` when that stack does not run: its Temporal server and database would not be found.
    """
    if dev_json.is_told(os.environ):
        return
    stack = dev_json.nearest(current().say)
    if stack is None:
        return
    if not _runs(stack.known):
        raise CommandFailed(
            Exit.NOT_IN_THIS_STATE,
            f"{service}: {stack.file} names a stack that does not run",
            "its database and Temporal server would be missing, and others belong to another system",
            f"crawlctl dev --state-dir {stack.file.parent}, or name the parts: LIFECYCLE_DATABASE__URL, "
            "TEMPORAL_ADDRESS (docs/settings.md)",
        )
    given = stack.variables() | _kept_beside(stack)
    if service == "worker":
        given["LIFECYCLE_WORKER__HEALTH_PORT"] = "0"  # the usual one is the stack's own worker's
    os.environ.update({name: value for name, value in given.items() if not os.environ.get(name)})
    known = stack.known
    current().say(f"{service}: joins the stack of {stack.file} (Temporal {known.get('temporal')})")


def _runs(known: Mapping[str, object]) -> bool:
    pids, started = known.get("processes"), known.get("started")
    pid = pids.get("temporal") if isinstance(pids, dict) else None
    then = started.get("temporal") if isinstance(started, dict) else None
    return isinstance(pid, int) and then is not None and start_time(pid) == then


def _kept_beside(stack: dev_json.Stack) -> dict[str, str]:
    """The settings that the stack's parts have and its file does not tell."""
    folder, found = stack.file.parent, dict[str, str]()
    # An empty file: a profile in the home directory could add TLS or a key.
    if (profile := folder / "temporal.toml").is_file():
        found["TEMPORAL_CONFIG_FILE"] = str(profile)
    if (key := folder / "task.key").is_file() and stack.known.get("cluster") == "local":
        found["LIFECYCLE_GATEWAY__TASK_KEY"] = key.read_text()
    return found
