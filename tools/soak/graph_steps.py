"""The functions that the steps of random graphs call: user code that is copied to the module folder
of a storm.

The behaviour of a step follows from its graph and its path, and its result also from its attempt,
so that a judge who only has these can determine the right result. Each execution writes to a ledger
next to the module, outside the service: its ``begin`` with its arguments, and its ``end`` just
before it returns.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from crawler_lifecycle.graphs import Cancel, Job, Record, Snooze, Workflow, current_job, worker
from crawler_lifecycle.managers import GeneratorCrawlManager

LEDGER = Path(__file__).with_name("ledger.jsonl")
ALWAYS = 1_000_000
LARGE = 1024 * 1024
#: The maximum number of parallel crawls of a manager.
WINDOW = 2


# --- what follows from the name of a step ---------------------------------------------------------


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of one step when it is called."""

    seconds: float
    failures: int
    """The number of its first attempts that fail."""
    listens: bool
    """Whether it ends when its step is cancelled."""
    snoozes: bool
    """A worker: its first attempt asks to be tried later."""
    cancels: bool
    """A worker: it cancels its step."""


def behaviour(graph: str, path: str) -> Behaviour:
    """Return the behaviour of this step."""
    dice = random.Random(f"{graph}/{path}")
    seconds = dice.choice([0.0] * 4 + [dice.uniform(0, 0.5)] * 3 + [dice.uniform(0.5, 4)] * 2)
    failures = dice.choices([0, 1, 2, ALWAYS], [190, 6, 3, 1])[0]
    return Behaviour(
        seconds, failures, dice.random() < 0.7, dice.random() < 0.1, dice.random() < 0.04
    )


def value_of(graph: str, path: str, attempt: int) -> object:
    """Return the result of this attempt of the step. One result in a hundred is large."""
    dice = random.Random(f"{graph}/{path}/{attempt}")
    if dice.random() < 0.01:
        size = LARGE + dice.randrange(LARGE)
        return (
            dice.randbytes(size)
            if dice.random() < 0.5
            else {"pages": ["ü" * 100] * (size // 100), "n": attempt}
        )
    return some_value(dice)


def some_value(dice: random.Random, depth: int = 0) -> object:
    """Return any value that can be transmitted."""
    kinds: list[Callable[[], object]] = [
        lambda: None,
        lambda: dice.random() < 0.5,
        lambda: dice.getrandbits(dice.choice([8, 64, 2000])) - 100,
        lambda: dice.uniform(-1e300, 1e300),
        lambda: "".join(dice.choices("aZ0 äß日\n\0\\\"'/{}$😀", k=dice.randrange(30))),
        lambda: dice.randbytes(dice.choice([0, 20, 3000])),
        lambda: datetime(2000, 1, 1) + timedelta(microseconds=dice.getrandbits(50)),
        lambda: datetime(2000, 1, 1, tzinfo=dice.choice([UTC, timezone(timedelta(hours=5.5))])),
        lambda: date(1, 1, 1) + timedelta(days=dice.randrange(3_000_000)),
        lambda: clock_time(dice.randrange(24), dice.randrange(60), 1, dice.randrange(10**6)),
        lambda: timedelta(days=dice.randrange(-5, 5), microseconds=dice.getrandbits(30)),
        lambda: Decimal(dice.getrandbits(200)).scaleb(-dice.randrange(60)),
        lambda: UUID(int=dice.getrandbits(128)),
    ]
    if depth < 3:
        kinds += [
            lambda: [some_value(dice, depth + 1) for _ in range(dice.randrange(5))],
            lambda: {f"k{n}": some_value(dice, depth + 1) for n in range(dice.randrange(5))},
            lambda: {dice.choice(["$date", "$bytes", "$$", "$"]): some_value(dice, depth + 1)},
        ]
    return dice.choice(kinds)()


def grafted(graph: str, path: str) -> Workflow | None:
    """Return the steps that this step attaches below itself."""
    dice = random.Random(f"{graph}/{path}/graft")
    workflow = Workflow()
    for n in range(dice.randrange(6)):
        deps = [f"g{m}" for m in range(n) if dice.random() < 0.4]
        what = dice.choice(["cascade", "worker", "many", "graft"])
        if what == "many":
            workflow.add_cascade(f"g{n}", (list(range(dice.randrange(4))), item), deps)
        elif what == "graft" and path.count("/") < 3:
            workflow.add_graft(f"g{n}", graft, deps)
        elif what == "worker":
            workflow.add(f"g{n}", Worker.new({"n": n}), deps, max_attempts=3, backoff_s=0.2)  # type: ignore[attr-defined]
        else:
            workflow.add_cascade(
                f"g{n}", cascade, deps, ignore_discarded=True, ignore_cancelled=True
            )
    return workflow if len(workflow) else None


def digest(value: object) -> str:
    """Return a text that is the same for the same value of the same types, computed without the
    service.
    """
    return hashlib.sha256(_text(value).encode()).hexdigest()[:16]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        # How a crawl ended. Its journal contains more.
        if value.keys() >= {"run_id", "outcome", "archive"}:
            return f"run {value['run_id']}"
        return "{" + ",".join(f"{key!r}:{_text(one)}" for key, one in sorted(value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, bytes):
        return f"bytes {hashlib.sha256(value).hexdigest()}"
    return f"{type(value).__name__} {value!r}"


# --- what is called -------------------------------------------------------------------------------


def plain(**args: object) -> object:
    return _execute(args)


def cascade(context: dict[str, Any]) -> object:
    return _execute(context)


def item(one: object, context: dict[str, Any]) -> object:
    return _execute({"item": one, **context})


def graft(context: dict[str, Any]) -> Workflow | None:
    job = current_job()
    _execute(context, gives=False)
    return grafted(job.graph, job.path)


@worker()
class Worker:
    def process(self, job: Job) -> object:
        does = behaviour(job.graph, job.path)
        if does.snoozes and job.attempt == 1:
            _begin(job, job.args)
            _end(job, "snooze")
            return Snooze(0.3)
        if does.cancels:
            _begin(job, job.args)
            _end(job, "cancel")
            return Cancel("it was planned")
        found = _execute(job.args)
        return None if found is None else Record(found)


class Stream(GeneratorCrawlManager):
    """A manager of short crawls, which fail only if they are killed."""

    name, spider, loop_mode, default_max_jobs, MAX_RETRIES = "stream", "soak", 5, WINDOW, 9

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        self.argparser.add_argument("--jobs", type=int, required=True)
        self.argparser.add_argument("--seconds", type=float, required=True)

    def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
        for number in range(self.args.jobs):
            yield {"spider_args": {"number": number, "seconds": self.args.seconds}}


def _execute(given: Mapping[str, Any], *, gives: bool = True) -> object:
    job = current_job()
    does = behaviour(job.graph, job.path)
    _begin(job, given)
    until = time.monotonic() + does.seconds
    while (left := until - time.monotonic()) > 0:
        if does.listens and job.cancelled():
            _end(job, "asked")
            raise RuntimeError("it was asked to end")
        time.sleep(min(left, 0.1))
    if job.attempt <= does.failures:
        _end(job, "raise")
        raise RuntimeError(f"attempt {job.attempt} fails as planned")
    found = value_of(job.graph, job.path, job.attempt) if gives else None
    _end(job, "value", gave=digest(found))
    return found


def _begin(job: Job, given: Mapping[str, Any]) -> None:
    _write("begin", job, key=job.key, given={name: digest(one) for name, one in given.items()})


def _end(job: Job, how: str, **more: str) -> None:
    _write("end", job, how=how, **more)


def _write(what: str, job: Job, **more: Any) -> None:
    own = {
        "graph": job.graph,
        "path": job.path,
        "attempt": job.attempt,
        "pid": os.getpid(),
        "at": time.time(),
    }
    line = json.dumps({"what": what, **own, **more}) + "\n"
    file = os.open(LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
