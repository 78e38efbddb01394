"""Port of initiation: the record of a run, and its owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.rows import RunRow
from crawler_lifecycle.ports.values import AddedTask, Fence, LostRun, Owner, RunHandle


class AcceptanceStore(Protocol):
    """Runs that were accepted over HTTP, before a workflow has claimed them."""

    def reserve_run(
        self, request: RunRequest, request_id: str, task_args: Sequence[Mapping[str, str]] | None = None
    ) -> tuple[RunRow, bool]:
        """Insert the run and all its task rows (QUEUED), without an owner; the row, and whether it is new.

        ``task_args`` are the tasks' own arguments (default: those of ``request.tasks``, or one task).
        The same ``request_id`` again answers the stored row; another request under it raises ``DuplicateRequest``.
        """
        ...

    def resume_run(self, request: RunRequest, workflow_id: str, attempt: int) -> tuple[RunRow, bool]:
        """Accept that the run goes on after ``attempt``, whose workflow is closed: the next attempt is on record from
        now on, to be claimed by ``workflow_id``. The row, and whether this call did it.

        What somebody else resumed since ``attempt`` was read stays as it is. Raises ``RunNotFound``,
        ``AlreadyCompleted``, and ``NotInThisState`` for a rerun of what was resumed without and is not claimed yet.
        """
        ...


class InitiationStore(AcceptanceStore, Protocol):
    """Runs as their workflow makes or claims them."""

    def create_run(self, request: RunRequest, request_id: str, owner: Owner) -> RunHandle:
        """``reserve_run`` and claim in one transaction. Raises ``DuplicateRequest`` when another workflow owns it."""
        ...

    def claim_run(
        self, request: RunRequest, owner: Owner, former_is_open: Callable[[Owner], bool], *, repair: bool = False
    ) -> RunHandle:
        """Claim the run ``request.run_id``: reserved or resumed, it is taken as it is, else its attempt is raised.

        The same owner again gets the same answer. ``former_is_open`` is asked, outside of the transaction, whether the
        former owner still lives. Raises ``RunNotFound``, ``RunIsLive``, ``AlreadyCompleted``, ``InvalidRequest``.

        ``repair`` claims in place of a workflow that was lost: the ended tasks of its attempt count as judged, as they
        did for it, and a run that has ended meanwhile is not claimed (``NotInThisState``).
        """
        ...

    def set_property(self, run_id: int, attempt: int, name: str, value: str) -> None: ...


class AdditionStore(Protocol):
    """Tasks that are added to a live run."""

    def add_tasks(
        self, run_id: int, key: str, task_args: Sequence[Mapping[str, str]], fence: Fence | None = None
    ) -> list[AddedTask]:
        """Append QUEUED tasks to a live run, once for each ``key``; the run is multi-process from then on.

        The same key and arguments again get the same answer, also when the run has ended meanwhile. Raises
        ``RunNotFound``; ``NotInThisState`` under a stop or after the end; ``DuplicateRequest`` when the key came with
        other arguments; ``InvalidRequest`` for no tasks or for more than a run may have.
        """
        ...


class AdoptionStore(Protocol):
    """Runs that the database has lost and that still execute."""

    def adopt_run(self, lost: LostRun) -> RunRow:
        """Insert a run again that no row knows, under its number and uid, with its tasks as what is to be looked for.

        A task that left nothing behind is LOST. Again: the row that is there. Raises ``NotInThisState`` when the number
        of the run, or of one of its tasks, is given to another one by now.
        """
        ...


class RunNumberStore(Protocol):
    """Which numbers runs get."""

    def newest_run_id(self) -> int:
        """The highest number of a run in the database; 0 when there is none."""
        ...

    def begin_run_ids_above(self, run_id: int) -> bool:
        """From now on new runs get higher numbers than this one; whether they would not have. Numbers never go back.

        A database from which rows are missing (restored, made anew) is without their tasks too: new tasks leave out as
        many numbers as the missing runs may have used.
        """
        ...
