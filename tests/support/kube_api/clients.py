"""Clients for tests: with long timeouts for a machine that stalls, and short ones only where a
fault has to time out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api

if TYPE_CHECKING:
    from tests.support.kube_api.server import FakeApiServer

#: More seconds than a server in this process needs for any response.
PATIENT_S = 120.0


def patient(server: FakeApiServer, **more: Any) -> Api:
    """Return a client that only a fault makes give up."""
    options = {"kubeconfig": server.kubeconfig, "namespace": server.namespace, **more}
    if callable(options["kubeconfig"]):
        options["kubeconfig"] = options["kubeconfig"]()
    return Api(**{"connect_timeout_s": PATIENT_S, "read_timeout_s": PATIENT_S, **options})


@contextmanager
def impatient(api: Api, silence_s: float = 0.3) -> Iterator[None]:
    """Give calls that begin meanwhile this short timeout for silence.

    It applies to all of them, so only the faulty one may be made.
    """
    with _limits(api, silence_s, 1e6):
        yield


@contextmanager
def hurried(api: Api, whole_s: float = 0.5) -> Iterator[None]:
    """Give complete responses this number of seconds, with almost no limit for silence."""
    with _limits(api, PATIENT_S, whole_s):
        yield


@contextmanager
def _limits(api: Api, silence_s: float, whole_s: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api._wire, "_read_s", silence_s)
        patch.setattr(api._wire, "whole_s", whole_s)
        yield


def kept_are_dead(api: Api) -> bool:
    """Return whether the server's end of every connection that the client keeps has arrived here."""
    pools = api._wire._access.current()[0].pools.pools
    kept = [
        conn
        for key in pools.keys()  # noqa: SIM118
        for conn in list(pools[key].pool.queue)
        if conn is not None
    ]
    return not any(conn.is_connected for conn in kept)
