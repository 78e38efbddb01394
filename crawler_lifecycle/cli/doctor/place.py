"""Which component of ours we are, when the doctor runs in its pod: what only others use is out of its reach there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from crawler_lifecycle.domain.errors import LifecycleError

if TYPE_CHECKING:
    from crawler_lifecycle.settings import Settings

#: Checks of the process itself and of its place; every component has them.
OWN = frozenset({"environment", "versions", "limits", "disk", "cluster"})
_STORES = frozenset({"temporal", "database"})

#: Service account -> what else it uses. ``deploy/base/services/network.yaml`` lets it reach this and nothing else.
USES: Mapping[str, frozenset[str]] = {
    "worker-workflows": _STORES | {"catalogue", "events", "pushes"},
    "worker-cluster": _STORES | {"catalogue", "scheduler"},
    "worker-control": _STORES | {"catalogue"},
    "worker-export": _STORES | {"catalogue", "archive"},
    "worker-audit": _STORES | {"catalogue"},
    "worker-observer": _STORES | {"catalogue"},
    "gateway": _STORES | {"scheduler", "tokens"},
    "scheduler": frozenset({"catalogue"}),
}

#: Seconds for the one question. Without an answer everything is checked, and the cluster's line says why.
CONNECT_S, READ_S = 2.0, 3.0


def component(settings: Settings) -> str | None:
    """The component in whose pod we are, by the API server's word; ``None`` anywhere else, or when it does not say."""
    if settings.cluster.kind != "kubernetes" or not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    from crawler_lifecycle import compose
    from crawler_lifecycle.adapters.kubernetes import rights

    soon = settings.cluster.model_copy(update={"connect_s": CONNECT_S, "read_s": READ_S})
    try:
        me = rights.who_am_i(compose.build_api(settings.model_copy(update={"cluster": soon})))
    except LifecycleError:
        return None  # told by the check of the cluster
    name = rights.component(me)
    return name if name in USES else None
