"""The note about the results of an action, which the next page shows.

An action on a selection shows its list again at once, with the note. An action on the page of one
subject redirects to that page, so that a reload does not send the form again. The note then travels
in a cookie, because another gateway may serve the next request. The cookie is not signed and not
limited to TLS, because it has only text, which the page escapes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.gateway.access.recorder import present_call

COOKIE = "crawl_note"
#: Seconds for which a note waits for its page.
LASTS_S = 60
#: The maximum size of a note in bytes. Its cookie is a third larger, and some proxies accept only
#: 4 KiB of headers.
NOTE_MAX = 1800
#: The maximum number of characters of a name in a note.
NAME_MAX = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an action on one thing."""

    name: str
    href: str | None
    """The page of the thing, or ``None`` without a link."""
    done: bool
    text: str


@dataclass(frozen=True, slots=True)
class ActionNote:
    """The results of an action, which a page shows as a note."""

    word: str
    outcomes: Sequence[Outcome]


def note_outcomes(request: Request, word: str, outcomes: Sequence[Outcome]) -> None:
    """Record the results of an action in the access log, and show them on the page that this
    request renders, if it renders one.
    """
    for outcome in outcomes:
        kind, _, subject = outcome.name.partition(" ")
        present_call().about.append(
            (kind if subject else None, subject or None, word, outcome.done)
        )
    request.state.done = ActionNote(word, outcomes)


def go_back(
    request: Request, word: str, outcome: Outcome, path: str, *, tabs: bool = True
) -> Response:
    """Record the result of an action, and redirect to the page at this path, which shows it.

    If the form was on a page below this path, such as a tab, redirect to that page. ``tabs`` is
    false if such pages no longer exist.
    """
    note_outcomes(request, word, [outcome])
    sender = urlsplit(request.headers.get("referer", ""))
    target = path
    if tabs and sender.path.startswith(f"{path}/"):
        target = f"{sender.path}?{sender.query}" if sender.query else sender.path
    mark = _mark(unquote(urlsplit(target).path))
    fields = (mark, word, "done" if outcome.done else "", outcome.name[:NAME_MAX], outcome.text)
    body = "\0".join(fields).encode(errors="replace")
    if len(body) > NOTE_MAX:
        body = body[:NOTE_MAX].decode(errors="ignore").encode() + "…".encode()
    value = base64.urlsafe_b64encode(body).decode()
    response = RedirectResponse(target, 303)
    response.set_cookie(COOKIE, value, LASTS_S, httponly=True, samesite="strict")
    return response


def note_of(request: Request) -> ActionNote | None:
    """Return the note that this request shows: of its own action, or of the action that redirected
    to this page.
    """
    note: ActionNote | None = getattr(request.state, "done", None)
    if note is not None or COOKIE not in request.cookies:
        return note
    try:
        body = base64.urlsafe_b64decode(request.cookies[COOKIE][: 2 * NOTE_MAX])
        mark, word, done, name, text = body.decode().split("\0", 4)
    except ValueError:
        return None  # somebody else wrote it
    if mark != _mark(request.scope["path"]):
        return None
    return ActionNote(word, [Outcome(name, None, bool(done), text)])


def _mark(path: str) -> str:
    """Return a mark of the page that shows the note, because pages in other windows may load at the
    same time.
    """
    return hashlib.sha256(path.encode(errors="replace")).hexdigest()[:16]
