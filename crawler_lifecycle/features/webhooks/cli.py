"""``crawlctl webhook``: verbs that create, change, show and control webhooks."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.client.polling import Polling
from crawler_lifecycle.cli.inputs import filled
from crawler_lifecycle.cli.output import as_json, clean, emit_list, say_note, show_list
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import By, Limit, NamedKind, Project, Shown
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.subjects import DELIVERIES, WEBHOOK, Document

from .domain.signing import read_secret, verified

KIND = NamedKind(WEBHOOK)
Name = Annotated[str, Parameter(help="the webhook's name")]
Status = Literal["delivered", "failed", "skipped"]
Kind = Annotated[
    Literal["webhook", "slack", "teams", "discord", "email"] | None,
    Parameter(help="webhook: signed events; the others: alerts for people. Default: webhook"),
]
Url = Annotated[
    str,
    Parameter(
        help="https address of the receiver, env:NAME, or for email: addresses separated by "
        "commas. With crawlctl dev also "
        "http://127.0.0.1:PORT/"
    ),
]
#: Seconds to wait for the result of a test.
WAIT_S = 15.0
#: Maps the name of each option to the field of a definition.
_WORDS = {
    "secret": "secrets",
    "event": "events",
    "crawler": "crawlers",
    "tag": "tags",
    "flow": "flows",
    "status": "statuses",
    "outcome": "outcomes",
    "ended_by": "ended_by",
}
#: The maximum number of bytes of a delivery that ``receive`` accepts.
BODY_MAX = 1024 * 1024
#: The seconds that it waits for them.
BODY_S = 10.0
#: The headers that ``receive`` prints.
_HEADERS = ("content-type", "webhook-id", "webhook-timestamp", "webhook-signature")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Options for the events of a webhook, and for the secrets of its signature.

    Each may be repeated.

    Parameters
    ----------
    secret
        env:NAME, a variable that begins with CRAWL_HOOK, where crawlctl dev or the webhook workers
        start; give two while the secret changes
    event
        type of events, such as run.ended, run.*; default: all
    crawler
        only events of this crawler
    tag
        only events of runs with this tag
    flow
        only events of this flow
    status
        only events with this status
    outcome
        only events with this outcome
    ended_by
        only events about work that was ended by this: crawler, person …
    """

    secret: list[str] | None = None
    event: list[str] | None = None
    crawler: list[str] | None = None
    tag: list[str] | None = None
    flow: list[str] | None = None
    status: list[str] | None = None
    outcome: list[str] | None = None
    ended_by: list[str] | None = None

    def given(self) -> dict[str, list[str]]:
        """Return the given options as fields of a definition. An empty value becomes an empty
        list."""
        return {
            _WORDS[name]: [text for text in texts if text]
            for name, texts in asdict(self).items()
            if texts is not None
        }


_NONE = WebhookOptions()


def create(
    name: Name,
    /,
    *,
    url: Url,
    kind: Kind = None,
    options: Annotated[WebhookOptions, Parameter(name="*")] = _NONE,
    project: Project = None,
    by: By = None,
) -> None:
    """Create a webhook, or replace the definition of an existing one."""
    if not options.secret and kind in (None, "webhook"):
        raise WrongUsage(
            "--secret is missing",
            "give --secret env:CRAWL_HOOK; export CRAWL_HOOK=whsec_$(openssl rand -base64 32) in "
            "the environment of "
            "crawlctl dev or of the webhook workers",
        )
    KIND.put(name, _given(options, url=url, kind=kind, project=project), by, _following)


def update(
    name: Name,
    /,
    *,
    url: Url | None = None,
    kind: Kind = None,
    options: Annotated[WebhookOptions, Parameter(name="*")] = _NONE,
    by: By = None,
) -> None:
    """Change a webhook: each given option replaces its old value.

    An empty value removes a filter.
    """
    KIND.put(name, KIND.definition(name, _given(options, url=url, kind=kind)), by, _following)


def _given(options: WebhookOptions, **more: str | None) -> dict[str, object]:
    return {**options.given(), **filled(more)}


def _following(found: Document) -> str:
    return f"{'resume' if found['state'] == 'paused' else 'test'} deliveries"


def list_webhooks(*, project: Project = None, limit: Limit = 50) -> None:
    """List webhooks, oldest first."""
    KIND.list_all(limit, project=project)


def describe(name: Name, /) -> None:
    """Show everything about a webhook, and its state."""
    KIND.describe(name)


def deliveries(
    name: Name,
    /,
    *,
    status: Status | None = None,
    limit: Limit = 50,
) -> None:
    """List the deliveries of a webhook, including failed ones, with the latest event first.

    Parameters
    ----------
    status
        only deliveries with this status
    """
    empty = "nothing has been delivered yet"
    show_list(
        KIND.path(name, "/deliveries"),
        DELIVERIES,
        key="seq",
        empty=empty,
        limit=limit,
        status=status,
    )


def pause(name: Name, /, *, reason: Shown = None, by: By = None) -> None:
    """Pause a webhook: it delivers nothing until it is resumed."""
    KIND.pause(name, reason, by)


def resume(
    name: Name,
    /,
    *,
    skip: bool = False,
    skip_event: int | None = None,
) -> None:
    """Resume a paused webhook, including the events of the pause. A failing webhook tries again
    immediately.

    Parameters
    ----------
    skip
        skip all events up to now
    skip_event
        skip only this event, which keeps failing
    """
    KIND.post(name, "resume", {"skip": skip, "skip_seq": skip_event})


def try_out(name: Name, /, *, by: By = None) -> int:
    """Send a test event to a webhook, and show the result. --timeout sets the longest wait."""
    with current().gateway() as gateway:
        asked = gateway.post(f"{KIND.path(name)}/test", {"requested_by": by or user()})
        say_note(asked)
        wait = 0.0 if asked.get("note") else current().timeout_s or WAIT_S
        found = _became(gateway, name, int(asked["seq"]), wait)
        if found is None:
            error = gateway.get(KIND.path(name))["error"]
            why = f" after an event that fails: {error}" if error else ""
            text = (
                f"event {asked['seq']} is waiting for its turn{why}; next: crawlctl webhook "
                f"deliveries {name}"
            )
            say(clean(text))
            return Exit.GAVE_UP_WAITING
    emit_list("deliveries", [found], DELIVERIES, name="seq", empty="")
    return Exit.DONE if found["status"] == "delivered" else Exit.ERROR


def _became(gateway: Gateway, name: str, seq: int, wait: float) -> Document | None:
    """Return the delivery of an event, or ``None`` if it was not tried within ``wait`` seconds."""
    for page in Polling(timeout_s=wait).answers(
        lambda: gateway.rows(f"{KIND.path(name)}/deliveries", limit=20)
    ):
        found = next((row for row in page if row["seq"] == seq), None)
        if found is not None:
            return found
    return None


def delete(name: Name, /) -> None:
    """Delete a webhook. Its recorded deliveries stay."""
    KIND.delete(name)


def receive(*, port: int = 8088, secret_env: str | None = None) -> int:
    """Receive deliveries on this machine and print each one, until Ctrl-C.

    Parameters
    ----------
    port
        port on 127.0.0.1; 0: any free one
    secret_env
        variable with the webhook's secret; without it, signatures are not checked
    """
    if not 0 <= port < 2**16:
        raise WrongUsage(f"--port: {port} is not allowed; give 0 to 65535")
    try:
        with _Receiver(("127.0.0.1", port), _Delivery) as receiver:
            if secret_env is not None:
                if secret_env not in os.environ:
                    raise WrongUsage(f"--secret-env: the variable {secret_env} is not set here")
                receiver.key = read_secret(secret_env, os.environ[secret_env])
            say(f"listening on http://127.0.0.1:{receiver.server_port}/; Ctrl-C ends it")
            with suppress(KeyboardInterrupt):
                receiver.serve_forever()
    except InvalidRequest as error:
        raise WrongUsage(str(error).removeprefix("secrets: ")) from None
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "another program listens on it" if taken else error.strerror
        what = f"port {port} cannot be used: {why}"
        raise CommandFailed(Exit.ERROR, what, None, "give another --port") from None
    return Exit.DONE


class _Receiver(HTTPServer):
    """Receives deliveries one after another."""

    key: bytes | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        say("a delivery was interrupted")


class _Delivery(BaseHTTPRequestHandler):
    """Print a delivery, and answer 204."""

    server: _Receiver
    timeout = BODY_S

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or len(length) > len(str(BODY_MAX)) or int(length) > BODY_MAX:
            say(f"refused a delivery: its length is {clean(length[:20]) or 'not known'}")
            self._answer(413)
            return
        body = self.rfile.read(int(length))
        given = {name: self.headers[name] for name in _HEADERS if name in self.headers}
        key = self.server.key
        found = "not checked"
        if key is not None:
            found = "valid" if verified(given, body, key) else "invalid"
        try:
            text = as_json(json.loads(body))
        except (ValueError, RecursionError):
            text = body.decode(errors="replace")
        lines = [*(f"{name}: {value}" for name, value in given.items()), f"signature: {found}"]
        print(clean("\n".join([*lines, text, ""]), lines=True), flush=True)
        self._answer(204)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing, because the delivery itself is printed."""
