"""The conditions of crawlers, pools, polls, workers and the other parts of the
installation that need attention.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from crawler_lifecycle.domain.audits.overdue import overdue_words
from crawler_lifecycle.domain.conditions import IncidentCondition, fingerprint
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.projects import ALL
from crawler_lifecycle.domain.results import JUDGED
from crawler_lifecycle.gateway.health import HealthPart
from crawler_lifecycle.gateway.runs.blocked import BlockedRuns
from crawler_lifecycle.store.base.bulk import chunks
from crawler_lifecycle.store.notes import WORKER
from crawler_lifecycle.store.runs.pools import SETTINGS
from crawler_lifecycle.store.store import Store

from ..domain.crawlers import crawler_conditions, is_well
from ..domain.workers import WorkerNote, WorkerWatch, is_replaced
from ..store.reads import Crawler

#: The number of last runs of a crawler that are read. The maximum applies if many ended at the same
#: time.
RUNS = JUDGED
RUNS_MAX = 1_000
#: The number of crawlers whose runs are read at once.
CRAWLERS_MAX = 100
#: The time for which a run may wait for slots before its pool needs attention.
WAITS_FOR = timedelta(minutes=10)
HOLDERS_MAX = 3
#: A workflow that cannot continue for a shorter time may do so in its next try.
STUCK_FOR = timedelta(minutes=1)
#: The name for all task queues together as one part.
QUEUES = "task queues"


def found_of_crawlers(
    store: Store, ended: Mapping[Crawler, int], well: set[Crawler]
) -> Iterator[IncidentCondition]:
    """Return what is wrong with these crawlers, and add those whose newest result is good to
    ``well``. ``ended`` contains how many runs of each ended recently."""
    groups: dict[int, list[Crawler]] = {}
    for crawler, runs in ended.items():
        groups.setdefault(min(RUNS + runs, RUNS_MAX), []).append(crawler)
    for limit, crawlers in groups.items():
        # One group at a time, so that memory never contains more than the runs of one group.
        for part in chunks(crawlers, CRAWLERS_MAX):
            for crawler, judged in store.incidents.ended_runs(part, limit).items():
                if is_well(judged):
                    well.add(crawler)
                yield from crawler_conditions(*crawler, judged)


def pool_conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Return the pools that are full while a run has been waiting for a long time, and who holds
    their slots."""
    if not store.pools.known_pools().counted:
        return
    for row in store.pools.list_pools():
        since = row.oldest_wait_at
        if since is None or now - since < WAITS_FOR:
            continue
        holders = store.pools.slot_holders(row.name, HOLDERS_MAX)
        held = [f"run {run.run_id} of {run.crawler} ({run.slots})" for run in holders]
        first = holders[0].run_id if holders else None
        most = "" if row.max is None else f" of {row.max}"
        cause = (
            f"{row.in_use}{most} slots are in use, the most by {', '.join(held) or 'nobody'}; "
            f"{count(row.waiting_runs, 'run')} waiting since {since:%Y-%m-%d %H:%M} UTC"
        )
        where = "LIFECYCLE_POOLS" if row.origin == SETTINGS else f"crawlctl pool set {row.name}"
        fix = row.problem or f"stop a run that holds its slots, or raise its limit ({where})"
        yield IncidentCondition(
            "pool_full", f"pools/{row.name}", ALL, cause, since, since, run_id=first, fix=fix
        )


def poll_conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Return the polls that are overdue."""
    late = replace(store.overdue.overdue_polls(now), lost=0)
    since = late.since
    if since is not None:
        cause = overdue_words(late, now) or ""
        yield IncidentCondition(
            "poll_overdue",
            "parts/polls",
            ALL,
            cause,
            since,
            since,
            count=late.count,
            run_id=late.run_id,
            fix="a poll needs Temporal, a worker with the role cluster, and the cluster",
        )


def found_of_parts(
    parts: Iterable[HealthPart], bad: dict[str, datetime], now: datetime
) -> Iterator[IncidentCondition]:
    """Return the parts that were bad in two consecutive rounds.

    ``bad`` contains the parts that were bad in the last round, and since when.
    """
    before = dict(bad)
    bad.clear()
    for part in _bad_parts(parts):
        since = bad[part.name] = before.get(part.name, now)
        if part.name in before:
            subject = f"parts/{part.name}"
            yield IncidentCondition(
                "part_unwell", subject, ALL, part.text, since, since, fix=part.fix
            )


def _bad_parts(parts: Iterable[HealthPart]) -> list[HealthPart]:
    """Return the bad parts, except polls, which have a kind of their own.

    All task queues count as one part, because one worker serves many queues, so its end is one
    cause.
    """
    bad = [part for part in parts if part.level == "bad" and part.name != "polls"]
    queues = [part for part in bad if part.name.startswith("queue")]
    if not queues:
        return bad
    more = f"; and {count(len(queues) - 1, 'more task queue')}" if len(queues) > 1 else ""
    together = replace(queues[0], name=QUEUES, text=f"{queues[0].text}{more}")
    return [*(part for part in bad if part not in queues), together]


def found_of_workflows(
    blocked: BlockedRuns, stuck: dict[str, datetime], now: datetime
) -> Iterator[IncidentCondition]:
    """Return the reasons why workflows cannot continue for ``STUCK_FOR``, each once.

    ``stuck`` contains the reasons from the last round, and since when each has applied.
    """
    groups: dict[str, list[str]] = {}
    for name in blocked.names():
        why = blocked.listed_workflow(name) or ""
        groups.setdefault(fingerprint(why), []).append(f"{name}: {why}")
    for gone in stuck.keys() - groups.keys():
        del stuck[gone]
    for cause, texts in groups.items():
        since = stuck.setdefault(cause, now)
        if now - since < STUCK_FOR:
            continue
        yield IncidentCondition(
            "workflow_stuck",
            "parts/workflows",
            ALL,
            texts[0],
            since,
            since,
            cause,
            count=len(texts),
            fix="see its page, or crawlctl describe",
        )


def found_of_workers(
    store: Store, watch: WorkerWatch, now: datetime
) -> Iterator[IncidentCondition]:
    """Return the workers that are frozen, cut off or killed."""
    notes = store.notes.live_notes(WORKER)
    beats = {str(row["name"]): WorkerNote(**json.loads(row["note"])) for row in notes}
    silent = watch.silent(beats, time.monotonic())
    for name, silent_s in silent.items():
        if is_replaced(name, beats, silent.keys()):
            store.notes.remove_note(name)
            continue
        since = now - timedelta(seconds=silent_s)
        roles = beats[name].roles
        cause = (
            f"it is frozen, cut off from the database, or was killed, because it leaves no notes "
            f"(roles: {roles})"
        )
        fix = "resume or end its process, or start another worker (crawlctl worker)"
        yield IncidentCondition("worker_silent", f"parts/{name}", ALL, cause, since, since, fix=fix)
