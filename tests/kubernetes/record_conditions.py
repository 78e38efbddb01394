"""``python -m tests.kubernetes.record_conditions [NAME …]``: play scenes on a real cluster, record
what it shows.

Writes ``recorded/<name>.json``: the objects as the API returned them, without ``managedFields``,
the Job's template and the crawler's program; names, uids, addresses and times are put in the place
of the random ones, so that recording again changes nothing unless the cluster says something else.
What is expected of a condition is written into the file by hand and kept. A new scene is recorded
with ``expected`` null, which fails until somebody has judged it. Needs root (a real kubelet).
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.provoking import NAME, Scene
from tests.kubernetes.scenes import ALONE, LATER_S, PASSING, SCENES, TASK, Play

RECORDED = Path(__file__).parent / "recorded"
EPOCH = datetime(2026, 1, 5, 12, 0, 0, tzinfo=UTC)
AT_ONCE = 6

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)\Z")
_TEXTS = (
    (re.compile(rf"\b{NAME}-[a-z0-9]{{5}}\b"), f"{NAME}-xxxxx"),
    (re.compile(r"\bclk[a-z0-9]*-(node|kwok)\d+\b"), "node-1"),
    (re.compile(r"(?<![a-z0-9])crawls-\d+(?![a-z0-9])"), "crawls"),
    (re.compile(r"\b10(\.\d+){3}\b"), "10.0.0.1"),
    (re.compile(r"(containerd|kwok)://[0-9a-f-]+"), r"\1://0"),
    (re.compile(r"sha256:[0-9a-f]{64}"), "sha256:" + "0" * 64),
    (re.compile(r"\b[0-9a-f]{64}\b"), "0" * 64),
    (re.compile(r"used: \d+, capacity: \d+"), "used: 100, capacity: 2000"),
    (re.compile(r"127\.0\.0\.1:(?!9\b)\d+"), "127.0.0.1:40000"),
)
#: What differs between recordings, and the two largest parts, which nobody reads.
_DROPPED: tuple[str, ...] = (
    "managedFields",
    "resourceVersion",
    "generation",
    "observedGeneration",
    "template",
    "args",
)
#: What a node eventually reports about a pod and its containers.
_FLEETING = (*_DROPPED, "resources", "user", "volumeMounts", "imageID", "started")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kubernetes.record_conditions", description=__doc__
    )
    parser.add_argument("names", nargs="*", help="scenes to play (all)")
    wanted = parser.parse_args(arguments).names or [*SCENES, *ALONE]
    unknown = [name for name in wanted if name not in SCENES and name not in ALONE]
    if unknown:
        parser.error(f"no scene {', '.join(unknown)}")
    with Cluster(kwok=1, nodes=1) as cluster:
        together = [(name, SCENES[name]) for name in wanted if name in SCENES]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            failed = list(pool.map(lambda one: _record(cluster, *one), together))
        failed += [_record(cluster, name, ALONE[name]) for name in wanted if name in ALONE]
    for words in filter(None, failed):
        print(words, file=sys.stderr)
    return 1 if any(failed) else 0


def _record(cluster: Cluster, name: str, play: Play) -> str | None:
    """Play one scene and write its file. Returns the errors, in words."""
    try:
        write(name, played(cluster, name, play))
        print(name, flush=True)
    except Exception as error:  # the others are still recorded
        return f"{name}: {type(error).__name__}: {error}"
    return None


def played(cluster: Cluster, name: str, play: Play) -> dict[str, Any]:
    """Return what the cluster shows after the scene: a recording without row and expectation."""
    scene = Scene(cluster, cluster.namespace("crawls"))
    try:
        play(scene)
        objects = scene.objects() if name in PASSING else _settled(scene)
        now = datetime.now(UTC)
        task = {**TASK.get(name, {}), **({"uid": scene.first_uid} if scene.first_uid else {})}
        stop = (
            {"requested_at": _stamp(scene.stop_at), "requested_by": "ada"}
            if scene.stop_at
            else None
        )
        found = normal({"objects": objects, "task": task, "stop": stop, "now": _stamp(now)})
        found["now"] = _stamp(_read(found["now"]) + timedelta(seconds=LATER_S.get(name, 0)))
        return found
    finally:
        scene.finish()


def _settled(scene: Scene, seconds: float = 30) -> dict[str, Any]:
    """Return the objects when nobody changes them any more; controllers lag behind the pods."""
    end = time.monotonic() + seconds
    objects = scene.objects()
    while time.monotonic() < end:
        time.sleep(2)
        before, objects = objects, scene.objects()
        if _shape(before) == _shape(objects):
            break
    return objects


def _shape(objects: dict[str, Any]) -> str:
    copied = json.loads(json.dumps(objects))
    return _timeless(normal({"objects": copied, "task": {}, "stop": None, "now": _stamp(EPOCH)}))


def write(name: str, found: dict[str, Any]) -> None:
    """Write the recording unless it contains nothing new."""
    path = RECORDED / f"{name}.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if known and _timeless(known) == _timeless({**known, **found}):
        return
    head = {"name": name, "row": known.get("row"), "source": "recorded"}
    body = {**head, **found, "expected": known.get("expected")}
    path.write_text(json.dumps(body, indent=1, sort_keys=False, ensure_ascii=False) + "\n")


# --- putting the random away


def normal(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without what differs between recordings."""
    objects = document["objects"]
    objects["pods"].sort(key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))
    pods = {p["metadata"]["name"]: f"{NAME}-pod{n}" for n, p in enumerate(objects["pods"], 1)}
    objects["events"] = _events(objects["events"])
    uids = _uids(document)
    text = json.dumps(_without(document))
    for random, plain in itertools.chain(pods.items(), uids.items()):
        text = text.replace(random, plain)
    found = json.loads(text)
    places = _places(found)
    cleaned: dict[str, Any] = _mapped(found, places)
    return cleaned


def _events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one event of each kind and text, the newest, in a stable order."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for event in sorted(events, key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or ""):
        words = re.sub(rf"{NAME}-[a-z0-9]{{5}}", "", event.get("message", ""))
        newest[event["reason"], words] = event
    found = [newest[key] for key in sorted(newest)]
    for number, event in enumerate(found, 1):
        event["metadata"]["name"] = f"event-{number:02}"
        event["count"] = 1
    return found


def _uids(document: dict[str, Any]) -> dict[str, str]:
    objects = document["objects"]
    holders = [objects["job"], *objects["pods"], *objects["events"]]
    found = [document["task"].get("uid")] + [h["metadata"]["uid"] for h in holders if h]
    found += [o["uid"] for h in holders if h for o in h["metadata"].get("ownerReferences", [])]
    found += [event["involvedObject"].get("uid") for event in objects["events"]]
    return {
        uid: f"00000000-0000-4000-8000-{number:012}"
        for number, uid in enumerate(dict.fromkeys(filter(None, found)), 1)
    }


def _without(value: Any, dropped: tuple[str, ...] = _DROPPED) -> Any:
    if isinstance(value, dict):
        inner = {
            k: _FLEETING if k == "status" or k.endswith("ontainerStatuses") else dropped
            for k in value
        }
        return {k: _without(v, inner[k]) for k, v in value.items() if k not in dropped}
    return [_without(v, dropped) for v in value] if isinstance(value, list) else value


def _places(value: Any) -> dict[datetime, datetime]:
    """Return a replacement for every time in the document: the order is kept, with a second between
    two.
    """
    moments = sorted(m for m in {_instant(*told) for told in _times(value)} if m.year > 2000)
    return {moment: EPOCH + timedelta(seconds=place) for place, moment in enumerate(moments)}


def _times(value: Any, grace: int = 0) -> Iterable[tuple[str, int]]:
    if isinstance(value, dict):
        wait = value.get("deletionGracePeriodSeconds") or 0
        for key, inner in value.items():
            yield from _times(inner, wait if key == "deletionTimestamp" else 0)
    elif isinstance(value, list):
        for inner in value:
            yield from _times(inner)
    elif isinstance(value, str) and _TIME.match(value):
        yield value, grace


def _instant(text: str, grace: int) -> datetime:
    """Return the time of a deletion, which is later by the grace period.

    Fractions are dropped, because most timestamps have none.
    """
    return _read(text).replace(microsecond=0) - timedelta(seconds=grace)


def _mapped(value: Any, places: dict[datetime, datetime], grace: int = 0) -> Any:
    if isinstance(value, dict):
        wait = value.get("deletionGracePeriodSeconds") or 0
        return {
            k: _mapped(v, places, wait if k == "deletionTimestamp" else 0) for k, v in value.items()
        }
    if isinstance(value, list):
        return [_mapped(v, places) for v in value]
    if not isinstance(value, str):
        return value
    if _TIME.match(value):
        moment = _instant(value, grace)
        return value if moment.year < 2000 else _stamp(places[moment] + timedelta(seconds=grace))
    for pattern, plain in _TEXTS:
        value = pattern.sub(plain, value)
    return value


def _timeless(document: dict[str, Any]) -> str:
    """Return the document without its times, which may be in the same second or in two."""
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "", json.dumps(document, sort_keys=True))


def _read(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _stamp(moment: datetime | None) -> str:
    assert moment is not None
    return moment.astimezone(UTC).replace(microsecond=0).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
