"""When an execution continues as a new one: long before its history reaches a limit of the server."""

from __future__ import annotations

from temporalio import workflow

#: Events after which an execution goes on as another one. A worker that does not remember it replays them all, some 0.1
#: to 0.2 ms each; to go on costs one more step. A round, or a window of a stop with its hundred calls, comes on top;
#: the server suggests it at 4,096 by default.
HISTORY_MAX = 400
#: Events and bytes after which it does so at once, whatever is under way, and takes that up again in the next one. The
#: server takes no signal, a stop neither, after 10,000 of them, and ends an execution of 50 MiB.
HISTORY_MOST, HISTORY_BYTES_MOST = 7_200, 16 * 2**20


class Interrupted(Exception):
    """Something more important came up while an activity was awaited; the step is taken again."""


class MustLeave(Exception):
    """The history is about to reach a limit of the server: whatever is awaited is left for the next execution."""


def history_full(most: int | None = None) -> bool:
    """Whether this execution is to go on as another one as soon as it may: after ``most`` events (``HISTORY_MAX``)."""
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() >= (most or HISTORY_MAX)


def must_leave() -> bool:
    """Whether it is to do so at once. Asked in every call and every pause: somebody may be flooding it."""
    info = workflow.info()
    return info.get_current_history_length() >= HISTORY_MOST or info.get_current_history_size() >= HISTORY_BYTES_MOST


def may_leave(most: int | None = None) -> bool:
    """Whether to continue as new now, ``history_full`` of ``most``. While an update hangs, looks, deployments and stops
    go on where they are."""
    return history_full(most) and workflow.all_handlers_finished()
