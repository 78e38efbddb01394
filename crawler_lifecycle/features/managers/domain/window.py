"""The window of a crawl manager, which gives free slots to waiting jobs and explains why the others
have to wait.

A ``Window`` belongs to one cycle. The window begins with the facts, handles ends and new jobs, and
gives slots in the order of S-53: delayed jobs that may start, then queued jobs, then jobs of the
source. A slot is in use as soon as it is given, so caps also apply within a cycle (S-D6). A cycle
considers each job at most once. A refused job is considered again in the next cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from .manager import (
    CYCLE_PICKS,
    DELAYED_MAX,
    SCAN_MAX,
    AddedJob,
    EndedJob,
    Facts,
    Job,
    JobState,
    PickedJob,
    Waiting,
)

#: A function that returns waiting jobs, oldest first. The arguments are the state of the jobs, the
#: row id after which the jobs come, and the maximum number of jobs.
Pool = Callable[[JobState, int, int], Sequence[Waiting]]
_POOL_PAGE = 100

LATER = "can_schedule_job_with_params refused it for now"
NOT_DUE = "the delay of a retry has not elapsed yet"
NOT_STARTED = "schedule_spider_with_jobargs returned None"


class Later(Exception):
    """Raised if a rule cannot decide yet whether a job may start. The message explains why the job
    has to wait.
    """


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the class for slots.

    Each may raise ``Later``. Caps limit live jobs; ``None`` means no cap.
    """

    cap: float
    may_start: Callable[[Job], bool] = lambda job: True
    """The method ``can_schedule_job_with_params`` of the class."""
    spider_cap: Callable[[str], float | None] = lambda spider: None
    key_of: Callable[[Job], str | None] = lambda job: None
    """Returns the key under which ``key_cap`` counts a job, or ``None``."""
    key_cap: Callable[[str], float | None] = lambda key: None


@dataclass(slots=True)
class _Tally:
    """Counts and lists that a hook may change.

    These values are saved before a hook runs, and restored if the hook raises an error.
    """

    next_seq: int
    live: int = 0
    spiders: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    added: list[AddedJob] = field(default_factory=list)
    picked: list[PickedJob] = field(default_factory=list)

    def copy(self) -> _Tally:
        return replace(
            self,
            spiders=self.spiders.copy(),
            keys=self.keys.copy(),
            added=self.added[:],
            picked=self.picked[:],
        )


class Window:
    """The slots of one cycle.

    ``pool`` returns the rows that waited at the beginning of the cycle.
    """

    def __init__(self, facts: Facts, pool: Pool) -> None:
        self.facts = facts
        self.delayed: list[int] = []
        """Ids of rows of the source that may not start yet."""
        self.refused: Counter[str] = Counter()
        """The number of jobs that could not use a free slot, for each reason."""
        self.due_at: float | None = None
        """The time at which the next postponed job may start, in seconds since 1970."""
        self.delayed_full = False
        """True if the source waits because too many of its jobs are delayed."""
        self._pool = pool
        self._now = _Tally(
            facts.next_seq, facts.live, Counter(facts.live_by_spider), Counter(facts.live_by_key)
        )
        for ended in facts.ended:
            self._count(ended.live.job.spider, ended.live.cap_key, 1)
        self._refs = 0
        self._handled = 0
        self.reserved: dict[int, tuple[str, str | None]] = {}
        """Spider and key of the jobs that have a slot and are not picked yet, by item id."""
        self._delayed_spiders: Counter[str] = Counter(facts.delayed_by_spider)
        self._delayed_rows = facts.delayed
        self._line: Iterator[tuple[Waiting, str | None]] | None = None

    # --- counts, which the class may also read ----------------------------------------------------

    @property
    def live(self) -> int:
        """The number of jobs that use a slot, including unhandled ends and reserved slots."""
        return self._now.live

    @property
    def live_by_spider(self) -> Counter[str]:
        return +self._now.spiders

    @property
    def delayed_by_spider(self) -> Counter[str]:
        return +self._delayed_spiders

    @property
    def picked(self) -> Sequence[PickedJob]:
        return self._now.picked

    @property
    def added(self) -> Sequence[AddedJob]:
        return self._now.added

    @property
    def waiting(self) -> int:
        """The number of stored and new jobs that were not picked."""
        facts = self.facts
        return (
            facts.delayed
            + facts.queued
            + facts.buffered
            + len(self._now.added)
            - len(self._now.picked)
        )

    def free(self, cap: float) -> int:
        """Return the number of free slots.

        ``cap`` is the cap of the class, which a cap set by a person overrides.
        """
        if self.facts.paused:
            return 0
        most = cap if self.facts.cap is None else self.facts.cap
        return int(max(0, min(most - self._now.live, CYCLE_PICKS - len(self._now.picked))))

    # --- ends and additions -----------------------------------------------------------------------

    def ended(self, ended: EndedJob) -> None:
        """Release the slot of an ended job."""
        self._handled += 1
        self._count(ended.live.job.spider, ended.live.cap_key, -1)

    def add(self, added: AddedJob) -> AddedJob:
        """Append a new job to the queue. Return it with its reference number."""
        self._refs -= 1
        added = replace(added, ref=self._refs)
        self._now.added.append(added)
        return added

    def carry(self, before: Window, known: Collection[str]) -> None:
        """Copy the new jobs of an earlier window, and its numbers. ``known`` are the identities of
        jobs that were stored in the meantime. A job with such an identity is left out unless it
        already has a number.
        """
        for added in before.added:
            if added.job.identity not in known:
                self.add(added)
            elif added.seq is not None:
                self.add(replace(added, unique=False))
        self._now.next_seq = max(self._now.next_seq, before._now.next_seq)

    def number(self) -> int:
        """Return the next number. Each call uses one number."""
        self._now.next_seq += 1
        return self._now.next_seq - 1

    def saved(self) -> _Tally:
        """Return the state for ``restore``."""
        return self._now.copy()

    def restore(self, saved: _Tally) -> None:
        """Undo every end, addition and pick since ``saved``."""
        self._now = saved

    # --- slots ------------------------------------------------------------------------------------

    def reserve(self, rules: Rules) -> Waiting | None:
        """Return the next job that may start, and reserve a slot for it. Return ``None`` if no slot
        is free or no job may start.

        The caller has to pick or release the job.
        """
        if self.free(rules.cap) < 1:
            return None
        if self._line is None:
            self._line = self._in_order(rules)
        for waiting, key in self._line:
            self.hold(waiting, key)
            return waiting
        return None

    def hold_for(self, spider: str) -> None:
        """Count a job of another manager as a job that uses a slot of this manager."""
        self._count(spider, None, 1)

    def hold(self, waiting: Waiting, cap_key: str | None) -> None:
        """Reserve a slot for a job. The caller has to pick or release the job."""
        self.reserved[waiting.item_id] = waiting.job.spider, cap_key
        self._count(waiting.job.spider, cap_key, 1)

    def release(self, waiting: Waiting) -> None:
        """Release the slot of a job that the class did not start.

        The job waits as before and uses no number (S-D12).
        """
        self._count(*self.reserved.pop(waiting.item_id), -1)
        self.refused[NOT_STARTED] += 1

    def pick(self, waiting: Waiting, seq: int, job: Job) -> PickedJob:
        """Pick a reserved job, to start it with this number and the parameters of ``job``."""
        spider, cap_key = self.reserved.pop(waiting.item_id)
        if spider != job.spider:
            self._now.spiders[spider] -= 1
            self._now.spiders[job.spider] += 1
        picked = PickedJob(waiting.item_id, seq, job, cap_key)
        self._now.picked.append(picked)
        return picked

    def _count(self, spider: str, cap_key: str | None, by: int) -> None:
        self._now.live += by
        self._now.spiders[spider] += by
        if cap_key is not None:
            self._now.keys[cap_key] += by

    def _in_order(self, rules: Rules) -> Iterator[tuple[Waiting, str | None]]:
        """Yield every job that may start, with its key, in the order of S-53."""
        for waiting in self._rows(JobState.DELAYED, DELAYED_MAX):
            if (slot := self._slot(waiting, rules)) is not None:
                self._delayed_rows -= 1
                self._delayed_spiders[waiting.job.spider] -= 1
                yield slot
        for waiting in chain(self._rows(JobState.QUEUED, SCAN_MAX), self._new()):
            if (slot := self._slot(waiting, rules)) is not None:
                yield slot
        for waiting in self._rows(JobState.BUFFERED, SCAN_MAX):
            if (slot := self._slot(waiting, rules)) is not None:
                yield slot
            elif self._delayed_rows < DELAYED_MAX:
                self._delayed_rows += 1
                self.delayed.append(waiting.item_id)
                self._delayed_spiders[waiting.job.spider] += 1
            else:
                self.delayed_full = True
                return

    def _rows(self, state: JobState, most: int) -> Iterator[Waiting]:
        last = 0
        seen = 0
        while seen < most:
            rows = self._pool(state, last, min(_POOL_PAGE, most - seen))
            yield from rows
            if not rows:
                return
            last, seen = rows[-1].item_id, seen + len(rows)

    def _new(self) -> Iterator[Waiting]:
        """Yield the jobs that were added in this cycle and have no slot."""
        started = {picked.item_id for picked in self._now.picked} | set(self.reserved)
        for new in list(self._now.added):
            if new.ref not in started:
                yield Waiting(new.ref, new.job, new.seq, new.retry, new.retry_of, new.not_before)

    def _slot(self, waiting: Waiting, rules: Rules) -> tuple[Waiting, str | None] | None:
        """Return the job and its key if the job may start now, or else ``None``."""
        try:
            key = rules.key_of(waiting.job)
            reason = self._reason(waiting, key, rules)
        except Later as why:
            key = None
            reason = str(why)
        if reason is None:
            return waiting, key
        self.refused[reason] += 1
        return None

    def _reason(self, waiting: Waiting, key: str | None, rules: Rules) -> str | None:
        """Return the reason why a job may not start although a slot is free, or ``None`` if the job
        may start.
        """
        if waiting.not_before is not None and waiting.not_before > self.facts.now:
            self.due_at = min(self.due_at or waiting.not_before, waiting.not_before)
            return NOT_DUE
        spider = waiting.job.spider
        most = rules.spider_cap(spider)
        if most is not None and self._now.spiders[spider] >= most:
            return f"spider {spider} has its maximum of {_live_jobs(most)}"
        if key is not None:
            most = rules.key_cap(key)
            if most is not None and self._now.keys[key] >= most:
                return f"key {key[:60]} has its maximum of {_live_jobs(most)}"
        return None if rules.may_start(waiting.job) else LATER

    # --- the result -------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Return whether the work is done: no job is live or waiting, and the source has ended
        (S-61, S-D4).
        """
        return not self._now.live and not self.waiting and self.facts.exhausted

    def again_s(self, cap: float) -> float | None:
        """Return the maximum wait until the next cycle, in seconds, or ``None`` to wait until
        something happens.
        """
        if (self.facts.more_ended and self._handled) or len(self._now.picked) >= CYCLE_PICKS:
            return 0.0
        went_on = bool(self._now.picked or self.delayed)
        if went_on and self.free(cap) >= 1 and not self.facts.exhausted and not self.delayed_full:
            return 0.0  # further items of the source may fill the free slots
        return None if self.due_at is None else max(0.0, self.due_at - self.facts.now)

    def sentence(self, cap: float) -> str | None:
        """Return a sentence about why no further job was picked, or ``None`` if there is nothing to
        wait for.
        """
        facts = self.facts
        live = self._now.live
        if facts.source_error is not None:
            return f"the source has stopped: {facts.source_error}"
        if facts.paused:
            return "somebody paused it"
        if not live and not self.waiting:
            return None if facts.exhausted else "its source is being read"
        most = cap if facts.cap is None else facts.cap
        if live >= most:
            return f"all {most:g} slots are taken" if most else "its cap is 0: no job may start"
        if len(self._now.picked) >= CYCLE_PICKS:
            return f"{CYCLE_PICKS} jobs were picked at once; the next cycle continues"
        if self.refused:
            reasons = [
                f"{count} {'job is waiting' if count == 1 else 'jobs are waiting'}: {why}"
                for why, count in self.refused.most_common(3)
            ]
            full = (
                f"; with {DELAYED_MAX} delayed jobs, reading from its source pauses"
                if self.delayed_full
                else ""
            )
            return "; ".join(reasons) + full
        if not facts.exhausted:
            return "its source is being read"
        return (
            f"{live} {'job is' if live == 1 else 'jobs are'} live, and none is waiting"
            if live
            else None
        )


def _live_jobs(most: float) -> str:
    """Return ``1 live job``, ``2 live jobs`` or ``2.5 live jobs``, because user code sets a cap."""
    return f"{most:g} live {'job' if most == 1 else 'jobs'}"
