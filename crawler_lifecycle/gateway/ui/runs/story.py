"""The story of a run: a sentence, and a picture of the recorded and the true statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.results import run_seconds
from crawler_lifecycle.gateway.runs.answers import RunDetail
from crawler_lifecycle.gateway.ui.parts.formats import number, span
from crawler_lifecycle.ports.polls import CorrectionRow
from crawler_lifecycle.ports.runs import TransitionRow

#: The width of the picture.
WIDTH = 960
#: The space for names.
NAMES = 70
#: The height of a row.
ROW = 16
#: The space for the two rows of a lane.
LANE = 62
#: The maximum number of lanes for tasks. Tasks whose status was wrong come first.
LANES_MAX = 6
#: The minimum width of a band.
LEAST = 2.0
#: The width of a letter in it.
LETTER = 7.5
#: The words for task statuses in a sentence.
_WORDS = {
    "RUNNING": "executing",
    "QUEUED": "waiting",
    "SUCCEEDED": "succeeded",
    "CANCELLED": "cancelled",
}


@dataclass(frozen=True, slots=True)
class Band:
    """A rectangle of the picture. Its words are shown in a tooltip, and also inside it if there is
    room.
    """

    x: float
    y: int
    width: float
    height: int
    kind: str
    title: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """The recorded and the true statuses of the run and its tasks, in two rows for each."""

    lanes: list[tuple[int, str]]
    bands: list[Band]
    height: int
    begin: datetime
    end: datetime
    wrong: int


def cause(run: RunDetail) -> str:
    """Return one sentence about why the run is in its state, or about what it is doing. Times in it
    are marked."""
    known = run.blocked or run.cause or run.waits
    return known or sentence(run)


def sentence(run: RunDetail) -> str:
    """Return a sentence about the run's present activity, or about its outcome."""
    counted = ", ".join(
        f"{number(n)} {_WORDS.get(status, status.lower())}" for status, n in run.tasks.items() if n
    )
    if run.status.terminal:
        seconds = run_seconds(run)
        after = "" if seconds is None else f" after {span(seconds)}"
        ended = "failed"
        if run.status == "COMPLETED":
            ended = "completed"
        elif run.ended_by == EndedBy.PERSON:
            ended = "was stopped"
        return f"It {ended}{after}."
    doing = {"INITIALIZING": "It is being started", "STOPPING": "It is being stopped"}.get(
        run.status, "It crawls"
    )
    return f"{doing}; its tasks: {counted or 'none yet'}."


def picture(
    run: RunDetail,
    transitions: Sequence[TransitionRow],
    corrections: Sequence[CorrectionRow],
    indexes: Mapping[int, int],
) -> Picture | None:
    """Draw the changes of one attempt, or return ``None`` if none of the run itself is recorded.

    ``indexes`` maps the id of each task to its number.
    """
    changes: dict[int | None, list[TransitionRow]] = {}
    for change in transitions:
        changes.setdefault(change.task_id, []).append(change)
    wrong: dict[int | None, list[CorrectionRow]] = {}
    for correction in corrections:
        wrong.setdefault(correction.task_id, []).append(correction)
    if None not in changes:
        return None
    tasks = sorted(
        (task for task in changes if task is not None), key=lambda task: task not in wrong
    )[:LANES_MAX]
    recorded = [change.committed_at for change in transitions]
    true = [change.cluster_time for change in transitions if change.cluster_time is not None]
    times = [*recorded, *true, *(correction.created_at for correction in corrections)]
    # Nothing is known about the time after the last poll.
    begin = min(times)
    end = max(*times, run.ended_at or run.verified_at or times[0])
    scale = (WIDTH - NAMES) / max((end - begin).total_seconds(), 1.0)
    lanes = []
    bands = list[Band]()

    def band(
        y: int,
        since: datetime,
        until: datetime,
        kind: str,
        words: str,
        text: str = "",
        height: int = ROW,
    ) -> None:
        x = min(NAMES + max((since - begin).total_seconds(), 0.0) * scale, WIDTH - LEAST)
        width = min(max((until - since).total_seconds() * scale, LEAST), WIDTH - x)
        title = (
            f"{words}, from {since:%H:%M:%S} to {until:%H:%M:%S} UTC, "
            f"{span((until - since).total_seconds())}"
        )
        bands.append(
            Band(
                round(x, 1),
                y,
                round(width, 1),
                height,
                kind,
                title,
                text if len(text) * LETTER < width else "",
            )
        )

    for n, key in enumerate([None, *tasks]):
        y = n * LANE + ROW + 4
        mine = changes[key]
        name = (
            "Run"
            if key is None
            else f"Task {indexes[key]}"
            if key in indexes
            else f"Task with id {key}"
        )
        lanes.append((y, name))
        for correction in wrong.get(key, ()):
            at = correction.created_at
            since = correction.truth_since or at - timedelta(milliseconds=correction.lag_ms or 0)
            words = f"{name} was recorded as {correction.believed}, but was {correction.truth}"
            band(y - 3, since, at, "wrong", words, height=2 * ROW + 8)
        recorded_at = [change.committed_at for change in mine]
        true_at = [change.cluster_time or change.committed_at for change in mine]
        for row, when in enumerate((recorded_at, true_at)):
            for change, since, until in zip(mine, when, [*when[1:], end], strict=True):
                status = change.to_status
                words = f"{name}: {('recorded as', 'truly')[row]} {status}"
                band(y + row * (ROW + 2), since, max(since, until), status.lower(), words, status)
    return Picture(lanes, bands, len(lanes) * LANE + 2 * ROW, begin, end, len(corrections))
