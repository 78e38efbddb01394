"""The runner with any other program."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.runner import contract, feeds, main, reported
from crawler_lifecycle.runner.item_files import DECLARED
from crawler_lifecycle.runner.main import Runner
from crawler_lifecycle.runner.state import ANEW, NO_STATE, NOT_ASKED, UNKNOWN, WENT_ON
from tests.runner.runner_fixture import RUNNER, RunnerFixture, wait_until
from tests.support.examples import examples

READY = "import os; open(os.environ['CRAWL_FILES_DIR'] + '/ready', 'w').close()\n"
#: In short steps, because a signal just before a sleep waits for its end.
WAITS = "while True: time.sleep(0.1)\n"
STATS = """
import json, os
def write(data):
    path = os.environ["CRAWL_STATS_FILE"]
    with open(path + ".tmp", "w") as file:
        file.write(data if isinstance(data, str) else json.dumps(data))
    os.rename(path + ".tmp", path)
"""


@pytest.mark.parametrize(
    ("code", "reason"), [(0, "finished"), (1, None), (3, None), (14, None), (18, None), (200, None)]
)
def test_its_exit_code_is_the_evidence(
    fixture: RunnerFixture, code: int, reason: str | None
) -> None:
    assert fixture.python(f"raise SystemExit({code})") == code
    summary = fixture.summary()
    assert (summary["exit"], summary["exit_code"], summary.get("finish_reason")) == (
        code,
        code,
        reason,
    )
    assert "signal" not in summary


PRICES = """
import json, os
with open(os.environ["CRAWL_FILES_DIR"] + "/items.jsonl", "w") as feed:
    for n in range(100):
        print(json.dumps({"title": n + 1, **({"price": 1} if n < 41 else {})}), file=feed)
assert "CRAWL_FIELDS" not in os.environ
"""


def test_the_fields_that_items_fill_are_in_the_summary(fixture: RunnerFixture) -> None:
    assert fixture.python(PRICES, CRAWL_FIELDS='["price", "stock"]') == 0
    assert fixture.summary()["fields"] == {
        "items": 100,
        "shares": {"price": 0.41, "stock": 0.0, "title": 1.0},
    }
    for odd in ("{", "7", "[1, {}]", "[" * 100_000):
        assert fixture.python(PRICES, CRAWL_FIELDS=odd) == 0
        assert fixture.summary()["fields"]["shares"] == {"title": 1.0, "price": 0.41}
    fixture.files.joinpath("items.jsonl").unlink()
    assert fixture.python("") == 0
    assert "fields" not in fixture.summary()


def test_items_without_any_value_are_known_to_fill_nothing(fixture: RunnerFixture) -> None:
    feed = fixture.files / "items.jsonl"
    feed.write_text('{"price": null}\n{}\n{"price": ""}\n')
    assert fixture.python("") == 0
    assert fixture.summary()["fields"] == {"items": 3, "shares": {}}
    found = Coverage.of(fixture.summary()["fields"])
    assert found is not None
    assert found.share("price") == 0.0, "comparisons with earlier runs see the loss"
    feed.write_text('["no", "fields"]\n')
    assert fixture.python("") == 0
    assert "fields" not in fixture.summary()


def test_items_that_nobody_can_read_are_on_record(fixture: RunnerFixture) -> None:
    (fixture.files / "items.jsonl").write_text('{"a": 1}\n{"a": 2\n{"a": 3}\n')
    assert fixture.python(f"{STATS}write({{'items': 3}})") == 0
    assert fixture.summary()["fields"] == {
        "items": 2,
        "shares": {"a": 1.0},
        "note": "3 items were counted, 2 can be read; "
        "1 lines were not JSON (items.jsonl: line 2: Expecting ',' delimiter)",
    }
    assert Coverage.of(fixture.summary()["fields"]) == Coverage(**fixture.summary()["fields"])
    (fixture.files / "items.jsonl").write_text("no\n")
    assert fixture.python(f"{STATS}write({{'items': 3}})") == 0
    found = Coverage.of(fixture.summary()["fields"])
    assert found is not None
    assert (found.items, found.shares, str(found.note)[:38]) == (
        0,
        {},
        "3 items were counted, 0 can be read; 1",
    )


def test_the_entry_names_the_files_of_items(fixture: RunnerFixture) -> None:
    said = json.dumps({"files": "out/*", "delimiter": ":", "quote": "none"})
    code = "import os; os.mkdir('out'); print('a:b\\n\"1:2\\n', file=open('out/rows', 'w'))"
    code = f"import os; os.chdir(os.environ['CRAWL_FILES_DIR']); {code}"
    assert fixture.python(code, CRAWL_ITEMS=said) == 0
    assert fixture.summary()["fields"] == {"items": 1, "shares": {"a": 1.0, "b": 1.0}}
    assert json.loads((fixture.files / DECLARED).read_text()) == json.loads(said)


@given(st.dictionaries(st.text(max_size=60), st.floats(0, 1), max_size=30), st.text(max_size=1000))
def test_fields_are_cut_first_and_never_in_part(shares: dict[str, float], message: str) -> None:
    said = {"runner": "1", "exit": 0, "fields": {"items": 5, "shares": shares}, "message": message}
    text = contract.summary_text(said)
    without = contract.summary_text({"runner": "1", "exit": 0, "message": message})
    assert len(text) <= contract.SUMMARY_MAX
    assert json.loads(text).get("fields", said["fields"]) == said["fields"]
    assert {**json.loads(text), "fields": 0} == {**json.loads(without), "fields": 0}


def test_its_own_stats_are_passed_on(fixture: RunnerFixture) -> None:
    told = {"pages": 3, "items": 2, "finish_reason": "size_limit", "resumable": True}
    assert fixture.python(f"{STATS}write({told})") == 0
    assert fixture.stats()["pages"] == 3
    summary = fixture.summary()
    assert summary.items() >= told.items()
    assert "errors" not in summary  # unknown is not zero
    assert fixture.progress()[-1]["pages"] == 3


def test_stats_are_passed_on_while_it_runs(fixture: RunnerFixture) -> None:
    process = fixture.start_python(
        STATS + "write({'pages': 3})\n" + READY + "import time; time.sleep(300)"
    )
    wait_until(fixture.stats_file.exists)
    assert fixture.stats()["pages"] == 3
    first = fixture.stats()["updated_at"]
    time.sleep(1.2)
    assert fixture.stats()["updated_at"] == first  # it has not counted again, so nothing is newer
    process.kill()


def test_refused_requests_are_passed_on_and_kept(fixture: RunnerFixture) -> None:
    """The crawler replaces the first report before anyone else reads its statistics."""
    one = {"host": "a.example", "status": 429, "retry_after": 20}
    two = {"host": "b.example", "retry_after": "Wed, 21 Oct 2026 07:28:00 GMT", "at": "12:00"}
    script = f"write({{'blocked': {one}}})\nimport time; time.sleep(1.5)\n"
    assert fixture.python(f"{STATS}{script}write({{'blocked': [{two}]}})") == 0
    for told in (fixture.stats(), fixture.summary(), fixture.progress()[-1]):
        assert told["blocked"] == [one, two]
    assert fixture.python(f"{STATS}write({{'pages': 1, 'blocked': 'shop.example'}})") == 0
    assert "blocked" not in fixture.stats()


_told = st.fixed_dictionaries(
    {},
    optional={
        "host": st.text(max_size=260) | st.just("shop.example") | st.none(),
        "status": st.integers(-1, 1000) | st.booleans(),
        "retry_after": st.floats() | st.integers() | st.text(max_size=70),
        "at": st.text(max_size=70) | st.integers(),
    },
)


@settings(max_examples=examples(100))
@given(told=_told | st.lists(_told | st.integers(), max_size=30))
def test_refused_requests_have_limits(told: Any) -> None:
    taken = reported.blocks(told)
    assert reported.blocks(taken) == taken
    assert len(taken) <= reported.BLOCKS_MAX
    assert len(json.dumps(taken, allow_nan=False)) <= reported.BLOCKS_BYTES
    assert all(block["host"] for block in taken)


APPENDS = "import os, json, time\nfile = open(os.environ['CRAWL_FILES_DIR'] + '/items.jsonl', 'a', buffering=1)\n"


def test_items_in_feeds_are_counted_while_it_runs_and_at_the_end(fixture: RunnerFixture) -> None:
    code = f"{APPENDS}print('{{}}\\n' * 3, file=file, end='')\n{READY}"
    code += "while not os.path.exists(os.environ['CRAWL_FILES_DIR'] + '/go'): time.sleep(0.01)\n"
    process = fixture.start_python(f"{code}print('{{}}', file=file, end='')", eager=True)
    wait_until(fixture.stats_file.exists)
    first = fixture.stats()
    assert (first["items"], first["bytes"], "updated_at" in first) == (3, 9, True)
    (fixture.files / "go").touch()
    assert fixture.finish(process) == 0
    told = (fixture.summary(), fixture.stats(), fixture.progress()[-1])
    # A last line without an end counts as an item.
    assert [(one["items"], one["bytes"]) for one in told] == [(4, 11)] * 3


@pytest.mark.parametrize(
    ("said", "resume", "told"),
    [
        ("", "1", (4, None)),
        ('write({"resumed": True})', "1", (4, True)),
        ('write({"resumed": False})', "1", (1, False)),
        ("", "0", (1, False)),
    ],
)
def test_items_in_feeds_are_counted_on_from_the_earlier_attempt(
    fixture: RunnerFixture, said: str, resume: str, told: tuple[int, bool | None]
) -> None:
    """Each attempt has a new feed.

    Its count continues with the state, like a crawler's own counters.
    """
    assert fixture.python(f"{APPENDS}print('{{}}\\n' * 3, file=file, end='')") == 0
    (fixture.files / "items.jsonl").unlink()
    later = {"CRAWL_ATTEMPT": "2", "CRAWL_RESUME": resume}
    assert fixture.python(f"{APPENDS}print('{{}}', file=file)\n{STATS}{said}", **later) == 0
    assert (fixture.summary()["items"], fixture.summary().get("resumed")) == told
    (fixture.files / "items.jsonl").unlink()
    last = {"CRAWL_ATTEMPT": "3", "CRAWL_RESUME": "1"}
    assert fixture.python(f"{APPENDS}print('{{}}', file=file)", **last) == 0
    assert fixture.summary()["items"] == told[0] + 1


@pytest.mark.parametrize(
    ("said", "resume", "counts"),
    [
        ("", "1", [3, 5, 7]),
        ("write({'resumed': True, 'items': 77, 'bytes': 1})", "1", [3, 5, 7]),
        ("write({'resumed': False})", "1", [3, 3, 5]),
        ("", "0", [3, 3, 5]),
    ],
)
def test_items_that_come_twice_are_counted_once_over_all_attempts(
    fixture: RunnerFixture, said: str, resume: str, counts: list[int]
) -> None:
    """Two keys and an item without one; a repeated key, a new one and an item without one; then as
    many.
    """
    brought = (["1", "2", "2", "null"], ["2", "3", "null", "3"], ["3", "4", "null"])
    counted = []
    for attempt, keys in enumerate(brought, 1):
        code = f"{APPENDS}for key in {keys}: print('{{\"id\": ' + key + '}}', file=file)\n{STATS}"
        asked = resume if attempt == 2 else "1"
        code += said if attempt == 2 else ""
        items = '{"key": "id"}'
        assert (
            fixture.python(code, CRAWL_ATTEMPT=str(attempt), CRAWL_RESUME=asked, CRAWL_ITEMS=items)
            == 0
        )
        counted.append(fixture.summary()["items"])
        own = (
            counted[-1]
            if attempt == 1 or (attempt == 2 and counts[1] == 3)
            else counted[-1] - counted[-2]
        )
        assert fixture.summary()["fields"]["items"] == own
        (fixture.files / "items.jsonl").unlink()
    assert counted == counts


def test_without_a_state_folder_it_starts_from_the_beginning(fixture: RunnerFixture) -> None:
    environment = {"CRAWL_ATTEMPT": "2", "CRAWL_RESUME": "1", "CRAWL_STATE_DIR": ""}
    assert fixture.python(f"{APPENDS}print('{{}}', file=file)", **environment) == 0
    assert (fixture.summary()["resumed"], fixture.summary()["resume_note"]) == (False, NO_STATE)


@pytest.mark.parametrize(
    ("own", "environment", "told"),
    [
        ({"items": 7}, {}, (7, 9, None)),  # its own counters take precedence, each separately
        ({"pages": 2, "bytes": 5}, {}, (3, 5, 2)),
        ({"items": 0, "bytes": 0}, {}, (0, 0, None)),
        ({"pages": 2}, {"CRAWL_ITEMS": "off"}, (None, None, 2)),
    ],
)
def test_a_counter_that_a_crawler_tells_is_never_replaced(
    fixture: RunnerFixture,
    own: dict[str, int],
    environment: dict[str, str],
    told: tuple[int | None, ...],
) -> None:
    code = f"{APPENDS}print('{{}}\\n' * 3, file=file, end='')\n{STATS}write({own})"
    assert fixture.python(code, **environment) == 0
    assert tuple(fixture.summary().get(name) for name in ("items", "bytes", "pages")) == told


def test_a_feed_without_end_costs_the_end_no_more_than_its_time(
    fixture: RunnerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "FEED_END_SECONDS", 0.0)
    monkeypatch.setattr(feeds, "READ_MAX", 100)
    (fixture.files / "items.jsonl").write_text("{}\n" * 1_000)
    terms = contract.Contract.read(fixture.environment({}, {}))
    assert Runner(terms, scrapy=False).run(["true"]) == 0
    assert (fixture.summary()["items"], fixture.summary()["bytes"]) == (33, 100)


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"pages": "3"}', '{"pages": -1}', '{"pages": true}', "x" * 100_000, ""]
)
def test_garbage_in_stats_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "stats").write_text(text)
    assert contract.valid_stats(contract.read(str(tmp_path / "stats")) or {}) == {}


def test_a_crawler_that_writes_garbage_has_no_stats(fixture: RunnerFixture) -> None:
    assert fixture.python(STATS + "write('{')") == 0
    assert not fixture.stats_file.exists()
    assert "pages" not in fixture.summary()


STOPPABLE = """
import os, signal, sys, time
count = []
def stop(number, frame):
    with open(os.environ["CRAWL_FILES_DIR"] + "/signals", "a") as file:
        file.write(str(number) + " ")
    count.append(1)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, stop)
open(os.environ["CRAWL_FILES_DIR"] + "/ready", "w").close()
while not count:
    time.sleep(0.01)
time.sleep(0.3)
raise SystemExit(CODE)
"""


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"), [(0, 11, "shutdown"), (11, 11, "shutdown"), (1, 13, None)]
)
def test_one_stop_only(
    fixture: RunnerFixture, code: int, exit_code: int, reason: str | None
) -> None:
    process = fixture.start_python(STOPPABLE.replace("CODE", str(code)))
    for _ in range(5):
        process.terminate()
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert fixture.finish(process) == exit_code
    assert (fixture.files / "signals").read_text() == "15 "
    assert fixture.summary().get("finish_reason") == reason


def test_the_stop_signal_is_the_crawlers_own(fixture: RunnerFixture) -> None:
    process = fixture.start_python(STOPPABLE.replace("CODE", "0"), CRAWL_STOP_SIGNAL="SIGINT")
    process.terminate()
    assert fixture.finish(process) == 11
    assert (fixture.files / "signals").read_text() == "2 "


def test_a_crawler_without_a_handler_dies_of_the_stop(fixture: RunnerFixture) -> None:
    process = fixture.start_python(READY + "import time; time.sleep(300)")
    process.terminate()
    assert fixture.finish(process) == 13
    assert fixture.summary()["signal"] == 15


def test_a_finish_that_was_quicker_than_the_stop(fixture: RunnerFixture) -> None:
    code = STATS + STOPPABLE.replace(
        "raise", "write({'finish_reason': 'finished'})\nraise"
    ).replace("CODE", "0")
    process = fixture.start_python(code)
    process.terminate()
    assert fixture.finish(process) == 0
    assert fixture.summary()["finish_reason"] == "finished"


def test_it_reaps_orphans(fixture: RunnerFixture) -> None:
    code = (
        "import os, time\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(0.1); os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "time.sleep(0.5)\n" + READY + "time.sleep(300)"
    )
    process = fixture.start_python(code)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 1)
    process.kill()


def test_a_program_that_is_not_there(fixture: RunnerFixture) -> None:
    assert fixture.run("command", "--", "no-such-program") == 4
    assert "cannot be executed" in fixture.summary()["message"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("CRAWL_ARGS", value) for value in ("{", "[]", '{"a": 1}')),
        *(("CRAWL_DEADLINE", value) for value in ("tomorrow", "2026-01-01T00:00:00")),
        *(("CRAWL_STOP_GRACE_S", value) for value in ("-1", "nan")),
        ("CRAWL_SETTINGS", "no"),
        ("CRAWL_STOP_SIGNAL", "SIGKILL"),
        ("CRAWL_MEMORY_LIMIT", "1Gi"),
        ("CRAWL_RUN_TIMEOUT_S", "soon"),
    ],
)
def test_a_broken_contract_is_named(variable: str, value: str) -> None:
    with pytest.raises(contract.BadConfiguration, match=f"^{variable}: "):
        contract.Contract.read({variable: value})


def test_a_broken_contract_is_bad_configuration(fixture: RunnerFixture) -> None:
    assert fixture.run("command", "--", "true", CRAWL_DEADLINE="tomorrow") == 4
    assert fixture.summary()["message"].startswith("CRAWL_DEADLINE: ")


@pytest.mark.parametrize("argv", [[], ["command"], ["scrapy"], ["nonsense"]])
def test_a_wrong_command_line_is_bad_configuration(fixture: RunnerFixture, argv: list[str]) -> None:
    assert fixture.run(*argv) == 4


def test_it_works_from_any_folder_and_as_a_module(fixture: RunnerFixture, tmp_path: Path) -> None:
    shutil.copytree(RUNNER, tmp_path / "mounted")
    env = fixture.environment({}, {})
    copied = [sys.executable, "-I", "-S", str(tmp_path / "mounted"), "command", "--", "true"]
    assert subprocess.run(copied, env=env, check=False, capture_output=True).returncode == 0
    module = [sys.executable, "-m", "crawler_lifecycle.runner", "command", "--", "true"]
    root = RUNNER.parents[1]
    assert (
        subprocess.run(module, env=env, check=False, capture_output=True, cwd=root).returncode == 0
    )


def test_it_needs_no_files_at_all() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(RUNNER), "command", "--", "true"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert b'"finish_reason": "finished"' in done.stdout


def test_progress_is_printed_every_now_and_then(
    fixture: RunnerFixture, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    terms = contract.Contract.read(fixture.environment({}, {}))
    monkeypatch.setattr("crawler_lifecycle.runner.main.PROGRESS_SECONDS", 0.0)
    runner = Runner(terms, scrapy=False)
    contract.write(f"{fixture.stats_file}.crawler", '{"pages": 1}')
    runner._tick()
    line = json.loads(capfd.readouterr().out)
    assert line["crawl_progress"]["pages"] == 1


def test_a_command_may_tell_statistics_of_its_own(fixture: RunnerFixture) -> None:
    code = """
import json, os
told = {"a": 1, "b": 0.5, "deep": {"a": 1}, "none": None, "n" * 121: 1, "nan": float("nan"), "many": 2**63}
open(os.environ["CRAWL_STATS_FILE"], "w").write(json.dumps({"scrapystats": told}))
"""
    assert fixture.python(code) == 0
    assert fixture.stats()["scrapystats"] == {"a": 1, "b": 0.5}
    assert fixture.lines("crawl_stats") == [{"a": 1, "b": 0.5}]
    assert fixture.python(code, CRAWL_LOG_FILE=str(fixture.files / "log")) == 0
    assert fixture.lines("crawl_stats") == [], "who keeps the log reads the file"


_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(2**63)
)


@settings(max_examples=examples(100))
@given(told=st.dictionaries(st.text(max_size=130), _values, max_size=80))
def test_statistics_that_were_taken_once_are_taken_again(told: dict[str, Any]) -> None:
    taken = reported.statistics(told)
    assert reported.statistics(taken) == taken
    assert len(json.dumps(taken)) <= reported.STATISTICS_MAX
    assert json.loads(json.dumps(taken, allow_nan=False)) == taken


_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@settings(max_examples=examples(12))
@given(
    args=st.dictionaries(
        _texts, _texts | st.sampled_from(["-x", "--", "a=b", "-s A=B", "\n"]), max_size=6
    )
)
def test_arguments_arrive_byte_by_byte(args: dict[str, str]) -> None:
    code = (
        "import os, sys; path = os.environ['CRAWL_FILES_DIR'] + '/seen'; "
        "open(path, 'wb').write(os.environb[b'CRAWL_ARGS'] + b'\\0' + os.fsencode('\\0'.join(sys.argv[1:])))"
    )
    values = list(args.values())
    with tempfile.TemporaryDirectory() as place:
        fixture = RunnerFixture(Path(place))
        command = ["command", "--", sys.executable, "-I", "-S", "-X", "utf8", "-c", code, *values]
        assert fixture.run(*command, args=args) == 0
        fixture.close()
        seen = (fixture.files / "seen").read_bytes().split(b"\0")
        given: Any = json.loads(seen[0])
        assert given == args
        assert seen[1:] == ([value.encode() for value in values] or [b""])


# --- the deadline, when nobody else keeps it ------------------------------------------------------

POLITE = READY.replace(
    "open(",
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); open(",
)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
LONG_AGO = "2020-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("code", "grace_s", "told"),
    [
        (POLITE + WAITS, "60", {"exit_code": 0}),
        ("import time\n" + READY + "time.sleep(300)", "60", {"signal": 15}),
        (DEAF + READY + "time.sleep(300)", "0.5", {"signal": 9}),
    ],
    ids=["in order", "by the signal", "stubborn"],
)
def test_long_after_its_deadline_it_is_stopped_as_timed_out(
    fixture: RunnerFixture, code: str, grace_s: str, told: dict[str, object]
) -> None:
    assert (
        fixture.python(
            code, patient_until="ready", CRAWL_DEADLINE=LONG_AGO, CRAWL_STOP_GRACE_S=grace_s
        )
        == 1
    )
    summary = fixture.summary()
    assert (summary["exit"], summary["finish_reason"]) == (1, "timed_out")
    assert (
        summary["message"] == "The runner stopped it: it was still running 60 s after its deadline"
    )
    assert summary.items() >= told.items()


def test_the_service_has_a_minute_to_keep_the_deadline_itself(fixture: RunnerFixture) -> None:
    just_now = datetime.now(UTC).isoformat()
    assert fixture.python(READY + "import time; time.sleep(1.5)", CRAWL_DEADLINE=just_now) == 0
    assert fixture.summary()["finish_reason"] == "finished"


def test_a_stop_that_came_before_the_backstop_stays_a_stop(fixture: RunnerFixture) -> None:
    """The backstop's time comes while the crawler is busy ending."""
    slow = """
import os, signal, sys, time
def stop(*_):
    open(os.environ["CRAWL_FILES_DIR"] + "/ending", "w").close()
    time.sleep(2.5)
    sys.exit(11)
signal.signal(signal.SIGTERM, stop)
"""
    process = fixture.start_python(
        slow + READY + WAITS, patient_until="ending", CRAWL_DEADLINE=LONG_AGO
    )
    process.send_signal(signal.SIGTERM)
    assert fixture.finish(process) == 11
    assert fixture.summary()["finish_reason"] == "shutdown"


def test_one_that_finishes_although_it_was_stopped_has_finished(fixture: RunnerFixture) -> None:
    late = STATS + "import signal, sys, time\n"
    late += "def end(*_):\n    write({'pages': 1, 'finish_reason': 'finished'})\n    sys.exit(0)\n"
    late += "signal.signal(signal.SIGTERM, end)\n" + READY + WAITS
    assert fixture.python(late, patient_until="ready", CRAWL_DEADLINE=LONG_AGO) == 0
    assert fixture.summary()["finish_reason"] == "finished"


TELL_DEADLINE = STATS + "write({'message': os.environ['CRAWL_DEADLINE']})"


def test_where_nobody_knew_when_it_starts_the_deadline_counts_from_its_start(
    fixture: RunnerFixture,
) -> None:
    before = datetime.now(UTC)
    assert fixture.python(TELL_DEADLINE, CRAWL_RUN_TIMEOUT_S="100") == 0
    told = datetime.fromisoformat(fixture.summary()["message"])
    assert before + timedelta(seconds=99.9) <= told <= datetime.now(UTC) + timedelta(seconds=100)
    given = "2090-01-01T00:00:00+00:00"
    assert fixture.python(TELL_DEADLINE, CRAWL_RUN_TIMEOUT_S="1", CRAWL_DEADLINE=given) == 0
    assert fixture.summary()["message"] == given


def test_a_command_starts_in_its_folder(fixture: RunnerFixture) -> None:
    tell = STATS + "write({'message': os.getcwd()})"
    argv = [
        "command",
        f"--project={fixture.state}",
        "--",
        sys.executable,
        "-I",
        "-c",
        tell,
        "--project=/nowhere",
    ]
    assert fixture.run(*argv) == 0
    assert fixture.summary()["message"] == str(fixture.state)
    argv[1] = f"--project={fixture.state / 'missing'}"
    assert fixture.run(*argv) == 4
    assert fixture.summary()["message"].startswith(
        f"--project: {fixture.state / 'missing'} cannot be used: "
    )


@pytest.mark.parametrize(
    ("said", "attempt", "resume", "told"),
    [
        ("", "2", "1", {"resume_note": UNKNOWN}),
        (
            'write({"pages": 1, "resumed": True})',
            "2",
            "1",
            {"resumed": True, "resume_note": WENT_ON},
        ),
        (
            'write({"pages": 1, "resumed": False})',
            "2",
            "1",
            {"resumed": False, "resume_note": ANEW},
        ),
        ('write({"pages": 1, "resumed": "yes"})', "2", "1", {"resume_note": UNKNOWN}),
        ("", "2", "0", {"resumed": False, "resume_note": NOT_ASKED}),
        ('write({"pages": 1, "resumed": False})', "1", "0", {}),
        ("", "many", "1", {}),
    ],
)
def test_it_tells_whether_a_later_attempt_went_on(
    fixture: RunnerFixture, said: str, attempt: str, resume: str, told: dict[str, Any]
) -> None:
    assert fixture.python(f"{STATS}\n{said}", CRAWL_ATTEMPT=attempt, CRAWL_RESUME=resume) == 0
    names = ("resumed", "resume_note")
    assert {name: value for name, value in fixture.summary().items() if name in names} == told
    if attempt == "2":
        assert fixture.progress()[0]["resume_note"], "told at the start"
