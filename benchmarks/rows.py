"""The bytes that a run and its tasks leave in each table of the database, written by the real
workflow, on MariaDB and SQLite.

Both databases play runs of one task, and runs of many. The bytes are those of the records in the
pages of each table and index, which are filled to two thirds or more. Pages that store large values
outside their rows are counted by their contents.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from temporalio.client import Client

from benchmarks.sizes import size
from benchmarks.throughput import _server
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Counters
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.fakes.cluster import Behaviour
from tests.support.filling import patient_engine
from tests.support.mariadb import running_mariadb
from tests.support.testbed import open_testbed

RUNS = size(60, 3, "BENCHMARK_RUNS")
EACH = size(20, 2, "BENCHMARK_EACH")
AT_ONCE = 30
#: How long each task executes, and the interval of its polls.
EXECUTES_S, POLLS_M = 6.0, [0.02]
PAGE = 16_384
#: The bytes of a page that InnoDB uses for itself when it stores a value outside of its row, and
#: the row size above which it does so.
_OWN, _ROW_MAX = 46, 8_100
#: The values that may be this large.
BESIDE = (("task_log", "log_tail"), ("task_log", "compressed"), ("outbox_event", "body"))
_FIELDS = ("name", "price", "currency", "rating", "availability", "brand")
_REQUEST = {"crawler": "books", "limits": {"start_check_s": 0}, "poll_minutes": POLLS_M}


def crawl_log(seed: int) -> str:
    """Return the end of a log as Scrapy writes it for pages and items, different for each seed."""
    dice, at, lines, size = random.Random(seed), datetime(2026, 3, 1, 4, 5, 6), [], 0
    site = f"https://{dice.choice(('shop', 'www', 'catalogue'))}.example-{dice.randrange(900)}.com"
    while size < 2 * LOG_TAIL_BYTES:
        at += timedelta(milliseconds=dice.randrange(10, 900))
        url = f"{site}/{dice.choice(('books', 'garden', 'tools'))}/{dice.randrange(10**7)}?page={dice.randrange(90)}"
        words = {
            name: f"{dice.getrandbits(40):x}" if n else dice.randrange(10**4)
            for n, name in enumerate(_FIELDS)
        }
        told = [f"[scrapy.core.engine] DEBUG: Crawled (200) <GET {url}> (referer: {site}/)"]
        told.append(f"[scrapy.core.scraper] DEBUG: Scraped from <200 {url}>\n{words}")
        lines += [f"{at:%Y-%m-%d %H:%M:%S} {line}\n" for line in told]
        size += len(lines[-1]) + len(lines[-2])
    return "".join(lines)[-LOG_TAIL_BYTES:]


def statistics(seed: int) -> Mapping[str, int | float]:
    """Return statistics like those of a small Scrapy spider."""
    dice = random.Random(seed)
    kinds = (
        "request_bytes",
        "request_count",
        "request_method_count/GET",
        "response_bytes",
        "response_count",
    )
    found: dict[str, int | float] = {f"downloader/{name}": dice.randrange(10**6) for name in kinds}
    found |= {
        f"downloader/response_status_count/{code}": dice.randrange(10**3)
        for code in (200, 301, 404)
    }
    found |= {
        f"scheduler/{name}": dice.randrange(10**3)
        for name in ("dequeued", "dequeued/memory", "enqueued")
    }
    found |= {f"log_count/{level}": dice.randrange(10**3) for level in ("DEBUG", "INFO", "WARNING")}
    found |= {
        "item_scraped_count": dice.randrange(10**3),
        "request_depth_max": 4,
        "memusage/max": 99_000_000 + seed,
    }
    return found | {
        "elapsed_time_seconds": round(dice.uniform(1, 900), 6),
        "response_received_count": 812,
    }


def behaviour(run_id: int, index: int, attempt: int) -> Behaviour:
    seed = 1_000 * run_id + index
    told, counters = (crawl_log(seed), statistics(seed)), Counters(812, 500, 3, 9_000_000)
    return Behaviour(
        executes=EXECUTES_S,
        log=told[0],
        statistics=told[1],
        counters=counters,
        peak_memory=99_000_000,
    )


async def main() -> None:
    """Print both loads on each database."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        await _played(client, folder, "SQLite", f"sqlite:///{folder / 'rows.db'}")
        try:
            url = stack.enter_context(stack.enter_context(running_mariadb()).database())
        except pytest.skip.Exception as missing:
            print(missing)
        else:
            await _played(client, folder, "MariaDB", url)


async def _played(client: Client, folder: Path, title: str, url: str) -> None:
    engine = patient_engine(url)
    logging.disable(logging.WARNING)
    async with open_testbed(client, folder, clock=utc_now, database=url) as testbed:
        testbed.cluster.behaviour, testbed.outside.sends = behaviour, True
        for each, runs in ((1, RUNS), (EACH, max(1, RUNS // EACH))):
            before = await asyncio.to_thread(used, engine)
            numbers = iter(range(runs))

            async def lane(each: int = each, numbers: object = numbers) -> None:
                for number in numbers:  # type: ignore[attr-defined]
                    request = _REQUEST | {"tasks": [{}] * each}
                    id = f"{title}/{each}/{number}"
                    await client.execute_workflow(
                        names.LIFECYCLE_WORKFLOW, request, id=id, task_queue=names.QUEUE_MAIN
                    )

            await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
            after = await asyncio.to_thread(used, engine)
            grown = {name: (size - before.get(name, 0)) / runs for name, size in after.items()}
            print(
                f"{title}: {runs} runs of {each} tasks, bytes a run {sum(grown.values()):,.0f}",
                flush=True,
            )
            for name, size in sorted(grown.items(), key=lambda one: -one[1]):
                if size > 20:
                    print(f"    {name:60} {size:10,.0f}", flush=True)
    for name, size in sorted(columns(engine).items(), key=lambda one: -one[1])[:25]:
        print(f"    contents of {name}, a row: {size:,.0f}", flush=True)
    engine.dispose()


def used(engine: sa.Engine) -> dict[str, int]:
    """Return the bytes of the records of each table and each of its indexes, and of the pages next
    to them.
    """
    with engine.connect() as conn:
        if engine.dialect.name == "sqlite":
            asked = (
                "SELECT s.tbl_name, d.name, SUM(d.payload) FROM dbstat d JOIN sqlite_master s "
                "ON s.name = d.name "
            )
            rows = conn.execute(sa.text(f"{asked} GROUP BY d.name"))
            return {
                table if name == table else f"{table}: {name}": int(size)
                for table, name, size in rows
            }
        # Written data is in the server's memory, and its own counts of tables are in whole
        # megabytes.
        asked = (
            "SELECT table_name, index_name, SUM(data_size) FROM "
            "information_schema.innodb_buffer_page WHERE "
        )
        asked += (
            "page_type = 'INDEX' AND table_name LIKE CONCAT('`', DATABASE(), '`.%') GROUP BY 1, 2"
        )
        found = {}
        for table, index, size in conn.execute(sa.text(asked)):
            table = table.rpartition(".")[2].strip("`")
            found[table if index == "PRIMARY" else f"{table}: {index}"] = int(size)
        for table, column in BESIDE:
            lengths = conn.execute(
                sa.text(f"SELECT LENGTH({column}) FROM {table} WHERE LENGTH({column}) > {_ROW_MAX}")
            )
            found[f"{table}: {column} beside its rows"] = sum(
                -(-size // (PAGE - _OWN)) * PAGE for (size,) in lengths
            )
        return found


def columns(engine: sa.Engine) -> dict[str, float]:
    """Return the average bytes of a row's values, by column."""
    found = {}
    with engine.connect() as conn:
        inspected = sa.inspect(conn)
        for table in inspected.get_table_names():
            for column in inspected.get_columns(table):
                quoted = engine.dialect.identifier_preparer.quote(column["name"])
                value = (
                    f"CAST({quoted} AS {'BLOB' if engine.dialect.name == 'sqlite' else 'BINARY'})"
                )
                size = conn.execute(
                    sa.text(f"SELECT AVG(COALESCE(LENGTH({value}), 0)) FROM {table}")
                ).scalar()
                found[f"{table}.{column['name']}"] = float(size or 0)
    return found
