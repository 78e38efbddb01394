"""However the database refuses a statement, no value of a row gets into the error, its trace or a
log.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from temporalio.api.failure.v1 import Failure
from temporalio.converter import PayloadConverter

from crawler_lifecycle.domain.audits.audit import AuditFinding, FindingKind
from crawler_lifecycle.domain.blocked import BlockReport
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.errors import (
    LifecycleError,
    RowUnreadable,
    StoreRefused,
    StoreUnavailable,
)
from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.domain.retries import NextTry
from crawler_lifecycle.domain.run import ExportResult, RunStatus
from crawler_lifecycle.domain.task import Counters, End, Phase
from crawler_lifecycle.features.canaries.domain.canary import CanarySettings, CanaryState
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepKind, StepSpec, StepState
from crawler_lifecycle.features.managers.domain.manager import AddedJob, Page, SourceItem
from crawler_lifecycle.features.managers.ports import NewManager, UserCodeRow
from crawler_lifecycle.features.packages.store.packages import NewVersion
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec, TargetKind
from crawler_lifecycle.features.schedules.ports import TargetRef
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.store.leases import LeaseCall, LeaseStore, SiteReport
from crawler_lifecycle.features.sites.store.robots import FetchedFile, RobotsStore
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.features.webhooks.ports import DeliveryAttempt
from crawler_lifecycle.ports.access import AccessRow
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.runs import DeployedTask
from crawler_lifecycle.store.engine import spoken
from crawler_lifecycle.store.runs.tables import run_history
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.store.tables import metadata
from crawler_lifecycle.temporal.plugin import RedactingFailureConverter
from tests.contracts.store.graphing import Graphed
from tests.contracts.store.harness import Clock, Harness, seen
from tests.contracts.store.managing import Managed, job
from tests.support.servers import EXPLAINED
from tests.support.sites import limit
from tests.support.store_ports import behind

MARKER = "MARKER-7f3a"
_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE)")
_TABLE = re.compile(r"\(\w[\w ]*? (\w+)\)")


class Refusing:
    """A port whose writing statements are each refused once, before the call succeeds."""

    def __init__(
        self, port: Any, store: Store, caplog: pytest.LogCaptureFixture, refused: set[str]
    ) -> None:
        self._port, self._caplog, self._refused = port, caplog, refused
        self._at = self._seen = 0
        sa.event.listen(store.database.engine, "before_cursor_execute", self._broken, retval=True)

    def _broken(
        self, _c: object, _cursor: object, statement: str, parameters: object, *_: object
    ) -> tuple[str, object]:
        if _WRITES.match(statement):
            self._seen += 1
            if self._seen == self._at:
                # MariaDB's error quotes the statement from here, with the values that the driver
                # wrote into it.
                return f"!{statement}", parameters
        return statement, parameters

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        def call(*args: Any, **more: Any) -> Any:
            for self._at in range(1, 200):
                self._seen = 0
                self._caplog.clear()
                try:
                    answer = method(*args, **more)
                except StoreRefused as error:
                    self._check(error)
                    continue
                assert self._seen < self._at
                self._at = 0
                return answer
            raise AssertionError("too many statements")

        return call

    def _check(self, error: StoreRefused) -> None:
        text = str(error)
        assert text.startswith("The database refused a statement ("), text
        found = _TABLE.search(text)
        assert found is not None, text
        self._refused.add(found[1])
        failure = Failure()
        RedactingFailureConverter().to_failure(error, PayloadConverter.default, failure)
        logging.getLogger("tests").error("it failed", exc_info=error)
        told = [
            text,
            repr(error),
            "".join(traceback.format_exception(error)),
            str(failure),
            self._caplog.text,
        ]
        told.append(repr([record.__dict__ for record in self._caplog.records]))
        assert [one for one in told if MARKER in one] == []


@pytest.fixture
def refused() -> set[str]:
    """Return the tables into which a refused statement would have written."""
    return set()


@pytest.fixture
def harness(
    store_url: str, caplog: pytest.LogCaptureFixture, refused: set[str]
) -> Iterator[Harness]:
    clock = Clock()
    store = open_store(store_url, clock=clock, pools=Pools({"default": Pool(max=100)}))
    yield Harness(behind(store, lambda port: Refusing(port, store, caplog, refused)), clock)
    store.close()


@pytest.mark.parametrize("store_url", EXPLAINED, indirect=True)
def test_no_value_of_a_row_is_in_the_error_of_any_statement_that_writes_one(
    harness: Harness, refused: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = harness.store, harness.clock
    marked = dict.fromkeys(("flow_id", "parent", "requested_by"), MARKER)
    texts = {"args": {MARKER: MARKER}, "settings": {MARKER: MARKER}, "tags": [MARKER]}
    texts |= {"sites": [f"{MARKER}.example"]}
    limit(store, "*", tasks=100)
    fence = harness.run(f"{MARKER}-1", 2, **marked, **texts)
    store.initiation.set_property(fence.run_id, 1, MARKER, MARKER)
    store.additions.add_tasks(fence.run_id, f"{MARKER}-more", [{MARKER: MARKER}], fence)
    until = clock.now + timedelta(seconds=25)
    offered, _ = store.deployment.offer_tasks(fence, 10, None, until, MARKER)
    answers = [
        DeployedTask(t.index, "created", f"{MARKER}-{t.index}", f"{MARKER}-{t.index}", MARKER)
        for t in offered
    ]
    store.deployment.record_deployed(fence, MARKER, offered, answers, clock.now, until)
    store.deployment.note_waiting(fence, MARKER)
    tasks = store.polls.found_state(fence).tasks
    running = [
        seen(
            t,
            Phase.EXECUTING,
            clock.now,
            uid=t.uid,
            node=MARKER,
            reason=MARKER,
            code=Code(f"sha256:{'01' * 32}", MARKER, note=MARKER),
            blocked=(BlockReport(f"{MARKER}.example", 429, at=MARKER),),
        )
        for t in tasks
    ]
    harness.poll(fence, running)
    store.sites.set_limits("shop.example", SiteLimits(requests_per_s=1), MARKER)
    uid = harness.row(fence).run_uid
    report = SiteReport("shop.example", 1, statuses={MARKER: 1}, proxies={MARKER: {MARKER: 1}})
    call = LeaseCall(fence.run_id, uid, 0, 1, {"shop.example": report})
    Refusing(LeaseStore(store.database), store, caplog, refused).answer([call])
    robots = Refusing(RobotsStore(store.database), store, caplog, refused)
    origin = f"https://{MARKER.lower()}.example"
    robots.ask(call, origin)
    robots.report(call, origin, MARKER, FetchedFile(200, MARKER.encode()), None)
    store.deployment.mark_started(fence, clock.now, clock.now)
    store.polls.record_poll_error(fence, MARKER)
    stop = harness.stop(MARKER, reason=MARKER)
    store.stops.record_stop(fence.run_id, stop, f"{MARKER}-stop", fence)
    store.stops.cancel_queued(fence, clock.now)
    store.stops.mark_stopping(fence, [task.task_id for task in tasks])
    store.stops.acted_on_stop(fence, clock.now)
    end = End(1, 9, MARKER, MARKER, clock.now, MARKER, disruption=MARKER)
    harness.stage(
        fence,
        [seen(t, Phase.ENDED, clock.now, uid=t.uid, counters=Counters(1), end=end) for t in tasks],
    )
    store.polls.save_details(
        fence, [Details(task.task_id, MARKER, statistics={MARKER: 1}) for task in tasks]
    )
    store.polls.apply_details(fence)
    store.polls.apply_findings(fence, "look")
    harness.end(fence)
    event = store.events.append_event(fence, "run.ended", f"{MARKER}-event", {MARKER: MARKER})
    store.events.record_delivery(event.seq, MARKER, MARKER)
    store.exports.begin_export(fence)
    store.exports.record_export(fence, "failed", None, MARKER)
    store.exports.record_export(fence, "done", ExportResult(MARKER, 1, 1, "0" * 64), None)
    store.findings.note_findings(
        [AuditFinding(MARKER, FindingKind.ORPHAN, MARKER, evidence={MARKER: MARKER})]
    )
    problem = IncidentCondition("crawler_failing", MARKER, MARKER, MARKER, clock.now, clock.now)
    store.incidents.record_conditions([problem], lambda row: True)
    [incident] = store.incidents.open_incidents(1)
    store.incidents.change_incident(incident.incident_id, comment=MARKER, assignee=MARKER)
    store.incidents.close_incident(incident.incident_id, MARKER)
    harness.resume(fence)
    again = harness.executing(f"{MARKER}-2", 1)
    harness.see_ends(again, [0])
    store.retries.retry_ended(again, lambda end, used: NextTry(0, "1Gi"), 3, remember=True)
    marked_job = job(1, spider=MARKER, tags=[MARKER])
    managed = Managed.begun(harness, NewManager(MARKER, MARKER, MARKER, {MARKER: MARKER}))
    store.managers.add_page(
        managed.fence, Page([SourceItem(1, marked_job), SourceItem(2, None, MARKER)], 2)
    )
    store.managers.add_jobs(managed.id, [job(2, spider=MARKER)], MARKER)
    managed.commit(
        added=[AddedJob(-1, job(3, spider=MARKER), retry_of=MARKER)],
        close_reason=MARKER,
        state={MARKER: 1},
    )
    store.managers.keep_output(managed.id, MARKER)
    store.managers.record_manager_stop(managed.id, stop)
    store.managers.end_manager(managed.fence, RunStatus.FAILED, MARKER, MARKER)
    spec = GraphSpec(
        [StepSpec(MARKER, StepKind.FUNCTION, {"call": "a:b", "args": {MARKER: 1}}, graft=True)]
    )
    graphed = Graphed.made(harness, spec.steps, MARKER, context={MARKER: MARKER})
    [work] = graphed.work(graphed.advance().batches[0].number)
    graphed.begin(work)
    store.graphs.begin_graft(graphed.id, 0, 1, spec, MARKER)
    failed = graphed.end(work, StepState.RETRYABLE, outcome=MARKER, reason=MARKER)
    graphed.begin(done=[failed])
    clock.forward(60)
    [work] = graphed.work(graphed.advance().batches[0].number)
    graphed.begin(work)
    graphed.begin(done=[graphed.end(work, result=MARKER.encode())])
    store.graphs.keep_output(graphed.id, MARKER)
    store.graphs.record_graph_stop(graphed.id, stop)
    store.graphs.end_graph(graphed.fence, MARKER)
    store.user_code.register_user_code(
        MARKER, [UserCodeRow(MARKER, MARKER, MARKER, MARKER, MARKER, error=MARKER)]
    )
    nightly = ScheduleSpec(run={"crawler": MARKER}, every_s=60)
    schedule, _ = store.schedules.put("nightly", nightly.document(), MARKER)
    store.schedules.told_schedule(schedule.schedule_id, 1, trouble=MARKER, ended_at=None)
    line = store.schedules.decide_due("nightly", clock.now, schedule.revision)
    store.schedules.due_begun(line.due_id, TargetRef(TargetKind.RUN, fence.run_id))
    [line] = store.schedules.ask_due("nightly", [clock.now - timedelta(days=1)], MARKER, MARKER)
    store.schedules.due_failed(line.due_id, MARKER)
    store.schedules.pause("nightly", MARKER)
    told = WebhookSpec(
        url=f"https://example.com/{MARKER}", secrets=["env:CRAWL_HOOK"], crawlers=[MARKER]
    )
    hook, _ = store.webhooks.put("shop", told.document(), MARKER)
    store.webhooks.follow_webhook("shop", MARKER)
    event = store.webhooks.test_webhook("shop", MARKER)
    store.webhooks.note_tries(
        hook.webhook_id, MARKER, [DeliveryAttempt(event.seq, MARKER)], event.seq, settled=False
    )
    store.webhooks.pause("shop", MARKER)
    store.sites.close_site("shop.example", 60, MARKER)
    for version in (f"{MARKER}-1", f"{MARKER}-2"):
        canary = CanarySettings(0.1)
        new = NewVersion(MARKER, version, MARKER, 1, 1, note=MARKER, by=MARKER, canary=canary)
        store.packages.add_version(new)
    [canary_row] = store.canaries.list_canaries()
    store.canaries.end_canary(canary_row.canary_id, CanaryState.REJECTED, MARKER, MARKER)
    store.packages.use_version(MARKER, f"{MARKER}-2", MARKER)
    store.packages.use_version(MARKER, f"{MARKER}-1", MARKER)
    store.packages.delete_version(MARKER, f"{MARKER}-2")
    store.packages.delete_package(MARKER)
    store.entries.set_entry("shop", {MARKER: MARKER}, MARKER, MARKER)
    store.pools.set_pool("shop", Pool(project=MARKER), MARKER)
    store.access.record_access(
        [AccessRow(clock.now, MARKER, MARKER, MARKER, MARKER, 200, MARKER, subject=MARKER)]
    )
    store.tokens.create_token(MARKER, "read", MARKER, "0" * 64, None, MARKER)
    store.notes.leave_note("login", MARKER, MARKER, clock.now)
    written = {table.name for table in metadata.sorted_tables} - {
        "schema_compatibility",
        "audit_report",
    }
    assert written - refused == set(), "each of these is written by some call above"


MYSQL = [
    (pymysql.err.IntegrityError, 1062, f"Duplicate entry '{MARKER}' for key 'x'"),
    (pymysql.err.DataError, 1406, f"Data too long for column '{MARKER}' at row 1"),
    (pymysql.err.DataError, 1264, f"Out of range value for column '{MARKER}' at row 1"),
    (pymysql.err.OperationalError, 1292, f"Incorrect datetime value: '{MARKER}' for column 'x'"),
    (pymysql.err.OperationalError, 1366, f"Incorrect string value: '{MARKER}' for column 'x'"),
    (pymysql.err.OperationalError, 3140, f"Invalid JSON text: '{MARKER}'"),
    (pymysql.err.OperationalError, 1644, MARKER),
    (pymysql.err.ProgrammingError, 1064, f"You have an error in your SQL syntax near '{MARKER}'"),
    (pymysql.err.NotSupportedError, 1235, MARKER),
    (pymysql.err.InternalError, 99999, MARKER),
]


@pytest.mark.parametrize(("kind", "code", "text"), MYSQL)
def test_what_a_driver_quotes_stays_with_it(kind: type[Exception], code: int, text: str) -> None:
    error = DBAPIError.instance(
        f"INSERT INTO `task_log` VALUES ('{MARKER}')",
        {"x": MARKER},
        kind(code, text),
        pymysql.err.Error,
    )
    told = spoken(error)  # type: ignore[arg-type]
    assert isinstance(told, StoreRefused)
    assert (MARKER in str(told), f"error {code}" in str(told)) == (False, True)
    assert "(INSERT INTO task_log)" in str(told)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1040, "Too many connections"),
        (1205, "Lock wait timeout exceeded; try restarting transaction"),
        (1290, "The MySQL server is running with the --read-only option"),
        (2003, "Can't connect to MySQL server on 'db'"),
        (2013, "Lost connection to MySQL server during query"),
        (1114, "The table 'task_log' is full"),
    ],
)
def test_what_a_database_says_of_itself_is_told(code: int, text: str) -> None:
    error = DBAPIError.instance(
        "SELECT 1", {}, pymysql.err.OperationalError(code, text), pymysql.err.Error
    )
    told = spoken(error)  # type: ignore[arg-type]
    assert not isinstance(told, StoreRefused)
    assert text in str(told)


def test_a_value_that_its_column_does_not_take_is_not_told_either(harness: Harness) -> None:
    store = cast(Store, harness.store)
    harness.run()
    for value in (MARKER, {MARKER}):
        with pytest.raises(StoreRefused) as caught, store.database.writing() as conn:
            conn.execute(sa.update(run_history).values(next_look_at=value))
        assert MARKER not in "".join(traceback.format_exception(caught.value))


def test_a_row_that_cannot_be_read_does_not_tell_what_a_caller_put_into_it(
    harness: Harness,
) -> None:
    store = cast(Store, harness.store)
    fence = harness.run(args={"k": MARKER})
    with store.database.writing() as conn:
        stored = conn.execute(sa.select(run_history.c.request)).scalar_one()
        conn.execute(sa.update(run_history).values(request={**stored, "priority": 9}))
    with pytest.raises(RowUnreadable, match="priority") as caught:
        store.runs.get_run(fence.run_id)
    assert MARKER not in "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value, LifecycleError)
    assert not isinstance(caught.value, StoreUnavailable)
