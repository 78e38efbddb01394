"""A reader that stalls, leaves or returns: no logging thread waits for it, and lost lines are
counted.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading

from crawler_lifecycle.observability.line_writer import LineWriter

#: Far more than a pipe and the queue can hold.
LINES = 4000

CHILD = """
import logging, sys
from crawler_lifecycle.observability import line_writer
line_writer.WAITING_MAX = 200_000
from crawler_lifecycle.observability import logs
from crawler_lifecycle.cli import exits
logs.configure("tests")
for n in range(%d):
    logging.getLogger("x").info("line %%d %%s", n, "x" * 200)
print("not held up", flush=True)
if sys.stdin.readline() == "at leisure\\n":
    # However slow the reader is: then there is room for one line more, and time to write it.
    logs.FLUSH_S = 150.0
    for handler in logging.getLogger().handlers:
        handler.flush()
logging.getLogger("x").info("the last line")
exits.leave(0)
"""


def child() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD % LINES],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_reader_that_stands_still_holds_nobody_up_and_what_is_lost_is_counted() -> None:
    process = child()
    assert process.stdout is not None
    assert process.stdout.readline() == "not held up\n"
    _, said = process.communicate("at leisure\n", timeout=150)
    assert process.returncode == 0
    lines = [json.loads(line) for line in said.splitlines()]
    numbers = [
        int(found[1]) for line in lines if (found := re.match(r"line (\d+) ", line["event"]))
    ]
    dropped = [
        int(found[1])
        for line in lines
        if (found := re.match(r"(\d+) log lines were dropped", line["event"]))
    ]
    assert numbers == sorted(set(numbers))
    assert dropped
    assert len(numbers) + sum(dropped) == LINES
    assert lines[-1]["event"] == "the last line"


def test_a_process_ends_although_nobody_reads_its_last_lines() -> None:
    process = child()
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "not held up\n"
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.wait(60) == 0
    process.communicate()


def test_a_reader_that_left_is_no_error() -> None:
    process = child()
    assert process.stderr is not None
    assert process.stdout is not None
    process.stderr.close()
    assert process.stdout.readline() == "not held up\n"
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


def test_lines_of_many_threads_stay_whole_and_in_order() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream, lambda count: f"{count} lost\n")

    def write(thread: int) -> None:
        for n in range(200):
            writer.write(f"{thread} {n}\n")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush(60)
    found = [tuple(map(int, line.split())) for line in stream.getvalue().splitlines()]
    assert len(found) == 1600
    for thread in range(8):
        assert [n for t, n in found if t == thread] == list(range(200))


def test_a_closed_stream_loses_lines_and_nothing_else() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream, lambda count: f"{count} lost\n")
    stream.close()
    writer.write("x\n")
    assert writer.flush(60)
