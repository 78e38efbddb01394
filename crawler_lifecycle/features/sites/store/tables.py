"""The tables of sites. Their times are seconds since 1970 by the clock of the database, which all
gateways and workers share (``clock.db_now``).
"""

from __future__ import annotations

import zlib

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, String

from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.columns import (
    Bytes,
    Json,
    Key,
    UtcTime,
    Words,
    counted_key,
    given_key,
    new_table,
    owner_key,
    required,
)

from ..domain.robots import FILE_MAX

_NAME = String(255)
_TIME = Float(53)

site = new_table(
    "site",
    # A host, *.host, or * for the limits of all other sites (domain/site.py).
    Column("site", _NAME, primary_key=True),
    # The limits as JSON; null if the site has no entry.
    Column("limits", Json),
    # "settings" or "people"; null if the site has no entry.
    Column("origin", String(20)),
    Column("changed_at", UtcTime),
    Column("changed_by", Words(255)),
    # The site is closed until then. While closures is above 0 and the time is over, one task probes
    # it.
    required("closed_until", _TIME),
    required("closures", Integer),
    # The run or the person who closed it, and the status with which the site refused the request.
    Column("closed_by_run", BigInteger),
    Column("closed_by", Words(255)),
    Column("closed_status", Integer),
    # Until then, a task waits for a lane.
    required("lane_wanted_until", _TIME),
    # The longest crawl delay that a robots.txt of the site demands, in seconds.
    Column("crawl_delay", _TIME),
    # True while runs may wait for a slot of the site.
    required("has_tickets", Boolean),
    Index(None, "has_tickets"),
    Index(None, "closures"),
)

run_site = new_table(
    "run_site",
    # The sites of a run. The host decides which site it is when entries change.
    owner_key("run_history.run_id"),
    Column("host", _NAME, primary_key=True),
    required("site", _NAME),
)

site_ticket = new_table(
    "site_ticket",
    # A run that is waiting for a slot of a site, which is the first of its sites without one.
    owner_key("run_history.run_id"),
    required("site", _NAME),
    required("priority", Integer),
    required("since", UtcTime),
    required("wanted", Integer),
    # The time when the workflow was called to request slots.
    Column("called_at", UtcTime),
    Index(None, "site", "priority", "since", "run_id"),
    Index(None, "called_at"),
)

site_lease = new_table(
    "site_lease",
    Column("site", _NAME, primary_key=True),
    given_key("lane", Integer),
    # run.index.attempt
    required("holder", String(60)),
    required("since", _TIME),
    required("until", _TIME),
    required("leaves", Boolean),
)

site_minute = new_table(
    "site_minute",
    # What tasks reported in one minute, which counts from 1970.
    Column("site", _NAME, primary_key=True),
    given_key("minute", Integer),
    required("requests", Key),
    # The number of responses by status. The key error counts requests without a response.
    required("statuses", Json),
    Index(None, "minute"),
)

site_day = new_table(
    "site_day",
    # What tasks reported in one day, which counts from 1970, about requests through proxies.
    Column("site", _NAME, primary_key=True),
    given_key("day", Integer),
    # The number of responses by status, by proxy.
    required("proxies", Json),
    Index(None, "day"),
)

site_report = new_table(
    "site_report",
    # The refused requests in the statistics of a task, which each poll reads again. Those in marks
    # have already closed their sites.
    owner_key("run_history.run_id"),
    given_key("task_index", Integer),
    # The first 16 hexadecimal digits of the hash of each report, separated by spaces.
    required("marks", String(400)),
    required("at", _TIME),
    Index(None, "at"),
)

site_block = new_table(
    "site_block",
    # A refused request that closed a site, or a person who closed or opened it.
    counted_key("block_id"),
    required("site", _NAME),
    required("at", _TIME),
    Column("run_id", BigInteger),
    Column("task_index", Integer),
    Column("person", Words(255)),
    Column("status", Integer),
    Column("retry_after_s", _TIME),
    required("closed_until", _TIME),
    Index(None, "site", "block_id"),
    Index(None, "at"),
)

site_robots = new_table(
    "site_robots",
    # The files with the rules of an origin (scheme, host and port), as one task fetched them.
    Column("origin", String(300), primary_key=True),
    required("site", _NAME),
    # The task that fetches them, and until when the others wait for it.
    required("claimed_by", String(60)),
    required("claimed_until", _TIME),
    # The last fetch; the status is null if the site did not answer.
    required("fetched_at", _TIME),
    required("valid_until", _TIME),
    Column("run_id", BigInteger),
    Column("status", Integer),
    # The last known rules. A failed fetch changes nothing here.
    Column("sha256", String(64)),
    Column("size", Integer),
    # Compressed with zlib.
    Column("body", Bytes),
    Column("crawl_delay", _TIME),
    Column("tdm_reserved", Boolean),
    Column("tdm_policy", Words(1000)),
    Index(None, "site"),
    Index(None, "valid_until"),
)

run_robots = new_table(
    "run_robots",
    # The robots.txt that a run got for a host, and how many requests it refused.
    owner_key("run_history.run_id"),
    Column("host", _NAME, primary_key=True),
    Column("sha256", String(64)),
    Column("crawl_delay", _TIME),
    required("refused", BigInteger),
)


def text_of(row: Row) -> bytes:
    """Return the robots.txt of a row of ``site_robots``, as the site sent it."""
    body = row["body"]
    return b"" if body is None else zlib.decompressobj().decompress(body, FILE_MAX)
