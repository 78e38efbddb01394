"""One cycle of a crawl manager, in which its class decides in a separate process and the decision
is recorded.

Either the whole cycle is recorded, or only the effects of the hooks that had ended. If a decision
was not recorded, the process that made the decision is discarded. The next process rebuilds the
object from the record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.activities.run_files import FileQuestions, FileReading
from crawler_lifecycle.activities.shared import activity_method, alive, answered, keep_output, there
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.crawlers.crawler import check_tasks
from crawler_lifecycle.domain.errors import Fenced, InvalidRequest, LifecycleError
from crawler_lifecycle.domain.pools import Pools
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.protocols import (
    Catalogue,
    UserCodeFailed,
    UserCodeProcess,
    UserCodeProcesses,
)

from ..domain.manager import (
    CYCLE_ENDS,
    PAGE_ITEMS,
    TRIES,
    Decision,
    Facts,
    Job,
    JobState,
    Live,
    Page,
    SourceItem,
    Start,
)
from ..domain.scrapy_cloud import Cloud
from ..ports import HEARD_S, ManagerCommit, ManagerFence, ManagerRow
from .registered import starts_none

if TYPE_CHECKING:
    from ..store.managers import ManagerStore
    from ..store.user_code import UserCodeStore


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CycleOrder:
    """The input of ``run_manager_cycle``: the manager, and the attempt and execution of its
    workflow.
    """

    manager_id: int
    attempt: int
    owner_run_id: str
    """The run id of the workflow execution that claimed the manager."""
    closing: bool = False
    """True if the manager was stopped and none of its runs is live. In this case, only ``on_close``
    is called.
    """


@dataclass(frozen=True, slots=True)
class CycleAnswer:
    """The result of one manager cycle."""

    queue: str | None
    """The task queue of the worker that has the user's object. The next cycle is requested there.

    If no worker polls this queue for 10 s, any worker that polls ``crawler-lifecycle-plans``
    rebuilds the object. ``None`` means that the object no longer exists, so any worker rebuilds it
    at once.
    """
    picked: int = 0
    """The number of jobs whose run must be begun now, including jobs of earlier cycles."""
    live: int = 0
    """The number of jobs that use a slot, including the picked ones."""
    ended: int = 0
    """The number of ended runs whose hooks were called in this cycle."""
    waiting: str | None = None
    """One sentence about why no more jobs were picked."""
    again_s: float | None = None
    """The maximum wait for the next cycle, in seconds. 0 means that the next cycle starts at once,
    and ``None`` means that the next cycle waits until something happens.
    """
    over: bool = False
    """True if no further cycle is wanted. The picked jobs then begin, the manager ends, and live
    jobs continue.
    """
    close_reason: str | None = None
    """If ``over`` is true, the close reason that the class set, or ``None`` if it set none."""
    failed: bool = False
    """If ``over`` is true: true if the close reason is one of the class's failed outcomes. The
    manager is then FAILED.
    """
    unclosed: str | None = None
    """If ``over`` is true, the reason why ``on_close`` was not called, or the error of
    ``on_close``.
    """
    hook_errors: int = 0
    """If ``over`` is true, the number of hooks that failed permanently, including ``on_close``."""
    on_hook_error: str = "fail"
    """The class's setting for an end with failed hooks (``CHOICES``)."""
    error: str | None = None
    """The error of the class, its position, and the fix. If ``over`` is true, the manager fails
    because of this error.
    """
    stopped: bool = False
    """True if a stop is recorded, after which no more jobs are picked."""


#: The attributes that the object gets from the manager's row.
_OF_THE_ROW = (
    "manager_id",
    "name",
    "flow_id",
    "attempt",
    "next_seq",
    "tags",
    "flow_tags",
    "state",
    "stats",
    "close_reason",
)
#: The note about hooks that will not be called again.
GIVEN_UP = f"given up after {TRIES} tries"
#: Seconds until the next try, by the number of earlier tries. The last value applies to all further
#: tries.
AGAIN_S = (1.0, 5.0, 60.0)
#: Seconds for reading pages of a source in one cycle. A page that has begun is read to its end.
#: Ended runs wait during this time, because a process executes one call at a time.
READ_S = 1.0
#: The maximum number of identities, jobs or rows that a class may request at once.
ASKED_MAX = 1000
#: Seconds after which the web page shows what a class is working on.
SLOW_S = 10.0
#: The maximum length of the reason why a manager is waiting, in characters.
WAITING_MAX = 1000


def _tried(times: int) -> str:
    return GIVEN_UP if times >= TRIES else f"tried {times} of {TRIES} times"


@dataclass
class ClassReport:
    """The latest report of a worker that has the class of a manager."""

    sent_at: datetime | None = None
    """The time of the report, by the clock of the worker that sent it."""
    heard: float = 0.0
    """The time when this worker first saw that report, by its monotonic clock."""

    def served(self, sent_at: datetime | None) -> bool:
        """Return whether a worker still reports that it has the class.

        The worker's clock may differ greatly from ours.
        """
        if sent_at != self.sent_at:
            self.sent_at = sent_at
            self.heard = time.monotonic()
        return sent_at is not None and time.monotonic() - self.heard < HEARD_S


@dataclass
class ManagerActivities:
    """The activity of workers with the role ``user-code``."""

    managers: ManagerStore
    user_code: UserCodeStore
    hosts: UserCodeProcesses
    catalogue: Catalogue
    reading: Callable[[str], FileReading]
    """Makes a reader for files of a manager's runs, for one cycle."""
    cloud: Cloud = field(default_factory=Cloud)
    buffer: int = 1000
    """The maximum number of source items that may wait for a slot."""
    reports: dict[tuple[int, int], ClassReport] = field(default_factory=dict)
    """The latest report of each manager and attempt."""
    start_graph: Callable[..., bool] = starts_none
    """Starts a graph for a class: ``GraphStarts.start``."""

    @activity_method
    def run_manager_cycle(self, order: CycleOrder) -> CycleAnswer:
        """Let the class of a manager decide once, and record its decision.

        Pages of its source are read first, while there is capacity. A class that fails is tried
        again, and the manager's row shows the error. After three tries, the manager ends as soon as
        its live runs have ended. A class that cannot be loaded here is tried on other workers that
        report it. A second execution decides again from the record, but does not change handled
        ends and picked jobs.
        """
        row = there(self.managers.get_manager(order.manager_id), f"manager {order.manager_id}")
        with limited(row.project):  # users' code must not see another project
            return self._cycle(order, row)

    def _cycle(self, order: CycleOrder, row: ManagerRow) -> CycleAnswer:
        cycle = _Cycle(
            self,
            row,
            ManagerFence(row.manager_id, order.attempt, order.owner_run_id, row.generation),
        )
        if order.closing or row.over:
            return cycle.end()
        try:
            with self.hosts.use(
                row.plan, row.manager_id, order.attempt, row.generation, cycle.alive
            ) as host:
                return cycle.run(host)
        except UserCodeFailed as failed:
            return cycle.failed(failed)
        finally:
            keep_output(
                self.managers.keep_output, row.manager_id, self.hosts.printed(row.manager_id)
            )


class _Cycle(FileQuestions):
    """One cycle of one manager."""

    def __init__(self, owner: ManagerActivities, row: ManagerRow, fence: ManagerFence) -> None:
        self._owner = owner
        self._managers = owner.managers
        self._hosts = owner.hosts
        self._row = row
        self._fence = fence
        self.reading = owner.reading(f"manager/{row.name}/")
        self._report = owner.reports.setdefault((row.manager_id, fence.attempt), ClassReport())
        self._host: UserCodeProcess | None = None
        self._slow_at = time.monotonic() + SLOW_S
        """The time after which the web page shows, once, what the class is working on."""
        self._ended: dict[int, int] = {}
        """The jobs whose ends this cycle handles, with the number of earlier failures of their
        hooks.
        """
        self._unfinished = False
        """True if the time limit was reached before enough of the source had been read."""
        self._gave_up = False
        """True if some hooks will not be called again."""

    def run(self, host: UserCodeProcess) -> CycleAnswer:
        """Read the source, let the class decide, and record the decision. Raises
        ``UserCodeFailed``.
        """
        self._host = host
        self._begin(host)
        self._read(host)
        # The ended jobs are read after the source, because reading the source may take long. So
        # runs that end in the meantime need not wait for the next cycle.
        facts = self._managers.facts(self._fence, CYCLE_ENDS)
        self._ended = {end.live.item_id: end.tries for end in facts.ended}
        self._gave_up = any(end.given_up for end in facts.ended)
        try:
            decision, unclosed, committed = self._committed(host, facts)
        except Fenced:
            raise
        except InvalidRequest as why:
            self._keep(host.done)
            raise UserCodeFailed(f"{self._row.plan}: its decision is not allowed: {why}") from None
        except BaseException:  # recorded even after a stop or a lost connection
            self._keep(host.done)
            raise
        host.settled = not decision.over  # after the last cycle, the process ends with this call
        again = self._unfinished or committed.dropped
        again_s = 0.0 if again and not committed.stopped else decision.again_s
        error, again_s = self._noted(decision, again_s)
        if decision.over:
            self._forget()
        return CycleAnswer(
            self._hosts.queue,
            picked=committed.starting,
            live=committed.live,
            ended=len(decision.hooked),
            waiting=decision.waiting,
            again_s=again_s,
            over=decision.over,
            close_reason=decision.close_reason,
            failed=decision.over and decision.close_reason in host.failed_outcomes,
            error=decision.error if decision.over else error,
            unclosed=unclosed,
            hook_errors=committed.hook_errors if decision.over else 0,
            on_hook_error=host.on_hook_error,
            stopped=committed.stopped,
        )

    def _committed(
        self, host: UserCodeProcess, facts: Facts
    ) -> tuple[Decision, str | None, ManagerCommit]:
        """Let the class decide, and record its decision.

        If ``on_close`` was called, its error is recorded too.
        """
        decision = host.cycle(facts, self._answer)
        unclosed = None
        if decision.over:
            decision, unclosed = self._close(host, decision, None)
        error = decision.error
        if decision.over and error is None and GIVEN_UP in (self._row.error or ""):
            error = self._row.error  # the note stays visible, but is no reason to fail
        kept = replace(decision, error=error, hook_errors=int(unclosed is not None))
        return decision, unclosed, self._managers.commit_decision(self._fence, kept)

    def _keep(self, done: Decision | None) -> None:
        """Record the effects of hooks that had ended before the cycle failed, so that they are not
        called again.
        """
        if done is not None:
            with suppress(LifecycleError):  # effects that cannot be recorded will be repeated
                self._managers.commit_decision(
                    self._fence, replace(done, over=False, hook_errors=0)
                )

    def alive(self) -> None:
        """Send a heartbeat.

        If the class is slow, show what it is working on, so that the manager does not seem to hang.
        """
        alive()
        at = None if self._host is None else self._host.at
        if at is not None and time.monotonic() >= self._slow_at:
            self._slow_at = float("inf")
            waiting = f"a cycle of its class has taken {SLOW_S:g} s so far, now in {at}"
            with suppress(LifecycleError):  # the commit will raise the same error
                self._managers.note_error(self._fence, self._row.error, waiting)

    def end(self) -> CycleAnswer:
        """Call ``on_close`` after a stop, if an object ever existed. Return the result for the end.

        If the end is already recorded, ``on_close`` has been called, and only the result was lost.
        """
        row = self._row
        answer = CycleAnswer(
            self._hosts.queue, over=True, close_reason=row.close_reason, hook_errors=row.hook_errors
        )
        if row.over and GIVEN_UP not in (row.error or ""):
            answer = replace(answer, error=row.error)
        if row.generation:
            try:
                with self._hosts.use(
                    row.plan, row.manager_id, self._fence.attempt, row.generation, alive
                ) as host:
                    self._begin(host)
                    if row.over:
                        failed = row.close_reason in host.failed_outcomes
                        answer = replace(answer, failed=failed, on_hook_error=host.on_hook_error)
                    else:
                        nothing = Decision(stats=dict(row.stats), close_reason=row.close_reason)
                        last, unclosed = self._close(host, nothing, "cancelled")
                        # Nothing is added or picked after a stop.
                        kept = replace(
                            nothing, state=last.state, stats=last.stats, flow_tags=last.flow_tags
                        )
                        self._managers.commit_decision(self._fence, kept)
                        answer = replace(answer, unclosed=unclosed)
            except (
                UserCodeFailed
            ) as failure:  # a class that cannot be used must not prevent the end
                if (
                    failure.missing
                    and self._managers.note_try(self._fence) < TRIES
                    and self._served()
                ):
                    raise  # the next try may reach a worker that has the class
                if not row.over:
                    answer = replace(
                        answer, unclosed=f"on_close was not called: {failure}"[:WAITING_MAX]
                    )
        self._forget()
        return answer

    def failed(self, failed: UserCodeFailed) -> CycleAnswer:
        """Return the result after the class failed in its cycle: to try again later, or to end the
        manager.

        The process has ended. Only the effects of the ended hooks of this cycle are recorded.
        """
        row = self._row
        tries = 0
        text = str(failed)
        log.warning("manager %d: %s", row.manager_id, text)
        facts = self._managers.facts(self._fence, CYCLE_ENDS)
        elsewhere = failed.missing and self._served()
        late = self.reading.late
        # If files arrive late or the worker shuts down, the failure does not count as a try.
        if late or (self._hosts.queue is None and failed.struck):
            text += (
                "; files of its jobs have not arrived yet"
                if late
                else "; its worker is shutting down"
            )
        elif (
            failed.item_id in self._ended
        ):  # counts as a try of these hooks, not of the whole class
            text = f"{text} ({_tried(self._managers.note_try(self._fence, failed.item_id))})"
        else:
            for_good = failed.for_good or (failed.missing and not elsewhere)
            tries = max(self._managers.note_try(self._fence), TRIES if for_good else 0)
        if tries >= TRIES and not elsewhere and not self._anything_lives(facts):
            if failed.missing:
                text = f"{text}; no worker has this class: restore it, and start this flow again"
            # Includes the recorded effects of this cycle.
            now = self._managers.get_manager(row.manager_id) or row
            over = Decision(
                over=True, error=text, close_reason=now.close_reason, stats=dict(now.stats)
            )
            self._managers.commit_decision(self._fence, over)
            self._forget()
            return CycleAnswer(None, over=True, close_reason=now.close_reason, error=text)
        again_s = AGAIN_S[-1] if late else AGAIN_S[min(max(tries, 1), len(AGAIN_S)) - 1]
        what = (
            "cannot be loaded on this worker and is tried on others"
            if elsewhere
            else "failed and is retried"
        )
        waiting = f"its class {what} in {again_s:g} s: {text}"[:WAITING_MAX]
        self._managers.note_error(self._fence, text, waiting)
        live = facts.live + len(facts.ended)
        return CycleAnswer(None, live=live, waiting=waiting, again_s=again_s, error=text)

    def _served(self) -> bool:
        """Return whether any worker has the class, according to the workers' reports in the
        database.
        """
        plan = self._owner.user_code.get_user_code(self._row.plan)
        return self._report.served(
            plan.seen_at if plan is not None and plan.error is None else None
        )

    # --- the object

    def _begin(self, host: UserCodeProcess) -> None:
        """Build the object, unless this process has it."""
        if host.generation is not None:
            return
        row = self._row
        changed = row.fingerprint is not None and row.fingerprint != host.fingerprint
        if changed and host.on_code_change == "fail":
            fix = (
                "start it under another flow id, restore the previous code, or set on_code_change "
                "to replay"
            )
            raise UserCodeFailed(
                f"{row.plan}: its code has changed, and on_code_change is fail; {fix}",
                for_good=True,
            )
        # A new process reads the source again, unless this version of the code has read the source
        # to its end in this attempt.
        again = changed or row.status is RunStatus.INITIALIZING or not row.exhausted
        read_from = (row.position if host.on_code_change == "continue" else 0) if again else None
        new = self._managers.new_generation(self._fence, host.fingerprint, read_from)
        self._fence = replace(self._fence, generation=new.generation)
        start = Start(
            **{name: getattr(new, name) for name in _OF_THE_ROW},
            argv=[str(word) for word in new.options.get("argv", ())],
            resumed=row.generation > 0,
            started_at=new.started_at.timestamp() if new.started_at is not None else time.time(),
        )
        self._row = new
        host.begin(start, new.generation, self._answer)

    def _close(
        self, host: UserCodeProcess, decision: Decision, reason: str | None
    ) -> tuple[Decision, str | None]:
        """Call ``on_close``.

        Return its decision and its error. If it fails, return the given decision.
        """
        host.settled = False
        try:
            return host.finish(reason, self._answer), None
        except UserCodeFailed as failed:
            log.warning("manager %d: on_close: %s", self._row.manager_id, failed)
            return decision, f"on_close failed: {failed}"[:WAITING_MAX]

    def _forget(self) -> None:
        self._hosts.drop(self._row.manager_id)
        self._owner.reports.pop((self._row.manager_id, self._fence.attempt), None)

    # --- the source

    def _read(self, host: UserCodeProcess) -> None:
        """Read pages of the source while there is capacity, but only for a short time, because
        ended runs have to wait in the meantime.
        """
        row = self._row
        counts = self._row.counts.by_state
        over = row.exhausted or row.source_error is not None or row.paused
        if over or counts[JobState.DELAYED] >= self._owner.buffer:
            return
        until = time.monotonic() + READ_S
        most = min(PAGE_ITEMS, self._owner.buffer)
        position = row.position
        buffered = counts[JobState.BUFFERED]
        while buffered < most and not self._unfinished:
            try:
                page = self._checked(host, host.page(position, self._answer))
            except UserCodeFailed as failed:
                failed.args = (f"{failed} (while reading after position {position})",)
                raise
            position = page.position
            buffered = self._managers.add_page(self._fence, page)
            host.settled = True
            if page.exhausted or page.error is not None:
                return
            self._unfinished = buffered < most and time.monotonic() >= until

    def _checked(self, host: UserCodeProcess, page: Page) -> Page:
        """Return the page after a check of its items.

        An item that cannot become a run gets an error. If ``on_item_error`` is ``stop``, the page
        ends before that item.
        """
        items: list[SourceItem] = []
        pools = self._managers.known_pools()
        for item in page.items:
            error = item.error
            if (
                item.job is not None
                and not item.known
                and (problem := self._problem(item.job, pools)) is not None
            ):
                error = f"position {item.position}: {problem}"
            if error is None:
                items.append(item)
            elif host.on_item_error == "stop":
                return Page(items, item.position - 1, error=error)
            else:
                items.append(SourceItem(item.position, None, error))
        return replace(page, items=items)

    def _problem(self, job: Job, pools: Pools) -> str | None:
        """Return why this job cannot become a run, or ``None`` if the job can become a run or if
        this worker has no catalogue.
        """
        catalogue = self._owner.catalogue
        crawlers = catalogue.all()
        if not crawlers:
            return None
        try:
            crawler = self._owner.cloud.crawler(
                job.spider, job.project_id, crawlers, catalogue.problem
            )
            check_tasks(crawler, job.spider_args, job.job_settings, None)
            self._owner.cloud.resources(job.units)
            pools.check(job.pool or crawler.pool, self._row.project)
        except InvalidRequest as error:
            return str(error)
        return None

    # --- hooks that fail

    def _noted(self, decision: Decision, again_s: float | None) -> tuple[str | None, float | None]:
        """Record the error.

        Return the error for the workflow, and the seconds to the next cycle.
        """
        known = self._row.error or ""
        error = known if self._gave_up and GIVEN_UP in known else decision.error
        for failure in decision.failed:
            tries = self._ended.get(failure.item_id, 0) + 1
            error = f"{failure.error} ({'tried again' if failure.later else _tried(tries)})"
            wanted_s = (
                AGAIN_S[-1] if failure.later else AGAIN_S[tries - 1] if tries < TRIES else 0.0
            )
            again_s = wanted_s if again_s is None else min(again_s, wanted_s)
        # The note about given-up hooks stays visible. All other errors are removed after a cycle
        # without errors.
        if not decision.over and (error or "") != known and (error or GIVEN_UP not in known):
            self._managers.note_error(self._fence, error, decision.waiting)
        return error, again_s

    def _anything_lives(self, facts: Facts) -> bool:
        """Return whether a run of the manager is live or about to begin.

        Unhandled ended jobs are not a reason to wait, because a resume calls their hooks.
        """
        if not facts.live:
            return False
        manager_id = self._row.manager_id
        return bool(
            self._managers.live_runs(manager_id, limit=1)
            or self._managers.starting_jobs(self._fence, 1)
        )

    # --- questions from the class

    def _answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Answer a question that the class asks during a cycle.

        Raises ``InvalidRequest`` if the question is not allowed.
        """
        return answered(self, name, arguments)

    def ask_waiting_jobs(self, state: str, after_id: int, limit: int) -> object:
        return self._managers.waiting_jobs(
            self._row.manager_id, JobState(state), _behind(after_id), _bounded(limit)
        )

    def ask_live_jobs(self, after_id: int, limit: int) -> object:
        found: list[Live] = []
        after_id, limit = _behind(after_id), _bounded(limit)
        while len(found) < limit:
            rows = self._managers.live_jobs(self._row.manager_id, after_id, limit)
            found += [row for row in rows if row.item_id not in self._ended]
            if len(rows) < limit:
                break
            after_id = rows[-1].item_id
        return found[:limit]

    def ask_known_identities(self, identities: list[str]) -> object:
        if not isinstance(identities, list) or len(identities) > ASKED_MAX:
            raise ValueError(f"give a list of at most {ASKED_MAX}")
        return self._managers.known_identities(
            self._row.manager_id, [str(identity)[:64] for identity in identities]
        )

    def ask_job(self, key: str) -> object:
        return self._managers.job_metadata(self._row.manager_id, str(key)[:200])

    def ask_start_graph(self, pages: list[str], **asked: Any) -> object:
        whose = f"manager {self._row.name} of flow {self._row.flow_id}"[:255]
        return self._owner.start_graph(whose, [str(page).encode() for page in pages], **asked)

    def ask_owned_jobs(
        self, states: list[str], limit: int, all_flows: bool = False, **more: Any
    ) -> object:
        if not isinstance(states, list) or type(all_flows) is not bool:
            raise ValueError("give states as a list, and all_flows as true or false")
        wrong = next(
            (name for name, text in more.items() if text is not None and not isinstance(text, str)),
            None,
        )
        if wrong is not None:
            raise ValueError(f"{wrong}: {more[wrong]!r:.40} is not allowed; give a string")
        jobs, after = self._managers.owned_jobs(
            self._row.manager_id,
            [str(state) for state in states],
            limit=_bounded(limit),
            all_flows=all_flows,
            **more,
        )
        return {"jobs": jobs, "after": after}


def _behind(item_id: object) -> int:
    if type(item_id) is not int or not 0 <= item_id <= ID_MAX:
        raise ValueError(f"after_id: {item_id!r:.40} is not allowed; give a whole number from 0")
    return item_id


def _bounded(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= ASKED_MAX:
        raise ValueError(
            f"limit: {limit!r:.40} is not allowed; give a number from 1 to {ASKED_MAX}"
        )
    return limit
