"""One cycle of a crawl manager: its class decides in a separate process, and the decision is committed.

Either the whole cycle is recorded, or only the effects of the hooks that had ended. A process whose decision was not
recorded is discarded, and the next process builds the object again from the record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalio import activity

from crawler_lifecycle.activities.run_files import FileQuestions, FileReading
from crawler_lifecycle.activities.shared import alive, answered, keep_output, there
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.crawlers.crawler import check_tasks
from crawler_lifecycle.domain.errors import Fenced, InvalidRequest, LifecycleError
from crawler_lifecycle.domain.managers.manager import (
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
from crawler_lifecycle.domain.managers.scrapy_cloud import Cloud
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.managers import HEARD_S, Committed, ManagerFence, ManagerRow
from crawler_lifecycle.ports.protocols import Catalogue, PlanFailed, PlanHost, PlanHosts

if TYPE_CHECKING:
    from crawler_lifecycle.store.managers.managers import ManagerStore
    from crawler_lifecycle.store.managers.plans import PlanStore


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CycleOrder:
    """Input of ``run_manager_cycle``: the manager, and the owner, attempt and run id of its workflow."""

    manager_id: int
    attempt: int
    owner_run_id: str
    """Id of the workflow's execution that claimed the manager."""
    closing: bool = False
    """True if the manager was stopped and none of its runs is live: ``on_close`` is called, and no cycle."""


@dataclass(frozen=True, slots=True)
class CycleAnswer:
    """Result of one cycle of a manager."""

    queue: str | None
    """The task queue of the worker that holds the user's object: the next cycle is asked for there. If no worker polls
    it for 10 s, any other worker of ``crawler-lifecycle-plans`` builds the object again; ``None``: any worker builds it
    at once, because the object is gone.
    """
    picked: int = 0
    """Jobs whose run is to be begun now, including jobs of earlier cycles."""
    live: int = 0
    """Jobs that hold a slot, including the picked ones."""
    ended: int = 0
    """Number of ends whose hooks ran in this cycle."""
    waiting: str | None = None
    """One sentence: why nothing more was picked."""
    again_s: float | None = None
    """The longest wait for the next cycle, in seconds; 0: at once; ``None``: until something happens."""
    over: bool = False
    """True if no further cycle is wanted: the picked jobs begin, and the manager ends. Live jobs then continue."""
    close_reason: str | None = None
    """With ``over``: the close reason that the class set; ``None`` when it set none."""
    failed: bool = False
    """With ``over``: True if the close reason is one of the class's failed outcomes, so that the manager FAILED."""
    unclosed: str | None = None
    """With ``over``: the reason why ``on_close`` was not called, or its error."""
    hook_errors: int = 0
    """With ``over``: hooks that failed for good, ``on_close`` among them."""
    on_hook_error: str = "fail"
    """The class's choice for such an end (``CHOICES``)."""
    error: str | None = None
    """The error of the class, its position, and the cure. With ``over``: the manager fails because of it."""
    stopped: bool = False
    """Whether a stop is on record, so that nothing is picked any more."""


#: The attributes that an object receives from the manager's row.
_OF_THE_ROW = ("manager_id", "name", "flow_id", "attempt", "next_seq", "tags", "flow_tags", "state", "stats",
               "close_reason")  # fmt: skip
#: The note about hooks that are not called any more.
GIVEN_UP = f"given up after {TRIES} tries"
#: Seconds until the next try, by the number of the ones before; afterwards the last figure.
AGAIN_S = (1.0, 5.0, 60.0)
#: Seconds for reading pages of a source in one cycle; a page that has begun is read to its end. Ended runs wait
#: meanwhile: one process makes one call at a time.
READ_S = 1.0
#: The most identities, jobs or rows that a class may request at once.
ASKED_MAX = 1000
#: Seconds after which the page shows what a class is working on.
SLOW_S = 10.0
#: Characters of why a manager waits.
WAITING_MAX = 1000


def _tried(times: int) -> str:
    return GIVEN_UP if times >= TRIES else f"tried {times} of {TRIES} times"


@dataclass
class Incident:
    """News of the class of one manager, as this worker hears them."""

    word: datetime | None = None
    """The worker's latest sign that it has the class, by its own clock; and when we first saw that sign, by ours."""
    heard: float = 0.0

    def served(self, word: datetime | None) -> bool:
        """Return whether a worker still reports that it has the class. Its clock may differ much from ours."""
        if word != self.word:
            self.word, self.heard = word, time.monotonic()
        return word is not None and time.monotonic() - self.heard < HEARD_S


@dataclass
class ManagerActivities:
    """The activity of the role ``plans``."""

    managers: ManagerStore
    plans: PlanStore
    hosts: PlanHosts
    catalogue: Catalogue
    reading: Callable[[str], FileReading]
    """Makes what reads files of a manager's runs, for one cycle."""
    cloud: Cloud = field(default_factory=Cloud)
    buffer: int = 1000
    """Items of a source that wait for a slot at most."""
    incidents: dict[tuple[int, int], Incident] = field(default_factory=dict)
    """By manager and attempt."""

    @activity.defn(name="run_manager_cycle", no_thread_cancel_exception=True)
    def run_manager_cycle(self, order: CycleOrder) -> CycleAnswer:
        """Let the class of a manager decide once, and commit its decision.

        Pages of its source are read first, as far as there is capacity. A class that fails is tried again, and the
        manager's row records it. After three tries the manager ends, once its live runs have ended. A class that cannot
        be loaded here is tried on other workers that report to have it.

        Second execution: decides again from the record; handled ends and picked jobs stay as they are.
        """
        row = there(self.managers.get_manager(order.manager_id), f"manager {order.manager_id}")
        cycle = _Cycle(self, row, ManagerFence(row.manager_id, order.attempt, order.owner_run_id, row.generation))
        if order.closing or row.over:
            return cycle.end()
        try:
            with self.hosts.use(row.plan, row.manager_id, order.attempt, row.generation, cycle.alive) as host:
                return cycle.run(host)
        except PlanFailed as failed:
            return cycle.failed(failed)
        finally:
            keep_output(self.managers.keep_output, row.manager_id, self.hosts.printed(row.manager_id))


class _Cycle(FileQuestions):
    """One cycle of one manager."""

    def __init__(self, owner: ManagerActivities, row: ManagerRow, fence: ManagerFence) -> None:
        self._owner, self._managers, self._hosts = owner, owner.managers, owner.hosts
        self._row, self._fence = row, fence
        self.reading = owner.reading(f"manager/{row.name}/")
        self._incident = owner.incidents.setdefault((row.manager_id, fence.attempt), Incident())
        self._host: PlanHost | None = None
        self._slow_at = time.monotonic() + SLOW_S
        """The time after which the page shows once what the class is working on."""
        self._ended: dict[int, int] = {}
        """The jobs whose end this cycle handles, and how often their hooks failed before."""
        self._unfinished, self._gave_up = False, False
        """Whether there was no time to read all that is wanted of the source; whether hooks are not called any more."""

    def run(self, host: PlanHost) -> CycleAnswer:
        """Read, ask, commit. Raises ``PlanFailed``."""
        self._host = host
        self._begin(host)
        self._read(host)
        # Read after the source, which may have taken long: runs that ended meanwhile need not wait for the next cycle.
        facts = self._managers.facts(self._fence, CYCLE_ENDS)
        self._ended = {end.live.item_id: end.tries for end in facts.ended}
        self._gave_up = any(end.given_up for end in facts.ended)
        try:
            decision, unclosed, committed = self._committed(host, facts)
        except Fenced:
            raise
        except InvalidRequest as why:
            self._keep(host.done)
            raise PlanFailed(f"{self._row.plan}: what it decided cannot be: {why}") from None
        except BaseException:  # also after a stop or a lost connection
            self._keep(host.done)
            raise
        host.settled = not decision.over  # nobody will call it again: it ends after this use
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

    def _committed(self, host: PlanHost, facts: Facts) -> tuple[Decision, str | None, Committed]:
        """Record the decision of the class; also records the error of ``on_close``, if that was called."""
        decision, unclosed = host.cycle(facts, self._answer), None
        if decision.over:
            decision, unclosed = self._close(host, decision, None)
        told = decision.error
        if decision.over and told is None and GIVEN_UP in (self._row.error or ""):
            told = self._row.error  # it stays to be seen, and does not make a failure of the end
        kept = replace(decision, error=told, hook_errors=int(unclosed is not None))
        return decision, unclosed, self._managers.commit_decision(self._fence, kept)

    def _keep(self, done: Decision | None) -> None:
        """Record the effects of hooks that had ended before the cycle failed: they are not called again."""
        if done is not None:
            with suppress(LifecycleError):  # effects that cannot be recorded are repeated
                self._managers.commit_decision(self._fence, replace(done, over=False, hook_errors=0))

    def alive(self) -> None:
        """Heartbeat. Also shows what a slow class is working on, so that it does not look as if it hangs."""
        alive()
        at = None if self._host is None else self._host.at
        if at is not None and time.monotonic() >= self._slow_at:
            self._slow_at = float("inf")
            waiting = f"its class has been at work for {SLOW_S:g} s, now in {at}"
            with suppress(LifecycleError):  # the caller that commits gets the same error
                self._managers.note_error(self._fence, self._row.error, waiting)

    def end(self) -> CycleAnswer:
        """The manager was stopped: call ``on_close``, if an object ever existed. Or its end, ``on_close`` included, is
        already recorded, and the answer of that execution was lost.
        """
        row = self._row
        answer = CycleAnswer(self._hosts.queue, over=True, close_reason=row.close_reason, hook_errors=row.hook_errors)
        if row.over and GIVEN_UP not in (row.error or ""):
            answer = replace(answer, error=row.error)
        if row.generation:
            try:
                with self._hosts.use(row.plan, row.manager_id, self._fence.attempt, row.generation, alive) as host:
                    self._begin(host)
                    if row.over:
                        failed = row.close_reason in host.failed_outcomes
                        answer = replace(answer, failed=failed, on_hook_error=host.on_hook_error)
                    else:
                        nothing = Decision(stats=dict(row.stats), close_reason=row.close_reason)
                        last, unclosed = self._close(host, nothing, "cancelled")
                        # Nothing is added or picked after a stop.
                        kept = replace(nothing, state=last.state, stats=last.stats, flow_tags=last.flow_tags)
                        self._managers.commit_decision(self._fence, kept)
                        answer = replace(answer, unclosed=unclosed)
            except PlanFailed as failure:  # its class cannot be used any more, which is no reason to stay
                if failure.missing and self._managers.note_try(self._fence) < TRIES and self._served():
                    raise  # the next try may reach a worker that has it
                if not row.over:
                    answer = replace(answer, unclosed=f"on_close was not called: {failure}"[:WAITING_MAX])
        self._forget()
        return answer

    def failed(self, failed: PlanFailed) -> CycleAnswer:
        """The class failed in its cycle: nothing of the cycle is recorded, and its process has ended."""
        row, tries, text = self._row, 0, str(failed)
        log.warning("manager %d: %s", row.manager_id, text)
        facts = self._managers.facts(self._fence, CYCLE_ENDS)
        elsewhere = failed.missing and self._served()
        late = self.reading.late
        if late or (self._hosts.queue is None and failed.struck):  # that is no try of anybody
            text = f"{text}; {'files of its jobs are not there yet' if late else 'its worker leaves'}"
        elif failed.item_id in self._ended:  # one try of these hooks, and none of the whole class
            text = f"{text} ({_tried(self._managers.note_try(self._fence, failed.item_id))})"
        else:
            for_good = failed.for_good or (failed.missing and not elsewhere)
            tries = max(self._managers.note_try(self._fence), TRIES if for_good else 0)
        if tries >= TRIES and not elsewhere and not self._anything_lives(facts):
            if failed.missing:
                text = f"{text}; no worker has this class: bring it back, and start this flow again"
            now = self._managers.get_manager(row.manager_id) or row  # together with what was kept of this cycle
            over = Decision(over=True, error=text, close_reason=now.close_reason, stats=dict(now.stats))
            self._managers.commit_decision(self._fence, over)
            self._forget()
            return CycleAnswer(None, over=True, close_reason=now.close_reason, error=text)
        again_s = AGAIN_S[-1] if late else AGAIN_S[min(max(tries, 1), len(AGAIN_S)) - 1]
        what = "cannot be loaded on this worker and is tried on any" if elsewhere else "failed and is tried again"
        waiting = f"its class {what} in {again_s:g} s: {text}"[:WAITING_MAX]
        self._managers.note_error(self._fence, text, waiting)
        live = facts.live + len(facts.ended)
        return CycleAnswer(None, live=live, waiting=waiting, again_s=again_s, error=text)

    def _served(self) -> bool:
        """Return whether any worker has the class, by what the workers report in the database."""
        plan = self._owner.plans.get_plan(self._row.plan)
        return self._incident.served(plan.seen_at if plan is not None and plan.error is None else None)

    # --- the object

    def _begin(self, host: PlanHost) -> None:
        """Make the object, unless this process has it."""
        if host.generation is not None:
            return
        row = self._row
        changed = row.fingerprint is not None and row.fingerprint != host.fingerprint
        if changed and host.on_code_change == "fail":
            cure = "start it under another flow id, bring the former code back, or let on_code_change be replay"
            raise PlanFailed(f"{row.plan}: its code has changed, and on_code_change is fail; {cure}", for_good=True)
        # A new process reads the source again, unless this code has read it to its end in this attempt.
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

    def _close(self, host: PlanHost, decision: Decision, reason: str | None) -> tuple[Decision, str | None]:
        """Call ``on_close``: returns its decision and its error. A failure changes nothing any more."""
        host.settled = False
        try:
            return host.finish(reason, self._answer), None
        except PlanFailed as failed:
            log.warning("manager %d: on_close: %s", self._row.manager_id, failed)
            return decision, f"on_close failed: {failed}"[:WAITING_MAX]

    def _forget(self) -> None:
        self._hosts.drop(self._row.manager_id)
        self._owner.incidents.pop((self._row.manager_id, self._fence.attempt), None)

    # --- the source

    def _read(self, host: PlanHost) -> None:
        """Read pages of the source while there is capacity, for a short time: ended runs wait meanwhile."""
        row, counts = self._row, self._row.counts.by_state
        over = row.exhausted or row.source_error is not None or row.paused
        if over or counts[JobState.DELAYED] >= self._owner.buffer:
            return
        until, most = time.monotonic() + READ_S, min(PAGE_ITEMS, self._owner.buffer)
        position, buffered = row.position, counts[JobState.BUFFERED]
        while buffered < most and not self._unfinished:
            try:
                page = self._checked(host, host.page(position, self._answer))
            except PlanFailed as failed:
                failed.args = (f"{failed} (reading behind position {position})",)
                raise
            position, buffered = page.position, self._managers.add_page(self._fence, page)
            host.settled = True
            if page.exhausted or page.error is not None:
                return
            self._unfinished = buffered < most and time.monotonic() >= until

    def _checked(self, host: PlanHost, page: Page) -> Page:
        """The page without items that cannot be runs here, by ``on_item_error``."""
        items: list[SourceItem] = []
        for item in page.items:
            told = item.error
            if item.job is not None and not item.known and (problem := self._problem(item.job)) is not None:
                told = f"position {item.position}: {problem}"
            if told is None:
                items.append(item)
            elif host.on_item_error == "stop":
                return Page(items, item.position - 1, error=told)
            else:
                items.append(SourceItem(item.position, None, told))
        return replace(page, items=items)

    def _problem(self, job: Job) -> str | None:
        """The reason why this cannot be a run; ``None`` when it can, or when this worker has no catalogue to check
        it.
        """
        crawlers = self._owner.catalogue.all()
        if not crawlers:
            return None
        try:
            crawler = self._owner.cloud.crawler(job.spider, job.project_id, crawlers)
            check_tasks(crawler, job.spider_args, job.job_settings, None)
            self._owner.cloud.resources(job.units)
        except InvalidRequest as error:
            return str(error)
        return None

    # --- hooks that fail

    def _noted(self, decision: Decision, again_s: float | None) -> tuple[str | None, float | None]:
        """Record the error. Returns the part that the workflow gets, and the seconds to the next cycle."""
        known = self._row.error or ""
        error = known if self._gave_up and GIVEN_UP in known else decision.error
        for failure in decision.failed:
            tries = self._ended.get(failure.item_id, 0) + 1
            error = f"{failure.error} ({'tried again' if failure.later else _tried(tries)})"
            wanted_s = AGAIN_S[-1] if failure.later else AGAIN_S[tries - 1] if tries < TRIES else 0.0
            again_s = wanted_s if again_s is None else min(again_s, wanted_s)
        # The note about given-up hooks stays visible; all other errors are cleared after a cycle without one.
        if not decision.over and (error or "") != known and (error or GIVEN_UP not in known):
            self._managers.note_error(self._fence, error, decision.waiting)
        return error, again_s

    def _anything_lives(self, facts: Facts) -> bool:
        """Return whether a run of the manager is live or about to begin. Unhandled ends are no reason to wait: a resume
        runs their hooks.
        """
        if not facts.live:
            return False
        manager_id = self._row.manager_id
        return bool(self._managers.live_runs(manager_id, limit=1) or self._managers.starting_jobs(self._fence, 1))

    # --- questions of the class

    def _answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Answer a question of the class while it works. Raises ``InvalidRequest`` for a question that is not
        allowed.
        """
        return answered(self, name, arguments)

    def ask_waiting_jobs(self, state: str, after_id: int, limit: int) -> object:
        return self._managers.waiting_jobs(self._row.manager_id, JobState(state), _behind(after_id), _bounded(limit))

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
        return self._managers.known_identities(self._row.manager_id, [str(one)[:64] for one in identities])

    def ask_job(self, key: str) -> object:
        return self._managers.job_metadata(self._row.manager_id, str(key)[:200])

    def ask_owned_jobs(self, states: list[str], limit: int, all_flows: bool = False, **more: Any) -> object:
        if not isinstance(states, list) or type(all_flows) is not bool:
            raise ValueError("give states as a list, and all_flows as true or false")
        wrong = next((name for name, text in more.items() if text is not None and not isinstance(text, str)), None)
        if wrong is not None:
            raise ValueError(f"{wrong}: {more[wrong]!r:.40} is not allowed; give a text")
        jobs, after = self._managers.owned_jobs(
            self._row.manager_id, [str(state) for state in states], limit=_bounded(limit), all_flows=all_flows, **more
        )
        return {"jobs": jobs, "after": after}


def _behind(item_id: object) -> int:
    if type(item_id) is not int or not 0 <= item_id <= ID_MAX:
        raise ValueError(f"after_id: {item_id!r:.40} is not allowed; give a whole number from 0")
    return item_id


def _bounded(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= ASKED_MAX:
        raise ValueError(f"limit: {limit!r:.40} is not allowed; give a number from 1 to {ASKED_MAX}")
    return limit
