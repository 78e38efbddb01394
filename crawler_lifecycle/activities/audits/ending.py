"""How an audit ends tasks that no run owns, and how it repairs a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from crawler_lifecycle.activities.abreast import Abreast
from crawler_lifecycle.activities.shared import alive
from crawler_lifecycle.domain.audits.audit import AuditFinding, ClusterTask
from crawler_lifecycle.domain.errors import ClusterUnavailable, NotInThisState
from crawler_lifecycle.ports.cluster import AuditedCluster
from crawler_lifecycle.ports.runs import TaskRef

#: Between asking a task that nobody owns to end and ending it by force, in seconds.
STOP_S = 10.0
#: What a killed one gets to be gone: a cluster may have to tell its node first.
KILLED_S = 5.0
_POLL_S = 0.2
#: On top of both: what a cluster that does not answer gets.
HANGS_S = 15.0

#: Carries out one repair; what was done, in words. Raises an error of the domain when it could not.
Mend = Callable[[], str]


def still(judge: Callable[[], AuditFinding | None], end: Mend) -> Mend:
    """The same end, of what is found so once more: since it was judged a person may have resumed it, or another worker
    ended it, and to end that again would take it from its new workflow, or begin it anew."""

    def ended() -> str:
        if judge() is None:
            raise NotInThisState("it went on, or ended, meanwhile")
        return end()

    return ended


class AuditEnding:
    """Ends tasks that nobody owns: all are asked first, and then each has the rest of the same time."""

    def __init__(self, cluster: AuditedCluster, tasks: Mapping[str, tuple[AuditFinding, ClusterTask]]) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._until = 0.0
        self._asked: list[AuditFinding] = []
        self._refused: dict[str, Exception] = {}
        self._became: dict[str, str | Exception] | None = None

    def ask(self, findings: Sequence[AuditFinding]) -> None:
        """Ask all of these to end, some at once."""
        told = self._abreast(self._ask, findings)
        self._refused = {subject: what for subject, what in told.items() if isinstance(what, Exception)}
        self._asked = [finding for finding in findings if finding.subject not in self._refused]
        self._until, self._became = time.monotonic() + STOP_S, None

    def of(self, finding: AuditFinding) -> Mend:
        """What sees to the end of this one; the first that is called sees to the ends of all, some at once."""

        def end() -> str:
            if self._became is None:
                self._became = {**self._refused, **self._abreast(self._end, self._asked)}
            became = self._became.get(finding.subject, ClusterUnavailable("the cluster took too long to end it"))
            if isinstance(became, Exception):
                raise became
            return became

        return end

    @staticmethod
    def _abreast(do: Callable[[AuditFinding], str], findings: Sequence[AuditFinding]) -> dict[str, str | Exception]:
        """What became of each; of one that hangs nothing is told."""
        crowd = Abreast(do, slow_s=STOP_S + KILLED_S + HANGS_S)
        found: dict[str, str | Exception] = {}
        for finding, told in crowd.over(findings):
            found[finding.subject] = told
            alive()
        return found

    def _ask(self, finding: AuditFinding) -> str:
        task, ref = self._ref(finding)
        self._cluster.stop(task.run, ref)
        return "asked to end"

    def _ref(self, finding: AuditFinding) -> tuple[ClusterTask, TaskRef]:
        _, task = self._tasks[finding.subject]
        return task, TaskRef(finding.task_id or task.task_id or 0, task.index, task.attempt, task.uid)

    def _end(self, finding: AuditFinding) -> str:
        """Wait for its end, then end it by force; proved by its absence."""
        task, ref = self._ref(finding)
        while self._there(task):
            alive()
            if time.monotonic() >= self._until:
                self._kill(task, ref)
                return f"asked to end, and killed after {STOP_S:g} s"
            time.sleep(_POLL_S)
        return "asked to end, and it ended"

    def _kill(self, task: ClusterTask, ref: TaskRef) -> None:
        self._cluster.kill(task.run, ref)
        killed = time.monotonic()
        while self._there(task):
            alive()
            if time.monotonic() - killed >= KILLED_S:
                raise ClusterUnavailable("asked to end and killed, and it is still there")
            time.sleep(_POLL_S)

    def _there(self, task: ClusterTask) -> bool:
        return any((t.key, t.uid) == (task.key, task.uid) for t in self._cluster.inventory(run_id=task.run_id))
