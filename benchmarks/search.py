"""The search for runs among very many runs, what the words of a run cost when it is accepted, and
how fast words of older runs are written; SQLite and MariaDB.

The baseline of a search is the list of the newest runs, that of a write the acceptance of a run
without words, each in the same database.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import sqlalchemy as sa

from benchmarks.both_databases import on_both
from benchmarks.sizes import size
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.runs import initiation, search_documents
from crawler_lifecycle.store.runs.tables import run_history
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.store.tables import metadata
from tests.support import filling

RUNS = size(1_000_000, 2_000, "BENCHMARK_RUNS")
ROUNDS = size(9, 2)
ACCEPTED = size(200, 5)
CRAWLERS = 500
PAGE = 50
#: Texts, by the number of matching runs.
SEARCHES = {
    "every run": "crawler",
    "every run, two words": "CRAWLER tasks",
    "every hundredth": "refused",
    "1 in 500": "crawler-437",
    "1 in 5,000": "shop-4321",
    "one run": str(RUNS // 2),
    "no run": "nobody",
    "the beginning of many words": "1",
    "half of the runs, all old": "spring",
}


async def main() -> None:
    """Print the figures for both databases."""
    on_both(_figures)


def _figures(name: str, url: str) -> None:
    upgrade(url)
    store = open_store(url)
    _fill(store)
    began = time.perf_counter()
    while store.search.fill():
        pass
    took = time.perf_counter() - began
    print(f"{name}: words of {RUNS:,} older runs written in {took:.0f} s", flush=True)
    calls: dict[str, Callable[[], object]] = {
        f"{title} ({text})": lambda text=text: store.runs.search_runs(text, limit=PAGE)
        for title, text in SEARCHES.items()
    }
    calls["1 in 5,000 that failed"] = lambda: store.runs.search_runs(
        "shop-4321", limit=PAGE, status=["FAILED"]
    )
    calls["half of the runs, all old, of one crawler"] = lambda: store.runs.search_runs(
        "spring", limit=PAGE, crawler="crawler-7"
    )
    calls["baseline: the newest runs"] = lambda: store.runs.list_runs(limit=PAGE)
    for title, call in calls.items():
        call()
        times = [_milliseconds(call) for _ in range(ROUNDS)]
        print(
            f"    {statistics.median(times):7.1f} ms, at most {max(times):7.1f} ms  {title}",
            flush=True,
        )
    _writes(name, store)
    store.close()


def _fill(store: Store) -> None:
    filler = filling.patient_engine(store.database.engine.url)
    joined = "CONCAT({})" if filler.dialect.name == "mysql" else "{}"
    comma = ", " if filler.dialect.name == "mysql" else " || "

    def text(*parts: str) -> str:
        return joined.format(comma.join(parts))

    site = '\'{"crawler":"x","args":{"site":"https://shop-\''
    season = f"(CASE WHEN run_id < {RUNS // 2} THEN 'spring' ELSE 'autumn' END)"
    request = text(
        site, "(run_id % 5000)", '\'.example","season":"\'', season, '\'"},"tags":["nightly"]}\''
    )
    cause = text("'connection refused by host-'", "(run_id % 300)")
    with patch.object(filling, "CRAWLERS", CRAWLERS), filler.begin() as connection:
        for index in run_history.indexes:  # creating them afterwards takes a tenth of the time
            index.drop(connection)
        filling.fill_runs(connection, RUNS)
        change = f"UPDATE run_history SET request = {request}, cause = CASE WHEN status = 'FAILED' "
        connection.execute(sa.text((change + f"THEN {cause} ELSE cause END").replace(":", r"\:")))
        for index in run_history.indexes:
            index.create(connection)
    with filler.begin() as connection:
        filling.analyze(connection, list(metadata.tables))
    filler.dispose()


def _writes(name: str, store: Store) -> None:
    """Print the cost of the words of a new run. The two kinds of runs take turns."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for n in range(ACCEPTED):
        for words in times:
            written = search_documents.write_words if words else lambda conn, run: None
            request = RunRequest(
                crawler="crawler-7", args={"site": f"https://shop-{n}.example"}, tags=["nightly"]
            )
            with patch.object(initiation, "write_words", written):
                times[words].append(
                    _milliseconds(
                        lambda: store.initiation.reserve_run(request, f"new-{n}-{words}")  # noqa: B023
                    )
                )
    with_words, without = (statistics.median(times[words]) for words in times)
    print(f"{name}: a run accepted in {with_words:.2f} ms, without words {without:.2f} ms")


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
