"""What is true of containers on Kubernetes, and what a plain Job says of them.

It shares no code with the service.

tests/soak/test_faults_oracle.py tells lies about both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.faults.oracle import Name

PLAIN, OURS = SIDES = "a plain Job", "ours"
LABEL = "crawler-lifecycle/"
#: What a Job's status has of its only pod; the first of these that is not 0 is what a naive reader
#: takes.
WORDS = {"succeeded": "SUCCEEDED", "failed": "FAILED", "active": "RUNNING"}


def said(status: dict[str, Any]) -> str:
    """What a Job's status says, in our words."""
    return next((word for name, word in WORDS.items() if status.get(name)), "PENDING")


@dataclass
class Box:
    """A container that has begun, on one of the sides. It ends at ``due`` if nobody touches it."""

    side: str
    name: Name
    pod: str
    due: float
    begun: float
    over: float = 0.0


class Nodes:
    """What the nodes know of their containers."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.cut, self.off = False, False
        """Whether nobody hears of the nodes now; whether that is because their machines are off."""

    def learn(self, pods: Sequence[dict[str, Any]], now: float) -> dict[str, dict[Name, str]]:
        """Told all pods that there are: what each container is now, on each side.

        One that never began is not there.
        """
        for pod in pods:
            uid, states = pod["metadata"]["uid"], pod["status"].get("containerStatuses")
            state: dict[str, Any] = states[0]["state"] if states else {}
            if uid not in self.boxes and state.keys() & {"running", "terminated"}:
                self.boxes[uid] = _box(pod, now)
            if "terminated" in state:
                self.boxes[uid].over = self.boxes[uid].over or now
        there = {pod["metadata"]["uid"] for pod in pods}
        # On a node that nobody hears, a pod that left the list may still execute.
        for uid, box in self.boxes.items():
            if self.off or (box.due < now if self.cut else uid not in there):
                box.over = box.over or now
        boxes = self.boxes.values()
        return {
            side: {b.name: "over" if b.over else "lives" for b in boxes if b.side == side}
            for side in SIDES
        }

    def living(self, side: str = "", seconds: float = 0.0) -> list[Box]:
        """Those that execute for so long at the least."""
        until = time.time() + seconds
        return [
            box
            for box in list(self.boxes.values())
            if side in box.side and not box.over and box.due > until
        ]


def _box(pod: dict[str, Any], now: float) -> Box:
    labels, env = pod["metadata"]["labels"], pod["spec"]["containers"][0]["env"]
    seconds = next(float(one["value"].rstrip("s")) for one in env if one["name"] == "KWOK_RUN_FOR")
    ours = [labels.get(LABEL + name) for name in ("run", "task", "attempt")]
    run, index, attempt = (labels["plain"], 0, 1) if "plain" in labels else ours
    name, side = (int(run), int(index), int(attempt)), PLAIN if "plain" in labels else OURS
    return Box(side, name, pod["metadata"]["name"], now + seconds, now)
