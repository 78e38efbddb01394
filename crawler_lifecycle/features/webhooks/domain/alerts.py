"""Alerts: one event as a short message for people, and its formats for Slack, Teams and Discord.

Text from crawlers is quoted and never interpreted: it mentions nobody, has no formatting, and fits
into each service's limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any
from urllib.parse import quote

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.last_words import printable

#: The maximum number of characters in a title.
TITLE_MAX = 150
#: The maximum number of characters in a cause.
CAUSE_MAX = 1500
#: The maximum number of characters in the line with the counts.
LINE_MAX = 1000
#: The maximum number of characters of a string in a message, including the marks that quote it.
#: Slack accepts 3,000.
SLACK_MAX = 2800
#: Discord accepts 4,096 in a description.
DISCORD_MAX = 4000
#: Discord accepts 256 in a title.
DISCORD_TITLE_MAX = 250
#: Maps the type of an event to its words in a title. Other events are described by their status.
_WORDS: Mapping[str, str] = {
    "run.started": "started",
    "run.stopped": "stopped",
    "run.blocked": "its workflow cannot continue",
    "run.stale": "its status is unknown because its poll is overdue",
    "webhook.test": "this is a test",
    "correction.made": "a recorded status was wrong",
    "webhook.paused": "paused, so it delivers nothing",
    "schedule.missed": "nothing started at a due time",
    "schedule.skipped": "nothing started at a due time",
    "webhook.missed": "events were removed before they were delivered",
    "run.empty": "it found nothing",
    "run.dropped": "it found less than usual",
    "canary.accepted": "the new version is the current one",
    "canary.rejected": "the new version was rejected",
}
#: The words for an event about an incident, which follow the description of the problem.
_OF_INCIDENT = {
    "incident.opened": "",
    "incident.grew": ", and increasingly often",
    "incident.closed": ": it is over",
}
_CAUSES = ("cause", "error", "why", "reason", "poll_error", "waiting")
_COUNTS = ("tasks", "jobs", "steps", "pages", "items", "errors", "count", "events")
#: Statuses and endings of types that mean a problem.
_BAD = ("FAILED", "discarded")
_TROUBLES = (".stale", ".blocked", ".made", ".missed", ".paused", ".rejected")
#: Maps the characters that Slack and Discord read as marks to their quoted form. Slack has no
#: quoted form of a backtick.
_SLACK = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "'"}
_DISCORD = {letter: f"\\{letter}" for letter in "\\*_~`|<>#[]()-:@"}


@dataclass(frozen=True, slots=True)
class Alert:
    """An event as a message for people."""

    title: str
    cause: str
    line: str
    """The counts."""
    link: str | None
    """The address of its page in the web UI, or ``None`` if the address of the web UI is not
    configured.
    """
    bad: bool

    @property
    def text(self) -> str:
        """The message as plain text."""
        return "\n\n".join(filter(None, (self.title, self.cause, self.line, self.link)))


def alert_of(type: str, subject: str, body: Mapping[str, Any], page: str | None) -> Alert:
    """Return the alert about an event. ``page`` is the address of the web UI."""
    if type in _OF_INCIDENT:
        return _of_incident(type, subject, body, page)
    plural, _, key = subject.partition("/")
    name = f"{key} of {body.get('crawler')}" if plural == "runs" else str(body.get("name") or key)
    status = str(body.get("status") or body.get("state"))
    outcome = body.get("outcome")
    stopped = body.get("ended_by") == EndedBy.PERSON
    words = _WORDS.get(type, f"{status} ({outcome})" if outcome else status)
    cause = next((body[cause] for cause in _CAUSES if isinstance(body.get(cause), str)), "")
    if type == "webhook.test":
        cause = (
            f"Alerts arrive here. Requested by {body.get('requested_by') or 'an unnamed caller'}."
        )
    for correction in (body.get("corrections") or ())[:1]:
        cause = (
            f"The recorded status was {correction.get('believed')}, "
            f"but the true one was {correction.get('truth')}."
        )
    line = " · ".join(
        f"{count.capitalize()}: {_counted(body[count])}" for count in _COUNTS if body.get(count)
    )
    where = quote(name if plural in ("webhooks", "schedules") else key, safe="", errors="replace")
    return Alert(
        _cut(
            f"{plural[:-1].capitalize()} {name}: "
            f"{'not ' if body.get('started') is False else ''}{words}",
            TITLE_MAX,
        ),
        _cut(cause, CAUSE_MAX),
        _cut(line, LINE_MAX),
        f"{page.rstrip('/')}/{plural}/{where}" if page else None,
        (status in _BAD and not stopped)
        or type.endswith(_TROUBLES)
        or body.get("attention") is not None,
    )


def _of_incident(type: str, subject: str, body: Mapping[str, Any], page: str | None) -> Alert:
    by = body.get("closed_by")
    lasted = body.get("duration_s")
    facts = {
        "Count": body.get("count"),
        "Taken by": body.get("assignee"),
        "Lasted": None if lasted is None else timedelta(seconds=int(lasted)),
        "Closed by": None if by == "recovered" else by,
    }
    line = " · ".join(f"{fact}: {value}" for fact, value in facts.items() if value is not None)
    # The event of an older build has no sentence.
    sentence = body.get("sentence") or f"{body.get('subject')}: {body.get('kind')}"
    title = f"{sentence}{_OF_INCIDENT[type]}"
    link = f"{page.rstrip('/')}/{subject}" if page else None
    cause = _cut(str(body.get("cause") or ""), CAUSE_MAX)
    bad = body.get("level") == "bad" and by is None
    return Alert(_cut(title, TITLE_MAX), cause, _cut(line, LINE_MAX), link, bad)


def message(kind: str, alert: Alert) -> dict[str, Any]:
    """Return the body for an incoming webhook of Slack, a workflow of Microsoft Teams, or a webhook
    of Discord.
    """
    return {"slack": _slack, "teams": _teams, "discord": _discord}[kind](alert)


def _slack(alert: Alert) -> dict[str, Any]:
    # Slack formats nothing inside code, and it cannot quote the marks that it formats elsewhere.
    texts = {
        "*`{}`*": alert.title,
        "```{}```": alert.cause,
        "`{}`": alert.line,
        "<{}|Open the web UI>": alert.link,
    }
    parts = [form.format(_quoted(text, SLACK_MAX, _SLACK)) for form, text in texts.items() if text]
    # with verbatim, Slack adds no links and no mentions of its own
    blocks = [
        {"type": "section", "text": {"type": "mrkdwn", "text": part, "verbatim": True}}
        for part in parts
    ]
    # This text is shown in notifications, and by receivers of Slack's format that do not support
    # blocks.
    return {"text": f"```{_quoted(alert.text, SLACK_MAX, _SLACK)}```", "blocks": blocks}


def _teams(alert: Alert) -> dict[str, Any]:
    """Return an Adaptive Card. Its blocks interpret no marks."""
    title = {"text": alert.title, "weight": "bolder", "color": "attention" if alert.bad else "good"}
    runs = [title, {"text": alert.cause, "fontType": "monospace"}, {"text": alert.line}]
    blocks = [
        {"type": "RichTextBlock", "inlines": [{"type": "TextRun", **run}]}
        for run in runs
        if run["text"]
    ]
    links = (
        [{"type": "Action.OpenUrl", "title": "Open the web UI", "url": alert.link}]
        if alert.link
        else []
    )
    schema = "http://adaptivecards.io/schemas/adaptive-card.json"
    card = {
        "$schema": schema,
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
        "actions": links,
    }
    attached = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attached]}


def _discord(alert: Alert) -> dict[str, Any]:
    title = _quoted(alert.title, DISCORD_TITLE_MAX, _DISCORD)
    cause = _quoted(alert.cause, DISCORD_MAX, _DISCORD)
    embed = {
        "title": title,
        "description": cause,
        "footer": {"text": alert.line},
        "url": alert.link,
    }
    color = 0xC62828 if alert.bad else 0x2E7D32
    return {"embeds": [{**embed, "color": color}], "allowed_mentions": {"parse": []}}


def _counted(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{number} {name}" for name, number in value.items() if number)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cut(text: str, most: int) -> str:
    return _quoted(printable(text).strip(), most, {})


def _quoted(text: str, most: int, marks: Mapping[str, str]) -> str:
    """Return the text with its marks quoted. It is cut to ``most`` characters, but never within a
    quoted mark.
    """
    pieces = [marks.get(letter, letter) for letter in text]
    fit = sum(size <= most for size in accumulate(map(len, pieces)))
    return "".join(pieces) if fit == len(pieces) else "".join(pieces[: max(fit - 1, 0)]) + "…"
