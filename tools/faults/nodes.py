"""The truth about containers on Kubernetes, and what a plain Job reports about them.

It shares no code with the service. tests/soak/test_faults_oracle.py feeds it untrue statements
about both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.faults.oracle import Name

PLAIN, OURS = SIDES = "a plain Job", "ours"
LABEL = "crawler-lifecycle/"
#: The counters in a Job's status for its only pod. A naive reader takes the first of them that is
#: not 0.
WORDS = {"succeeded": "SUCCEEDED", "failed": "FAILED", "active": "RUNNING"}


def said(status: dict[str, Any]) -> str:
    """Return the status of a Job in our terms."""
    return next((word for name, word in WORDS.items() if status.get(name)), "PENDING")


@dataclass
class Box:
    """A container that has begun, on one of the sides. It ends at ``due`` unless something else
    ends it.
    """

    side: str
    name: Name
    pod: str
    due: float
    begun: float
    over: float = 0.0


class Nodes:
    """What the nodes know about their containers."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.cut, self.off = False, False
        """Whether nobody hears of the nodes now; whether that is because their machines are off."""

    def learn(self, pods: Sequence[dict[str, Any]], now: float) -> dict[str, dict[Name, str]]:
        """Read all existing pods, and return the state of each container on each side.

        A container that never began is not included.
        """
        for pod in pods:
            uid, states = pod["metadata"]["uid"], pod["status"].get("containerStatuses")
            state: dict[str, Any] = states[0]["state"] if states else {}
            if uid not in self.boxes and state.keys() & {"running", "terminated"}:
                self.boxes[uid] = _box(pod, now)
            if "terminated" in state:
                self.boxes[uid].over = self.boxes[uid].over or now
        there = {pod["metadata"]["uid"] for pod in pods}
        # On a node that cannot be reached, a pod that is no longer in the list may still execute.
        for uid, box in self.boxes.items():
            if self.off or (box.due < now if self.cut else uid not in there):
                box.over = box.over or now
        boxes = self.boxes.values()
        return {
            side: {b.name: "over" if b.over else "lives" for b in boxes if b.side == side}
            for side in SIDES
        }

    def living(self, side: str = "", seconds: float = 0.0) -> list[Box]:
        """Return the containers that will execute for at least this long."""
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
