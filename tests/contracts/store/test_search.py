"""The search for runs compared with a plain search, on every database."""

from __future__ import annotations

import random
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.search_words import document_words, search_words
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.runs import search, search_documents
from crawler_lifecycle.store.runs.tables import run_history, run_word
from tests.contracts.store.harness import START, Harness

#: The last ones are words that full-text indexes omit by default, or that have a meaning in their
#: queries.
ARGS = (
    "http://Shop437.example/Öl?q=50%",
    "日本語 カタカナ",
    "ﬁnd it",
    "the and or not near",
    "a",
    "x" * 90,
)
QUERIES = (
    "serv", "SERVICES flow", "shop-437", "shop437", "shop 438", "öl", "OL", "日本", "本語", "find",
    "the", "and", "a", "near", "not", "zurich", "nightly half", "x" * 90, "x" * 59, "boom", "1", "17",
    "nobody", 'service" OR "x', "shop*", "-services", "+services", "(services", "%", "failed boom", "q 50",
)  # fmt: skip


@pytest.fixture
def many(harness: Harness) -> list[RunRow]:
    """Runs with many words, some of which failed with an error text; the newest first."""
    chosen = random.Random(5)
    for n in range(30):
        fence = harness.run(
            f"r{n}",
            crawler=chosen.choice(["services", "sitemap", "shop-437"]),
            tags=chosen.sample(["nightly", "zürich", "half ?"], chosen.randrange(3)),
            flow_id=chosen.choice([None, "flow-1"]),
            args={"start": chosen.choice(ARGS)},
            project=chosen.choice(["default", "other"]),
        )
        if n % 3 == 0:
            harness.begin(fence)
            harness.finish(fence, failed=[0])
    return harness.store.runs.list_runs(limit=100)


def fitting(rows: list[RunRow], text: str) -> list[int]:
    """Return the numbers of matching runs, as a plain search of the rows finds them."""
    wanted = search_words(text)
    found = []
    for row in rows:
        args: Any = row.request["args"]
        tags: Any = row.request["tags"]
        texts = [
            str(row.run_id),
            row.crawler,
            row.flow_id or "",
            row.outcome or "",
            row.cause or "",
        ]
        words = document_words([*texts, *tags, *(f"{k} {v}" for k, v in args.items())])
        if wanted and all(any(word.startswith(one) for word in words) for one in wanted):
            found.append(row.run_id)
    return found


def found(harness: Harness, text: str, **wanted: Any) -> list[int]:
    return [row.run_id for row in harness.store.runs.search_runs(text, limit=100, **wanted)[0]]


def test_every_database_finds_what_a_reader_finds(
    harness: Harness, many: list[RunRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By entries of a rare word, of all words with a prefix, and of the newest runs."""
    for rare, merged in ((20_000, 20), (1, 20), (1, 1)):
        monkeypatch.setattr(search, "_CHUNK", 3)
        monkeypatch.setattr(search, "_RARE", rare)
        monkeypatch.setattr(search, "_MERGED_MAX", merged)
        for text in QUERIES:
            assert found(harness, text) == fitting(many, text), (rare, merged, text)
        failed = [row for row in many if row.status is RunStatus.FAILED]
        assert found(harness, "boom", status=["FAILED"]) == fitting(failed, "boom")
        assert found(harness, "boom") == [row.run_id for row in failed], "by the text of an error"
        tagged = [row for row in many if "zürich" in row.request["tags"]]  # type: ignore[operator]
        assert found(harness, "s", tags=["zürich"]) == fitting(tagged, "s")
        with limited("other"):
            mine = [row for row in many if row.project == "other"]
            assert found(harness, "s") == fitting(mine, "s")
        pages: list[int] = []
        before = None
        while page := harness.store.runs.search_runs("s", limit=4, before_run_id=before)[0]:
            pages += [row.run_id for row in page]
            before = pages[-1]
        assert pages == fitting(many, "s")
    assert any(fitting(many, text) for text in QUERIES)


def test_words_follow_the_run(harness: Harness) -> None:
    fence = harness.executing("r", tasks=2, args={"site": "first"}, tags=["secret"])
    harness.see_ends(fence, failed=[1])
    assert found(harness, "boom") == [fence.run_id], "while the run is live"
    harness.end(fence)
    assert found(harness, "first boom") == [fence.run_id]
    again = harness.resume(fence)
    harness.begin(again)
    harness.finish(again)
    assert [found(harness, text) for text in ("boom", "first finished")] == [[], [fence.run_id]]


def test_arguments_of_single_tasks_are_found(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = harness.run("many", 4, args={"mode": "whole"})
    assert found(harness, "part 3") == found(harness, "whole 2") == [fence.run_id]
    harness.begin(fence)
    harness.store.additions.add_tasks(fence.run_id, "more", [{"site": "late-comer"}])
    assert found(harness, "comer") == [fence.run_id]
    single = harness.executing("single")
    harness.store.additions.add_tasks(single.run_id, "first", [{"site": "addition"}])
    assert found(harness, "addition") == [single.run_id]
    with harness.store.database.writing() as conn:
        conn.execute(delete(run_word))
    monkeypatch.setattr(search_documents, "ARGS_MAX", 3)
    assert harness.store.search.fill() == 2
    assert found(harness, "part 2") == [fence.run_id]
    assert found(harness, "comer") == [], "only the first tasks are read"
    harness.finish(fence)
    ref, _ = harness.store.deletion.ask_deletion(fence.run_id, "ann")
    harness.store.deletion.delete_texts(ref.ref, lambda: None)
    assert found(harness, "part") == []


def test_words_of_deleted_data_are_gone(harness: Harness) -> None:
    fence = harness.executing("r", args={"site": "mysterious"}, tags=["secret"])
    harness.finish(fence, failed=[0])
    ref, _ = harness.store.deletion.ask_deletion(fence.run_id, "ann")
    harness.store.deletion.delete_texts(ref.ref, lambda: None)
    harness.store.deletion.forget_former()
    assert [found(harness, text) for text in ("mysterious", "secret", "boom")] == [[], [], []]
    assert found(harness, "services") == [fence.run_id]
    with harness.store.database.reading() as conn:
        words = set(conn.execute(select(run_word.c.word)).scalars())
    assert words == {str(fence.run_id), "services", "failed"}


def test_runs_of_former_builds_are_filled_the_newest_first(
    harness: Harness, many: list[RunRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_documents, "_FILL", 8)
    with harness.store.database.reading() as conn:
        written = conn.execute(select(run_word).order_by(*run_word.c)).all()
    with harness.store.database.writing() as conn:
        conn.execute(delete(run_word).where(run_word.c.run_id <= many[10].run_id))
    above = many[9].run_id
    _, reach = harness.store.runs.search_runs("nobody")
    assert reach.note == (
        f"Runs below {above} cannot be found yet: their words are still being indexed."
    )
    counts = []
    while filled := harness.store.search.fill():
        counts.append(filled)
    assert counts == [8, 8, 4]
    assert harness.store.runs.search_runs("nobody")[1].note is None
    with harness.store.database.reading() as conn:
        again = conn.execute(select(run_word).order_by(*run_word.c)).all()
    assert again == written


def test_a_search_of_a_time_reads_only_runs_of_that_time(
    harness: Harness, many: list[RunRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise newer and older runs with the words use up what one search may read."""
    monkeypatch.setattr(search, "_CHUNK", 3)
    monkeypatch.setattr(search, "_READ_MAX", 9)
    with harness.store.database.writing() as conn:
        for days, row in enumerate(reversed(many)):
            mine = run_history.c.run_id == row.run_id
            change = update(run_history).where(mine)
            conn.execute(change.values(created_at=START + timedelta(days=days)))
    times = {
        "created_from": START + timedelta(days=10),
        "created_until": START + timedelta(days=13),
    }
    rows, reach = harness.store.runs.search_runs("s", limit=100, **times)
    oldest = [*reversed(many)][10:13]
    assert [row.run_id for row in rows] == fitting(oldest[::-1], "s")
    assert reach.whole
    assert reach.note is None


def test_a_search_of_a_project_reads_only_its_runs(
    harness: Harness, many: list[RunRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = fitting([row for row in many if row.project == "other"], "serv")
    monkeypatch.setattr(search, "_CHUNK", 3)
    monkeypatch.setattr(search, "_READ_MAX", len(mine) + 3)
    assert len(fitting(many, "serv")) > len(mine) + 3
    with limited("other"):
        assert found(harness, "serv") == mine


def test_frequent_words_of_other_projects_do_not_hide_those_of_a_small_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = harness.run("mine", crawler="services", project="small").run_id
    for n in range(12):
        harness.run(f"r{n}", crawler="services", project="large")
    monkeypatch.setattr(search, "_CHUNK", 3)
    monkeypatch.setattr(search, "_READ_MAX", 6)
    monkeypatch.setattr(search, "_RARE", 10)
    with limited("small"):
        assert found(harness, "services") == [mine]
        assert found(harness, "services", crawler="services") == [mine]
        for n in range(8):
            harness.run(f"s{n}", crawler="sitemap", project="small")
        assert found(harness, "services") == [mine], "all runs of a small project are read"


def test_a_search_says_what_it_left_out(
    harness: Harness, many: list[RunRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reach = harness.store.runs.search_runs("?!")
    assert (reach.note or "").startswith("search: this text has no letter or digit")
    monkeypatch.setattr(search, "_CHUNK", 3)
    monkeypatch.setattr(search, "_READ_MAX", 3)
    _, reach = harness.store.runs.search_runs("s", status=["FAILED"])
    assert re.match(r"Only runs since \d+ were searched", reach.note or "")
