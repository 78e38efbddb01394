"""Clients for tests: patient with a machine that stands still, in a hurry only where a fault is to
be waited out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api

if TYPE_CHECKING:
    from tests.support.kube_api.server import FakeApiServer

#: Seconds that no answer of a server in this process needs.
PATIENT_S = 120.0


def patient(server: FakeApiServer, **more: Any) -> Api:
    """A client that nothing but a fault makes give up."""
    options = {"kubeconfig": server.kubeconfig, "namespace": server.namespace, **more}
    if callable(options["kubeconfig"]):
        options["kubeconfig"] = options["kubeconfig"]()
    return Api(**{"connect_timeout_s": PATIENT_S, "read_timeout_s": PATIENT_S, **options})


@contextmanager
def impatient(api: Api, silence_s: float = 0.3) -> Iterator[None]:
    """Calls that begin meanwhile give up after so much silence.

    Every one of them, so let it be the faulty one.
    """
    with _limits(api, silence_s, 1e6):
        yield


@contextmanager
def hurried(api: Api, whole_s: float = 0.5) -> Iterator[None]:
    """Whole answers have so many seconds, while silence has as good as no limit."""
    with _limits(api, PATIENT_S, whole_s):
        yield


@contextmanager
def _limits(api: Api, silence_s: float, whole_s: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api._wire, "_read_s", silence_s)
        patch.setattr(api._wire, "whole_s", whole_s)
        yield


def kept_are_dead(api: Api) -> bool:
    """Whether the end of every connection that the client keeps has arrived here."""
    pools = api._wire._access.current()[0].pools.pools
    kept = [
        conn
        for key in pools.keys()  # noqa: SIM118
        for conn in list(pools[key].pool.queue)
        if conn is not None
    ]
    return not any(conn.is_connected for conn in kept)
