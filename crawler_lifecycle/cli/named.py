"""What the verbs about schedules and webhooks share: both are definitions that people name, pause and delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import Parameter

from .output import Column, Document, clean, emit, emit_list, say_note, show_facts
from .problems import CommandFailed, Exit
from .session import Session, current, user

By = Annotated[str | None, Parameter(help="who asks for it; default: you")]
Limit = Annotated[int, Parameter(help="at most so many")]
Reason = Annotated[str | None, Parameter(help="shown with it")]


@dataclass(frozen=True, slots=True)
class Named:
    """One kind of them. Each method answers the exit code of a verb."""

    kind: str
    """What the verb is called; routes and answers have its plural."""
    columns: Sequence[Column]
    facts: Callable[[Document], list[tuple[str, str]]]

    def path(self, name: str) -> str:
        """Where one is."""
        return f"/v1/{self.kind}s/{quote(name, safe='')}"

    def list_all(self, limit: int) -> int:
        session = current()
        with session.gateway() as gateway:
            rows = gateway.rows(f"/v1/{self.kind}s", limit=limit)
        empty = f"no {self.kind}s; next: crawlctl {self.kind} create --help"
        emit_list(session, f"{self.kind}s", rows, self.columns, name="name", empty=empty)
        return Exit.DONE

    def describe(self, name: str) -> int:
        session = current()
        with session.gateway() as gateway:
            self._show(session, gateway.get(self.path(name)))
        return Exit.DONE

    def pause(self, name: str, reason: str | None, by: str | None) -> int:
        return self.post(name, "pause", {"reason": reason, "requested_by": by or user()})

    def post(self, name: str, what: str, body: Mapping[str, Any] | None = None) -> int:
        """Ask for something, and show how it stands then."""
        session = current()
        with session.gateway() as gateway:
            self._show(session, gateway.post(f"{self.path(name)}/{what}", body))
        return Exit.DONE

    def put(self, name: str, body: Mapping[str, Any], by: str | None, following: Callable[[Document], str]) -> int:
        """Make it, or change its definition; ``following``: the verbs that are of use then."""
        session = current()
        with session.gateway() as gateway:
            found = gateway.put(self.path(name), {**body, "requested_by": by or user()})
        self._show(session, found, name)
        verbs = " · ".join(f"crawlctl {self.kind} {verb} {name}" for verb in following(found).split())
        session.say(f"next: {verbs}")
        return Exit.DONE

    def definition(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Its definition with these changes. Raises ``CommandFailed`` where there are none."""
        if not changes:
            raise CommandFailed(Exit.USAGE, "nothing to change", None, f"crawlctl {self.kind} update --help")
        with current().gateway() as gateway:
            return {**gateway.get(self.path(name))["definition"], **changes}

    def delete(self, name: str) -> int:
        session = current()
        with session.gateway() as gateway:
            found = gateway.delete(self.path(name))
        emit(session, found, names=[name], table=lambda: print(clean(f"{self.kind} {name} is deleted")))
        say_note(session, found)
        return Exit.DONE

    def _show(self, session: Session, found: Document, name: str | None = None) -> None:
        say_note(session, found)
        names = [name or found["name"]]
        emit(session, found, names=names, table=lambda: show_facts(session, self.facts(found)))
