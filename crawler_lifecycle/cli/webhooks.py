"""``crawlctl webhook``: verbs that make, change, show and steer webhooks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from cyclopts import Parameter

from crawler_lifecycle.dev_json import user
from crawler_lifecycle.subjects import DELIVERIES, WEBHOOK, Document

from .client.gateway import Gateway
from .client.polling import Polling
from .output import clean, emit_list, say_note
from .problems import CommandFailed, Exit
from .session import current, say
from .subjects import By, Limit, Named, Shown

KIND = Named(WEBHOOK)
Name = Annotated[str, Parameter(help="the webhook's name")]
Status = Literal["delivered", "failed", "skipped"]
#: Seconds to wait for the result of a test.
WAIT_S = 15.0
#: An option -> the field of a definition.
_WORDS = {
    **{"secret": "secrets", "event": "events", "crawler": "crawlers", "tag": "tags", "flow": "flows"},
    **{"status": "statuses", "outcome": "outcomes"},
}


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Options that say what it is told of, and what signs that. Each may be repeated."""

    secret: Annotated[
        list[str] | None, Parameter(help="env:NAME, a variable of webhook workers; two while they change")
    ] = None
    event: Annotated[list[str] | None, Parameter(help="type of events, or run.* for a kind; default: all")] = None
    crawler: Annotated[list[str] | None, Parameter(help="only events of this crawler")] = None
    tag: Annotated[list[str] | None, Parameter(help="only events of runs with this tag")] = None
    flow: Annotated[list[str] | None, Parameter(help="only events of this flow")] = None
    status: Annotated[list[str] | None, Parameter(help="only events that tell this status")] = None
    outcome: Annotated[list[str] | None, Parameter(help="only events that tell this outcome")] = None

    def given(self) -> dict[str, list[str]]:
        """The options that were named, as a definition has them; an empty text stands for none."""
        named = {_WORDS[one.name]: getattr(self, one.name) for one in fields(self)}
        return {name: [one for one in value if one] for name, value in named.items() if value is not None}


_NONE = WebhookOptions()


def create(
    name: Name,
    /,
    *,
    url: Annotated[str, Parameter(help="https address of the receiver")],
    options: Annotated[WebhookOptions, Parameter(name="*")] = _NONE,
    by: By = None,
) -> int:
    """Make a webhook; one that is there gets this definition."""
    if not options.secret:
        raise CommandFailed(Exit.USAGE, "--secret is missing", None, "give --secret env:NAME; see crawlctl webhook -h")
    return KIND.put(name, {"url": url, **options.given()}, by, _following)


def update(
    name: Name,
    /,
    *,
    url: Annotated[str | None, Parameter(help="https address of the receiver")] = None,
    options: Annotated[WebhookOptions, Parameter(name="*")] = _NONE,
    by: By = None,
) -> int:
    """Change a webhook: what is named takes the place of what there was; an empty text stands for no filter."""
    given = {**({} if url is None else {"url": url}), **options.given()}
    return KIND.put(name, KIND.definition(name, given), by, _following)


def _following(found: Document) -> str:
    return f"{'resume' if found['state'] == 'paused' else 'test'} deliveries"


def list_webhooks(*, limit: Limit = 50) -> int:
    """List webhooks, in the order in which they were made."""
    return KIND.list_all(limit)


def describe(name: Name, /) -> int:
    """Show everything about a webhook, and how it stands."""
    return KIND.describe(name)


def deliveries(
    name: Name,
    /,
    *,
    status: Annotated[Status | None, Parameter(help="only those that are this")] = None,
    limit: Limit = 50,
) -> int:
    """List what was told to a webhook, or tried to be, the latest event first."""
    with current().gateway() as gateway:
        rows = gateway.rows(f"{KIND.path(name)}/deliveries", limit=limit, status=status)
    emit_list("deliveries", rows, DELIVERIES, name="seq", empty="nothing was told yet")
    return Exit.DONE


def pause(name: Name, /, *, reason: Shown = None, by: By = None) -> int:
    """Have nothing told to a webhook until it is resumed."""
    return KIND.pause(name, reason, by)


def resume(
    name: Name,
    /,
    *,
    skip: Annotated[bool, Parameter(help="leave out all that happened until now")] = False,
    skip_event: Annotated[int | None, Parameter(help="leave out this event alone, which fails again and again")] = None,
) -> int:
    """Let a paused webhook go on, with what happened meanwhile; one that fails tries again at once."""
    return KIND.post(name, "resume", {"skip": skip, "skip_seq": skip_event})


def try_out(name: Name, /, *, by: By = None) -> int:
    """Tell a webhook of an event that is for it alone, and show what became of that (--timeout: how long to wait)."""
    with current().gateway() as gateway:
        asked = gateway.post(f"{KIND.path(name)}/test", {"requested_by": by or user()})
        say_note(asked)
        wait = 0.0 if asked.get("note") else current().timeout_s or WAIT_S
        found = _became(gateway, name, int(asked["seq"]), wait)
        if found is None:
            error = gateway.get(KIND.path(name))["error"]
            why = f" behind what fails: {error}" if error else ""
            said = f"event {asked['seq']} waits for its turn{why}; next: crawlctl webhook deliveries {name}"
            say(clean(said))
            return Exit.GAVE_UP_WAITING
    emit_list("deliveries", [found], DELIVERIES, name="seq", empty="")
    return Exit.DONE if found["status"] == "delivered" else Exit.ERROR


def _became(gateway: Gateway, name: str, seq: int, wait: float) -> Document | None:
    """The first try of an event, if it comes in time."""
    for page in Polling(timeout_s=wait).answers(lambda: gateway.rows(f"{KIND.path(name)}/deliveries", limit=20)):
        found = next((row for row in page if row["seq"] == seq), None)
        if found is not None:
            return found
    return None


def delete(name: Name, /) -> int:
    """Delete a webhook; its deliveries stay on record."""
    return KIND.delete(name)
