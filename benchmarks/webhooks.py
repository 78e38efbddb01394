"""Webhooks: 1,000 waiting events sent to one healthy receiver, and the lateness of one event."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from temporalio.testing import ActivityEnvironment

from benchmarks.sizes import size
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.features.webhooks.activities import WebhookActivities
from crawler_lifecycle.features.webhooks.adapters import HttpWebhooks
from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.features.webhooks.ports import WebhookOrder
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import Store, open_store
from tests.support.faulty_http import serving
from tests.support.receiver import ENVIRONMENT, Receiver

EVENTS = size(1000, 20)
RUNS = size(50, 2)
ONE_BY_ONE = size(40, 3)


async def main() -> None:
    """Print every figure: of many runs, of one run (whose events come one after the other), and of
    single events.
    """
    for runs in (RUNS, 1):
        print(
            f"{EVENTS} waiting events of {runs} runs: "
            f"{await asyncio.to_thread(_waiting, runs):.0f} a second"
        )
    late = sorted(await asyncio.to_thread(_one_by_one))
    print(
        f"an event, from its commit to the receiver: p50 {statistics.median(late):.2f} s, most "
        f"{late[-1]:.2f} s"
    )


def _waiting(count: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        store, fences = _filled(Path(name), count)
        receiver = Receiver()
        with serving(receiver):
            _hook(store, receiver)
            _tell(store, fences, EVENTS)
            following = _follow(store, shift_s=3600)
            began = time.perf_counter()
            while len(receiver.taken) < EVENTS:
                time.sleep(0.01)
            took = time.perf_counter() - began
            _end(store, following)
    return EVENTS / took


def _one_by_one() -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        store, fences = _filled(Path(name), 1)
        receiver = Receiver()
        with serving(receiver):
            _hook(store, receiver)
            following = _follow(store, shift_s=3600)
            late = []
            for number in range(ONE_BY_ONE):
                time.sleep(0.037)
                event = store.events.append_event(fences[0], "run.changed", f"one/{number}", {})
                while event.seq not in receiver.seqs():
                    time.sleep(0.002)
                late.append((datetime.now(UTC) - event.created_at).total_seconds())
            _end(store, following)
    return late


def _filled(folder: Path, count: int) -> tuple[Store, list[Fence]]:
    url = f"sqlite:///{folder / 'state.db'}"
    upgrade(url)
    store, fences = open_store(url), []
    for number in range(count):
        owner = Owner(f"crawl/books/r{number}", f"chain-{number}")
        made = store.initiation.create_run(RunRequest(crawler="books"), f"r{number}", owner)
        fences.append(Fence(made.run_id, made.attempt, owner.first_run_id, made.run_uid))
    return store, fences


def _hook(store: Store, receiver: Receiver) -> None:
    store.webhooks.put("benchmark", WebhookSpec(receiver.url, ["env:CRAWL_HOOK"]).document(), None)


def _tell(store: Store, fences: list[Fence], count: int) -> None:
    for number in range(count):
        store.events.append_event(
            fences[number % len(fences)], "run.changed", f"many/{number}", {"n": number}
        )


def _follow(store: Store, shift_s: float) -> threading.Thread:
    outside = HttpWebhooks(WebhookRules(loopback=True), environment=ENVIRONMENT)
    acts = WebhookActivities(store.webhooks, outside, shift_s=shift_s)
    order = WebhookOrder("benchmark")
    thread = threading.Thread(target=lambda: ActivityEnvironment().run(acts.follow_webhook, order))
    thread.start()
    return thread


def _end(store: Store, following: threading.Thread) -> None:
    """Its next turn finds that it was deleted."""
    store.webhooks.delete("benchmark")
    following.join()
    store.close()
