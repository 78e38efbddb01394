"""Fleet and the search for incidents among a great many runs: the home page of a gateway, its first
round, and what a round costs at the rate of a large day; SQLite and MariaDB.

The baseline of a page is ``GET /healthz``, that of a round one plain statement, that of the first
round a count of all runs by crawler, each in the same database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from unittest.mock import patch

import sqlalchemy as sa

from benchmarks.both_databases import on_both
from benchmarks.sizes import size
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.features.incidents.gateway.rounds import EVERY_S, SELDOM, Rounds
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.store.tables import metadata
from tests.gateway.gateway_harness import Harness
from tests.support import filling

RUNS = size(200_000, 2_000, "BENCHMARK_RUNS")
CRAWLERS = size(513, 20)
SCHEDULES = size(200, 5)
PAGES = size(7, 2)
ROUNDS = size(20 * SELDOM, SELDOM)
#: Runs that end in a second: 100,000 a day, each with one task.
DAY = 100_000
RATE = DAY / 86_400
FLEET_MS = 150.0
HTML = {"Accept": "text/html"}


async def main() -> None:
    """Print the figures for both databases."""
    on_both(_figures)


def _figures(name: str, url: str) -> None:
    upgrade(url)
    store = open_store(url)
    _fill(store)
    _show_fleet(name, store)
    rounds = Rounds(Harness(store, utc_now).gateway(clock=utc_now))  # type: ignore[arg-type]
    whole_s, whole_cpu_s = _measured(lambda: rounds.once(()))
    scan_s, _ = _measured(lambda: _counted(store))
    found = sum(store.incidents.open_counts().values())
    print(
        f"{name}: first round among {RUNS:,} runs of {CRAWLERS} crawlers {whole_s:.2f} s "
        f"({whole_cpu_s:.2f} s of processor; {found} incidents), a scan of them {scan_s:.2f} s"
    )
    used = bare = 0.0
    due = 0.0
    number = RUNS
    for _ in range(ROUNDS):
        due += RATE * EVERY_S
        while due >= 1:
            due -= 1
            number -= 1
            _end(store, number)
        used += _measured(lambda: rounds.once(()))[1]
        bare += _measured(store.events.last_event_seq)[1]
    each_ms = used / ROUNDS * 1000
    print(
        f"{name}: a round {each_ms:.1f} ms of processor (a plain statement "
        f"{bare / ROUNDS * 1000:.1f} ms), {used / (ROUNDS * EVERY_S):.2%} of a core "
        f"(target: 1 %), without the database server"
    )
    store.close()


def _show_fleet(name: str, store: Store) -> None:
    """Print how long the home page of a gateway takes, for several gateways."""
    pages = []
    alive = []
    for _ in range(PAGES):
        harness = Harness(store, utc_now)  # type: ignore[arg-type]
        app = harness.new_app(clock=utc_now)
        with harness.client(app) as client:
            alive.append(_measured(lambda: client.get("/healthz").raise_for_status()))
            pages.append(_measured(lambda: client.get("/", headers=HTML).raise_for_status()))
    page_ms = 1000 * median(wall for wall, _ in pages)
    page_cpu_ms = 1000 * median(used for _, used in pages)
    alive_ms = 1000 * median(wall for wall, _ in alive)
    print(
        f"{name}: first page of Fleet among {RUNS:,} runs of {CRAWLERS} crawlers {page_ms:.0f} ms "
        f"({page_cpu_ms:.0f} ms of processor; target: {FLEET_MS:g} ms), GET /healthz "
        f"{alive_ms:.1f} ms: {page_ms / alive_ms:.0f} x"
    )


def _fill(store: Store) -> None:
    filler = filling.patient_engine(store.database.engine.url)
    with patch.object(filling, "CRAWLERS", CRAWLERS), filler.begin() as connection:
        filling.fill_runs(connection, RUNS)
        age = f"(({RUNS} - run_id) / {RATE})"
        at = f"TIMESTAMPADD(MICROSECOND, -1000000 * {age}, :now)"
        if connection.dialect.name == "sqlite":
            at = f"datetime(:now, '-' || {age} || ' seconds') || '.000000'"
        change = f"UPDATE run_history SET created_at = {at}, ended_at = {at} WHERE run_id > :old"
        values = {"now": f"{utc_now():%Y-%m-%d %H:%M:%S.%f}", "old": RUNS - DAY}
        connection.execute(sa.text(change), values)
    with filler.begin() as connection:
        filling.analyze(connection, list(metadata.tables))
    filler.dispose()
    definition = {"run": {"crawler": "crawler-1"}, "every_s": 3600}
    for n in range(SCHEDULES):
        store.schedules.put(f"s{n}", definition, None)


def _counted(store: Store) -> None:
    with store.database.reading() as connection:
        statement = "SELECT crawler, status, count(*), max(cause) FROM run_history GROUP BY 1, 2"
        connection.execute(sa.text(statement)).all()


def _end(store: Store, run_id: int) -> None:
    """Append the event of the end of a run, as its verdict does."""
    with store.database.writing() as connection:
        connection.execute(sa.text("UPDATE outbox_counter SET seq = seq + 1"))
        statement = (
            "INSERT INTO outbox_event (seq, subject, subject_uid, run_id, attempt, type, body, "
            "created_at) SELECT seq, 'runs/1', 'u', :id, 1, 'run.ended', '{}', :at FROM "
            "outbox_counter"
        )
        at = f"{utc_now():%Y-%m-%d %H:%M:%S.%f}"
        connection.execute(sa.text(statement), {"id": run_id, "at": at})


def _measured(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call, and its processor time."""
    began = time.perf_counter()
    used = time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - used
