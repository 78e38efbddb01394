"""Numbers and records of runs on their Jobs, for a database that lost its rows."""

from __future__ import annotations

import json
from typing import Any

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Named
from crawler_lifecycle.domain.names import run_number
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import TaskRecord

from .listing import key_of
from .namespace_identity import read_identity


def task_records(api: Api, run: RunRef) -> list[TaskRecord]:
    """The latest attempt of each index of this very run, settled ones too. Raises ``ApiError``."""
    selector = f"{labels.of_run(run.run_id, settled=None)},{labels.RUN_UID}={run.uid}"
    latest: dict[int, tuple[int, str]] = {}
    for one in api.listing(api.jobs_path(), Named, labels=selector).items:
        key = key_of(one.metadata)
        if key is not None:
            latest[key[1]] = max(latest.get(key[1], (0, "")), (key[2], one.metadata.name))
    place = str(read_identity(api)) if latest else None
    found = (_record(api, name, place) for _, (_, name) in sorted(latest.items()))
    return [one for one in found if one is not None]


class KubernetesRuns:
    """Implements ``KnowsRuns`` by the labels of our Jobs and pods."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def highest_run(self, above: int = 0) -> int:
        """The highest number of a run on any of them, settled ones too. Raises ``ApiError``."""
        for path in (self._api.jobs_path(), self._api.pods_path()):
            above = max([above, *self._api.listing(path, Named, labels=labels.ours(settled=None), keep=_run).items])
        return above


def _run(one: Named) -> int:
    return run_number(one.metadata.labels.get(labels.RUN, ""))


def _record(api: Api, name: str, place: str | None) -> TaskRecord | None:
    """What a Job says; ``None`` for one that is gone by now, or that a stranger made."""
    try:
        job = json.loads(api.get(api.jobs_path(name)))
    except NotFound:
        return None
    try:
        [crawler] = [c for c in job["spec"]["template"]["spec"]["containers"] if c["name"] == labels.CONTAINER]
        contract = {one["name"]: one.get("value", "") for one in crawler["env"]}
        return TaskRecord(
            index=int(contract["CRAWL_TASK_INDEX"]),
            attempt=int(contract["CRAWL_ATTEMPT"]),
            task_id=int(contract["CRAWL_TASK_ID"]),
            crawler=contract["CRAWL_CRAWLER"],
            args=_plain(contract["CRAWL_ARGS"]),
            settings=_plain(contract["CRAWL_SETTINGS"]),
            name=name,
            uid=job["metadata"]["uid"],
            place=place,
            record=json.loads(job["metadata"].get("annotations", {}).get(labels.RECORD, "{}")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _plain(value: str) -> Any:
    """A variable's JSON, which was ``escaped`` for the kubelet."""
    return json.loads(value.replace("$$", "$"))
