"""A database that dies, hangs, deadlocks, fills up or is edited: nothing is half done, and work
continues.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.errors import LifecycleError, NotInThisState, StoreUnavailable
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.engine import Database, open_engine, parse_url
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import Store, open_store
from tests.clusters.local.local_fixture import wait_until
from tests.contracts.store.harness import START, Clock, Harness, good_end, seen
from tests.support.databases import make_tables, wait_patiently, without_rows
from tests.support.disks import small_disk
from tests.support.servers import EXPLAINED, running_server
from tests.support.sql_server import SqlServer

# --- the server dies ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXPLAINED[1:])
def test_a_server_that_is_killed_and_comes_back(kind: str) -> None:
    """What was acknowledged is still there, what failed can be repeated, and the store needs no
    restart.
    """
    # Every commit reaches the kernel, as on a real server it reaches the disk.
    with (
        running_server(kind, "--innodb-flush-log-at-trx-commit=2") as server,
        server.database() as url,
    ):
        make_tables(url)
        store = open_store(url)
        harness = Harness(store, Clock())
        fence = harness.deployed(tasks=3)
        answered: list[str] = []
        stopped = threading.Event()

        def write() -> None:
            n = 0
            while not stopped.is_set():
                n += 1
                with suppress(StoreUnavailable):
                    store.events.append_event(fence, "run.note", f"note/{n}", {})
                    answered.append(f"note/{n}")

        writer = threading.Thread(target=write)
        writer.start()
        while len(answered) < 20:
            time.sleep(0.01)
        server.kill()
        stopped.set()
        writer.join()
        with pytest.raises(StoreUnavailable, match="cannot be used now"):
            store.runs.get_run(fence.run_id)
        server.restart()
        assert [key for key in answered if store.events.find_event(key) is None] == []
        numbers = [event.seq for event in store.events.events_after(0, limit=10_000)]
        assert numbers == list(range(1, len(numbers) + 1)), (
            "no number is missing and none is there twice"
        )
        assert harness.finish(fence).outcome == "finished"
        store.close()


# --- the connection is a black hole ---------------------------------------------------------------


@dataclass
class Proxy:
    """Passes bytes between us and the server until it is told to stop."""

    target: int
    passes: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.passes.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if self.passes.is_set():
                    other.sendall(data)

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def test_a_server_that_no_longer_answers_is_given_up(server: SqlServer) -> None:
    # A separate database: engines of the shared one share a dialect, and notify no listener of a
    # connection.
    with closing(Proxy(server.port)) as proxy, server.database() as url:
        through = parse_url(make_tables(url)).set(port=proxy.port)
        engine = open_engine(through, pool_size=1, answer_timeout_s=60)
        limits: list[float] = []

        def limited(_d: object, _record: object, _args: object, options: dict[str, Any]) -> None:
            assert (options["read_timeout"], options["write_timeout"]) == (60, 60)
            options["read_timeout"] = limits[0] if limits else 60

        sa.event.listen(engine, "do_connect", limited)
        store = Store.over(Database(engine), utc_now)
        assert store.runs.list_runs() == []
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            raw._read_timeout = 1
        # Only connections to the black hole have a short timeout: the existing one, and its
        # replacement.
        limits.append(1)
        proxy.passes.clear()
        with pytest.raises(StoreUnavailable):
            store.runs.list_runs()
        limits.clear()
        proxy.passes.set()
        # The only connection of the pool was discarded, and a new one is used.
        assert store.initiation.reserve_run(RunRequest(crawler="a"), "r1")[1]
        store.close()


def test_connections_that_the_server_closed_for_being_idle(server: SqlServer) -> None:
    with closing(open_store(without_rows(server), pool_size=1)) as store:
        harness = Harness(store, Clock())
        fence = harness.run()
        with store.database.engine.connect() as connection:
            number = connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
        raw = store.database.engine.raw_connection()
        with raw.cursor() as cursor:
            # Only for this connection: the next one may take long.
            cursor.execute("SET SESSION wait_timeout = 1")
        raw.close()
        ours = f"SELECT COUNT(*) FROM information_schema.processlist WHERE id = {number}"
        wait_until(lambda: server.execute(ours) == ((0,),))
        store.deployment.note_waiting(fence, "quota")
        assert harness.row(fence).waiting_for == "quota"


# --- deadlocks ------------------------------------------------------------------------------------


def test_the_victim_of_a_deadlock_is_told_not_now_and_its_retry_works(
    server: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes the same locks in the opposite order.

    It has written more, so we are the victim.
    """
    wait_patiently(monkeypatch)
    url = without_rows(server)
    with closing(open_store(url)) as store:
        harness = Harness(store, Clock())
        fence = harness.run()
        other = server.connect(url.rpartition("/")[2])
        failed: list[Exception] = []

        def tell() -> None:
            try:
                store.events.append_event(fence, "run.note", "k", {"n": 1})
            except StoreUnavailable as error:
                failed.append(error)

        with closing(other), other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE outbox_counter SET seq = seq + 0")
            rows = ", ".join(f"({fence.run_id}, 1, 'n{n}', 'x')" for n in range(500))
            cursor.execute(
                f"INSERT INTO history_property (run_id, attempt, name, value) VALUES {rows}"
            )
            teller = threading.Thread(target=tell)
            teller.start()
            wait_until(lambda: server.transactions("trx_state = 'LOCK WAIT'"))
            cursor.execute("SELECT * FROM outbox_counter, run_history FOR UPDATE")
            cursor.execute("COMMIT")
        teller.join()
        assert len(failed) == 1
        assert "Deadlock" in str(failed[0])
        assert store.events.find_event("k") is None
        event = store.events.append_event(fence, "run.note", "k", {"n": 1})
        assert [e.seq for e in store.events.events_after(0)] == [1, event.seq] == [1, 2]


# --- others write ---------------------------------------------------------------------------------


def test_a_status_that_another_program_wrote_is_never_overwritten_blindly(store: Store) -> None:
    harness = Harness(store, Clock())
    fence = harness.executing(tasks=3)
    tasks = store.polls.found_state(fence).tasks
    harness.stage(
        fence, [seen(t, Phase.ENDED, START, uid=t.uid, end=good_end(START)) for t in tasks]
    )
    told = len(store.runs.transitions(fence.run_id))
    with store.database.writing() as connection:
        statement = "UPDATE task_history SET status = 'LOST', ended_at = '2026-01-01 00:00:00' WHERE task_id = :task"
        connection.execute(sa.text(statement), {"task": tasks[1].task_id})
    counts = store.polls.apply_findings(fence, "look")
    assert counts.by_status == {"SUCCEEDED": 2, "LOST": 1}
    new = store.runs.transitions(fence.run_id)[told:]
    assert [t.task_id for t in new] == [tasks[0].task_id, tasks[2].task_id]
    assert harness.end(fence).outcome == "partial"


def test_what_is_told_of_a_change_is_what_is_changed(server: SqlServer) -> None:
    """A transition is written before its status changes, so no other program may come between the
    two.
    """
    url = without_rows(server)
    with closing(open_store(url, clock=Clock())) as store:
        harness = Harness(store, Clock())
        fence = harness.deployed(tasks=2)
        tasks = store.polls.found_state(fence).tasks
        harness.stage(fence, [seen(t, Phase.GONE, START) for t in tasks])
        waited: list[str] = []
        other = server.connect(url.rpartition("/")[2])

        def meddle(_c: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("UPDATE task_finding"):
                with other.cursor() as cursor:
                    cursor.execute("SET innodb_lock_wait_timeout = 0")
                    with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
                        cursor.execute("UPDATE task_history SET status = 'RUNNING'")
                waited.append(statement)

        sa.event.listen(store.database.engine, "before_cursor_execute", meddle)
        assert store.polls.apply_findings(fence, "look").by_status == {"LOST": 2}
        assert waited
        other.close()


def test_the_end_counts_what_was_committed_while_it_waited(store: Store) -> None:
    """The last count is made under the lock of the run, and never from an older snapshot."""
    harness = Harness(store, Clock())
    fence = harness.deployed()
    harness.see_ends(fence)
    assert store.tasks.count_tasks(fence.run_id).alive == 0
    answers: list[RunRow | LifecycleError] = []

    def end() -> None:
        try:
            answers.append(harness.end(fence))
        except LifecycleError as error:
            answers.append(error)

    with store.database.writing() as connection:
        lock = " FOR UPDATE" if connection.dialect.name == "mysql" else ""
        connection.execute(sa.text(f"SELECT run_id FROM run_history{lock}")).all()
        ender = threading.Thread(target=end)
        ender.start()
        time.sleep(0.3)
        columns = "run_id, attempt, run_attempt, task_index, status, status_since, args, ever_seen"
        values = f"{fence.run_id}, 1, 1, 1, 'QUEUED', '2026-01-01 00:00:00', '{{}}', 0"
        connection.execute(
            sa.text(f"INSERT INTO task_history ({columns}) VALUES ({values})".replace(":", r"\:"))
        )
        assert answers == []
    ender.join()
    assert isinstance(answers[0], NotInThisState)
    assert not harness.status(fence).terminal


# --- no room --------------------------------------------------------------------------------------


def test_sqlite_on_a_disk_that_is_full_and_has_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        url = f"sqlite:///{disk / 'state.db'}"
        upgrade(url)
        store = open_store(url, clock=Clock())
        harness = Harness(store, Clock())
        fence = harness.deployed(tasks=3)
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        before = (
            store.runs.get_run(fence.run_id),
            store.tasks.list_tasks(fence.run_id),
            store.events.events_after(0),
        )

        def fill() -> None:
            for n in range(1000):
                store.additions.add_tasks(fence.run_id, f"k{n}", [{"text": "y" * 1000}] * 100)

        with pytest.raises(StoreUnavailable, match=r"full|disk I/O"):
            fill()
        assert (
            store.runs.get_run(fence.run_id),
            store.tasks.list_tasks(fence.run_id),
            store.events.events_after(0),
        ) == before
        ballast.unlink()
        assert len(store.additions.add_tasks(fence.run_id, "k0", [{}] * 100)) == 100
        assert harness.deploy(fence) == list(range(3, 103))
        store.close()
