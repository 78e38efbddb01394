"""Tables of graphs, their steps and results."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from crawler_lifecycle.store.base.tables import OPTIONS, Bytes, Json, Key, Long, metadata, stop_columns
from crawler_lifecycle.store.columns import UtcTime, Words

graph = Table(
    "graph",
    metadata,
    Column("graph_id", Key, primary_key=True, autoincrement=True),
    # Who the graph is: a number comes again where a database was restored or made anew.
    Column("graph_uid", String(32), nullable=False),
    Column("graph_key", String(200), nullable=False),
    Column("name", Words(200)),
    # Of the whole spec, so that a repeated start is known from another one.
    Column("fingerprint", String(64), nullable=False),
    Column("pages", Integer, nullable=False),
    Column("options", Json, nullable=False),
    Column("context", Json),
    Column("state", String(20), nullable=False),
    # Of its steps by state, at the last change of the graph.
    Column("counts", Json),
    Column("cause", Long),
    Column("attempt", Integer, nullable=False),
    Column("owner_workflow_id", String(1000)),
    Column("owner_run_id", String(64)),
    # Owners from which it was taken: a late claim of theirs is refused.
    Column("former_owners", Json, nullable=False),
    Column("next_batch", BigInteger, nullable=False),
    # What people asked for lately, with the answers: [[request id, answer], ...].
    Column("commands", Json, nullable=False),
    *stop_columns(),
    Column("tags", Json, nullable=False),
    Column("waiting_for", Long),
    Column("requested_by", Words(255)),
    Column("parent", String(255)),
    # Its events up to this number may be gone, and its steps, since then.
    Column("pruned_through", BigInteger),
    Column("pruned_at", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("graph_key"),
    Index(None, "state", "graph_id"),
    Index(None, "name", "graph_id"),
    **OPTIONS,
)


def _graph_id() -> Column[int]:
    return Column("graph_id", Key, ForeignKey("graph.graph_id"), primary_key=True, autoincrement=False)


def _number() -> Column[int]:
    return Column("number", Integer, primary_key=True, autoincrement=False)


graph_page = Table(
    "graph_page",
    metadata,
    # What was sent of a draft, until it is made whole.
    _graph_id(),
    Column("page", Integer, primary_key=True, autoincrement=False),
    Column("data", Bytes, nullable=False),
    **{**OPTIONS, "sqlite_autoincrement": False},
)

graph_step = Table(
    "graph_step",
    metadata,
    _graph_id(),
    # Its place in the order in which steps were added, from 0.
    _number(),
    Column("path", Text, nullable=False),
    Column("path_hash", String(32), nullable=False),
    Column("kind", String(20), nullable=False),
    # The number of the graph, or the grafter, that it is in.
    Column("parent", Integer),
    # All else that does not change while it runs, as far as it was said: what it depends on, what it may take.
    Column("shape", Json),
    Column("job", Json, nullable=False),
    Column("state", String(20), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("snoozed", Integer, nullable=False),
    Column("not_before", UtcTime),
    # The call that it was given to, while that has not answered.
    Column("batch", BigInteger),
    # Which of its alternatives of resources it holds.
    Column("alternative", Integer),
    # The run of a crawl, or the manager; the attempt of that whose end was taken in last; and the step's own attempt
    # for which it was begun.
    Column("run_id", BigInteger),
    Column("run_attempt", Integer, nullable=False),
    Column("begun_attempt", Integer, nullable=False),
    Column("ending", Boolean, nullable=False),
    Column("outcome", Words(200)),
    Column("reason", Long),
    Column("errors", Json),
    Column("result_bytes", BigInteger),
    # The attempt that grafted, and what.
    Column("graft_attempt", Integer),
    Column("graft_digest", String(64)),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("graph_id", "path_hash"),
    Index(None, "graph_id", "parent"),
    Index(None, "graph_id", "batch"),
    # Counting reads this index and nothing else; so are crawls found that execute or end.
    Index("ix_graph_step_states", "graph_id", "kind", "state", "ending"),
    **{**OPTIONS, "sqlite_autoincrement": False},
)

graph_change = Table(
    "graph_change",
    metadata,
    # A worktable: rows live inside one transaction only (see graph_steps.py). The columns that it shares with
    # graph_step have the same names and types.
    _graph_id(),
    _number(),
    *(
        Column(name, graph_step.c[name].type)
        for name in (
            *("shape", "state", "attempt", "tries", "not_before", "batch", "alternative", "run_id", "run_attempt"),
            *("ending", "outcome", "reason", "errors", "started_at", "ended_at", "result_bytes"),
        )
    ),
    **{**OPTIONS, "sqlite_autoincrement": False},
)

graph_result = Table(
    "graph_result",
    metadata,
    # What a step gave, compressed, in parts.
    _graph_id(),
    _number(),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("data", Bytes, nullable=False),
    **{**OPTIONS, "sqlite_autoincrement": False},
)

graph_log = Table(
    "graph_log",
    metadata,
    _graph_id(),
    Column("log_tail", Text, nullable=False),
    **{**OPTIONS, "sqlite_autoincrement": False},
)
