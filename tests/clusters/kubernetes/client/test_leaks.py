"""After two hundred faults, there are as many threads and sockets as before."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.kubernetes.client import deadlines
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Job
from tests.clusters.local.local_fixture import wait_until
from tests.support.kube_api import (
    Answer,
    Cut,
    FakeApiServer,
    Fault,
    Garbage,
    LostAnswer,
    Reset,
    StreamEnds,
    StreamError,
    Truncated,
    throttled,
)
from tests.support.kube_api.clients import patient

FAULTS: list[Fault] = [
    *(
        Cut(10),
        Cut(10, chunked=True),
        Truncated(3),
        LostAnswer(),
        Reset(),
        Answer(500),
        Answer(403),
        throttled(),
    ),
    *(Garbage(b"<html>"), Answer(410)),
]
STREAMS: list[Fault] = [
    *(
        StreamEnds(),
        StreamEnds(broken=True),
        StreamEnds(within_event=True, broken=True),
        StreamError(),
        Answer(500),
    ),
]


def _sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def _settled(server: FakeApiServer) -> None:
    """Wait until the server has noticed the end of all connections except the one that is kept."""
    wait_until(lambda: len(server._sockets) <= 1)


def _threads_end() -> bool:
    """Return whether the threads that supervise calls have ended, a moment later."""
    mine = [thread for thread in threading.enumerate() if thread.name == "kubernetes-calls"]
    for thread in mine:
        thread.join(60)  # far above the idle time of connections that earlier tests left
    return not any(thread.is_alive() for thread in mine)


def _go_wrong(api: Api, server: FakeApiServer, rounds: int) -> int:
    wrong = 0
    for number in range(rounds):
        fault = FAULTS[number % len(FAULTS)]
        server.faults.add("GET", r"/jobs\?.*limit", fault, times=3)
        try:
            api.listing(api.jobs_path(), Job)
        except ApiError:
            wrong += 1
        server.faults.clear()
        server.faults.add("GET", "watch=true", STREAMS[number % len(STREAMS)])
        try:
            with api.watch(api.jobs_path(), resource_version="100", timeout_s=60) as stream:
                list(stream)
        except ApiError:
            wrong += 1
        server.faults.clear()
    return wrong


def test_no_fault_leaves_a_socket_or_a_thread(tmp_path: Path) -> None:
    with FakeApiServer(tmp_path) as server:
        api = patient(server)
        _go_wrong(api, server, 10)  # make everything now that is made only once
        _settled(server)
        before = _sockets()
        assert _go_wrong(api, server, 100) == 100 + 80  # the end of a stream is no error
        assert api.listing(api.jobs_path(), Job).items == []
        _settled(server)
        # One connection is kept: our side of it and, in the same process, the server's.
        wait_until(lambda: _sockets() <= before + 2)
        api.close()
        assert _threads_end()


def test_the_thread_is_there_only_while_calls_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_IDLE_S", 0.1)
    with FakeApiServer(tmp_path) as server:
        api = patient(server)
        api.listing(api.jobs_path(), Job)
        assert _threads_end()
        assert api.listing(api.jobs_path(), Job).items == []
        api.close()


def test_many_threads_share_one_client(tmp_path: Path) -> None:
    with FakeApiServer(tmp_path) as server:
        api = patient(server)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: api.listing(api.jobs_path(), Job), range(160)))
        assert len(server.requests) == 160
        assert len(server._sockets) <= 8
        api.close()
