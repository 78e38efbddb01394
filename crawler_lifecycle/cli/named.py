"""Schedules and webhooks: definitions that people name, pause and delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from crawler_lifecycle.dev_json import user
from crawler_lifecycle.subjects import Document

from .output import clean, emit, say_note, show_facts
from .problems import CommandFailed, Exit
from .session import Session, current
from .subjects import Kind

Reason = Annotated[str | None, Parameter(help="shown with it")]


@dataclass(frozen=True, slots=True)
class Named(Kind):
    """One kind of them. Each method answers the exit code of a verb."""

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
        verbs = " · ".join(f"crawlctl {self.noun} {verb} {name}" for verb in following(found).split())
        session.say(f"next: {verbs}")
        return Exit.DONE

    def definition(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Its definition with these changes. Raises ``CommandFailed`` where there are none."""
        if not changes:
            raise CommandFailed(Exit.USAGE, "nothing to change", None, f"crawlctl {self.noun} update --help")
        with current().gateway() as gateway:
            return {**gateway.get(self.path(name))["definition"], **changes}

    def delete(self, name: str) -> int:
        session = current()
        with session.gateway() as gateway:
            found = gateway.delete(self.path(name))
        emit(session, found, names=[name], table=lambda: print(clean(f"{self.noun} {name} is deleted")))
        say_note(session, found)
        return Exit.DONE

    def _show(self, session: Session, found: Document, name: str | None = None) -> None:
        say_note(session, found)
        names = [name or found["name"]]
        emit(session, found, names=names, table=lambda: show_facts(session, self.subject.known(found)))
