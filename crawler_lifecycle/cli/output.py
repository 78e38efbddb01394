"""Output formats: tables for people; JSON, JSON lines, YAML and names for programs.

Data comes from crawlers and their pages, so every text passes ``clean`` before it reaches a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from crawler_lifecycle.subjects import At, Cell, Column, Count, Document, Lag, Link, Took, Word

from .session import current, say

#: Where no terminal says how wide it is, nothing is cut or folded.
WIDE = 10_000

#: Status -> colour. Colour only repeats what the word says.
STYLES = {
    **dict.fromkeys(("COMPLETED", "SUCCEEDED"), "green"),
    **dict.fromkeys(("FAILED", "LOST"), "red"),
    **dict.fromkeys(("CANCELLED", "STOPPING", "stopped"), "yellow"),
    **dict.fromkeys(("PROCESSING", "RUNNING"), "cyan"),
}


def now() -> datetime:
    """The present, in one place so that tests can hold it still."""
    return datetime.now(UTC)


def say_note(answer: Document, about: str = "") -> None:
    """Return what an answer of the gateway notes for a person, if anything; ``about``: on what."""
    if answer.get("note"):
        say((f"{about}: " if about else "") + clean(answer["note"]))


def clean(value: object, *, lines: bool = False) -> str:
    """A text without control characters: each becomes its escape, so that data cannot steer a terminal.

    ``lines`` leaves line breaks and tabs alone.
    """
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def moment(value: object) -> datetime | None:
    """The time that a field of the API holds."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def span(seconds: float) -> str:
    """A length of time in its one or two largest units: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``4 d``."""
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = int(seconds)
    for (size, name), (smaller, small_name) in pairwise(((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def ago(value: object) -> str:
    """A time as seen from now: ``3 s ago``, ``in 2 min``, ``-``; with ``--time-format iso`` the time itself, in UTC."""
    found = moment(value)
    if found is None:
        return "-"
    if current().time_format == "iso":
        return f"{found.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    seconds = (now() - found).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def number(value: object) -> str:
    """A count with separators; ``-`` when there is none."""
    return f"{value:,}" if isinstance(value, int) else "-"


def took(begin: object, end: object) -> str:
    """The length of time between two times of the API, up to now while there is no end."""
    since, until = moment(begin), moment(end) or now()
    return span((until - since).total_seconds()) if since else "-"


def milliseconds(value: object) -> str:
    """A lag in words."""
    return span(value / 1000) if isinstance(value, int | float) else "-"


def written(cell: Cell) -> str:
    """A cell of the table of subjects as a terminal shows it; ``-`` for nothing."""
    match cell:
        case At(time, exact):
            return (clean(time) or "-") if exact else ago(time)
        case Took(begin, end):
            return took(begin, end)
        case Lag(ms):
            return milliseconds(ms)
        case Count(known):
            return number(known)
        case Word(text) | Link(text):
            return clean(text) or "-"
        case Mapping() | list() | tuple():
            return as_json(cell, indent=None) if cell else "-"
    return clean(cell) or "-"


def as_json(document: object, *, indent: int | None = 2) -> str:
    """A JSON text for eyes and programs: letters of all languages as they are, everything invisible escaped."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def as_yaml(document: object) -> str:
    """The same as YAML. Only between double quotes can characters be escaped, so texts that need it stand there."""
    import yaml  # only for those who ask for it

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Dumper, value: str) -> yaml.ScalarNode:
        visible = value.replace("\n", "").isprintable()
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if visible else '"')

    Dumper.add_representer(str, text)
    dumped = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return "".join(
        c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"
        for c in dumped
    )


def emit(
    document: object, *, names: Sequence[object], table: Callable[[], None], rows: Sequence[Document] | None = None
) -> None:
    """Write ``document`` in the format that was asked for; ``table`` writes it for people, ``names`` are its ids.

    ``rows`` are the lines of ``-o jsonl`` (default: the document as one line).
    """
    if current().output == "json":
        print(as_json(document))
    elif current().output == "jsonl":
        for row in [document] if rows is None else rows:
            print(as_json(row, indent=None))
    elif current().output == "yaml":
        print(as_yaml(document), end="")
    elif current().output == "name":
        for name in names:
            print(clean(name))
    else:
        table()
    sys.stdout.flush()


def emit_list(
    key: str,
    rows: Sequence[Document],
    columns: Sequence[Column],
    *,
    name: str,
    empty: str,
    beside: Mapping[str, Document | None] = MappingProxyType({}),
) -> None:
    """Write rows in the format that was asked for; ``name`` is the field with a row's id.

    ``beside``: what else the document holds, if it is there; its ``text`` stands below the table.
    """
    known = {name: one for name, one in beside.items() if one}

    def table() -> None:
        show_rows(rows, columns, empty=empty)
        for one in known.values():
            print(clean(one.get("text")))

    emit({key: list(rows), **known}, names=[row.get(name) for row in rows], table=table, rows=rows)


def build_table(rows: Sequence[Document], columns: Sequence[Column]) -> Any:
    """A rich table of the columns that the format shows."""
    from rich.table import Table
    from rich.text import Text

    wide = current().output == "wide"
    shown = [one for one in columns if "terminal" in one.on and (wide or not one.wide)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_edge=False, expand=False)
    for column in shown:
        table.add_column(column.title.upper(), justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        texts = [written(column.cell(row)) for column in shown]
        table.add_row(*(Text(text, style=STYLES.get(text.partition(" ")[0], "")) for text in texts))
    return table


def show_rows(rows: Sequence[Document], columns: Sequence[Column], *, empty: str) -> None:
    """A table on standard output; ``empty`` is said when there is nothing to show."""
    if not rows:
        say(empty)
        return
    terminal = console()
    with terminal.capture() as capture:
        terminal.print(build_table(rows, columns))
    # The last column is padded, too; spaces at the end of a line are only trouble for whoever copies it.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
    for row in rows:
        if row.get("unreadable"):  # it stands still until a person mends it
            say(clean(row["unreadable"]))


def show_facts(facts: Sequence[tuple[str, Cell]]) -> None:
    """Names and values, one line each."""
    from rich.text import Text

    terminal = console()
    width = max(len(name) for name, _ in facts) + 2
    for name, value in facts:
        words = written(value).partition(" ")
        line = Text(name.ljust(width), style="bold").append(words[0], style=STYLES.get(words[0], "not bold"))
        terminal.print(line.append("".join(words[1:]), style="not bold"))


def console() -> Any:
    """A rich console on standard output that treats every text as data."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        width=None if terminal else WIDE,
        no_color=not current().color,
        force_terminal=True if current().force_color else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def write_lines(lines: Sequence[str]) -> None:
    """Write lines as they come, each with its time."""
    moment = f"{now():%Y-%m-%dT%H:%M:%SZ}"
    for line in lines:
        if current().for_people:
            print(f"{moment} {line}")
        else:
            say(f"{moment} {line}")
    sys.stdout.flush()
