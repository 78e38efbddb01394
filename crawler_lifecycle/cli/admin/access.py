"""``crawlctl access`` lists the access log of the gateway; ``crawlctl token`` manages tokens in the
database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.output import emit, emit_list, show_facts, show_list
from crawler_lifecycle.cli.problems import WrongUsage
from crawler_lifecycle.cli.session import load_settings, say, seconds, time_of
from crawler_lifecycle.cli.subjects import By, Limit, Project
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.projects import DEFAULT
from crawler_lifecycle.ports.access import Kind, TokenRow
from crawler_lifecycle.subjects import ACCESS, TOKENS

from .services import database_errors

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store

#: More days than any token needs to live. A later time would be out of range for a date.
_LONG_S = 1e10
Name = Annotated[str, Parameter(help="the token's name: 1 to 64 letters, digits or . _ @ -")]


def access(
    *,
    caller: str | None = None,
    operation: str | None = None,
    kind: Kind | None = None,
    subject: str | None = None,
    outcome: str | None = None,
    since: str | None = None,
    until: str | None = None,
    project: Project = None,
    limit: Limit = 50,
) -> None:
    """List what people and tokens did, and what was refused, newest first.

    Needs a token with the admin role.

    Parameters
    ----------
    caller
        only by the token with this name
    operation
        only this operation, such as stopRun or pressRuns
    kind
        only about objects of this kind
    subject
        only about the object with this number or name
    outcome
        only with this outcome: done, or the code of a problem
    since
        only in the last 24h, 7d …, or since a time
    until
        only before the last 24h, 7d …, or before a time
    """
    words = {
        "caller": caller,
        "operation": operation,
        "kind": kind,
        "subject": subject,
        "outcome": outcome,
    }
    for name, text in (("since", since), ("until", until)):
        words[name] = text and time_of(f"--{name}", text, output.now())
    empty = "no record matches"
    show_list("/v1/access", ACCESS, key="id", empty=empty, limit=limit, project=project, **words)


def create(
    name: Name,
    /,
    *,
    role: Literal["read", "operate", "admin"],
    project: str = DEFAULT,
    expires: str | None = None,
    by: By = None,
) -> None:
    """Create a token that is stored in the database.

    The token is shown only once; the database stores only its hash.

    All gateways accept it after about two seconds, without a change of their tokens file.

    Parameters
    ----------
    role
        role of the token
    project
        the only project that it can see and change; '*' means all
    expires
        when it expires, such as 90d, or a time; default: never
    """
    from crawler_lifecycle.gateway.access import tokens

    settings = load_settings()
    try:
        token, _ = tokens.new_token(name, role, project)
        taken = tokens.read(settings.gateway.callers_file) if settings.gateway.callers_file else ()
    except (ValueError, tokens.TokenFileError) as error:
        raise WrongUsage(str(error)) from None
    if any(entry.caller.name == name for entry in taken):
        raise WrongUsage(
            f"name: {name!r} is already in the tokens file",
            "give another name, or remove this one from the file",
        )
    until = None if expires is None else _expiry(expires)
    with _store() as store:
        row = store.tokens.create_token(
            name, role, project, tokens.digest(token), until, by or user()
        )
    emit({**_document(row), "token": token}, names=[token], table=lambda: print(token, flush=True))
    say("this token is shown only once; gateways accept it in about two seconds")


def list_tokens() -> None:
    """List the tokens in the database, including expired and revoked ones."""
    with _store() as store:
        rows = [_document(row) for row in store.tokens.list_tokens()]
    emit_list(
        "tokens",
        rows,
        TOKENS,
        name="name",
        empty="there are no tokens in the database; next: crawlctl token create -h",
    )


def revoke(name: Name, /, *, by: By = None) -> None:
    """Revoke a token.

    Gateways refuse it after about two seconds, and end its streams and sessions.
    """
    with _store() as store:
        row = _document(store.tokens.revoke_token(name, by or user()))
    emit(
        row,
        names=[name],
        table=lambda: show_facts([(token.title, token.cell(row)) for token in TOKENS]),
    )


def _expiry(text: str) -> datetime:
    """Return the time of ``--expires``. Raises ``CommandFailed`` for a time that is not in the
    future.
    """
    now = output.now()
    if text.strip()[-1:].isalpha() and text.strip()[-1:] not in "Zz":
        text = (now + timedelta(seconds=min(seconds(text), _LONG_S))).isoformat()
    found = datetime.fromisoformat(time_of("--expires", text))
    if found <= now:
        raise WrongUsage(f"--expires {text!r} has passed", "give a later time, such as 90d")
    return found


@contextmanager
def _store() -> Iterator[Store]:
    from crawler_lifecycle.store.store import open_store

    with database_errors(), closing(open_store(load_settings().database.url, pool_size=1)) as store:
        store.health.ping()
        yield store


def _document(row: TokenRow) -> dict[str, Any]:
    from pydantic import TypeAdapter

    expired = row.expires_at is not None and row.expires_at <= output.now()
    document: dict[str, Any] = TypeAdapter(TokenRow).dump_python(
        row, mode="json", exclude={"sha256"}
    )
    return document | {"state": "revoked" if row.revoked_at else "expired" if expired else "valid"}
