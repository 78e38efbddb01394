"""Output formats: tables for people; JSON, JSON lines, YAML and names for programs.

Because data comes from crawlers and crawled pages, ``clean`` is applied to every string before it
is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from crawler_lifecycle.domain.plurals import duration
from crawler_lifecycle.subjects import (
    At,
    Cell,
    CellLine,
    Column,
    Count,
    Document,
    Lag,
    Link,
    Note,
    Took,
    Word,
    total_words,
)

from .session import current, say

#: The width of output that does not go to a terminal. It is large, so that no text is truncated or
#: wrapped.
WIDE = 10_000

#: Status -> colour, which adds no information to the word.
STYLES = {
    **dict.fromkeys(("COMPLETED", "SUCCEEDED"), "green"),
    **dict.fromkeys(("FAILED", "LOST"), "red"),
    **dict.fromkeys(("CANCELLED", "STOPPING", "stopped"), "yellow"),
    **dict.fromkeys(("PROCESSING", "RUNNING"), "cyan"),
}


def now() -> datetime:
    """Return the current time. Tests replace this function."""
    return datetime.now(UTC)


def say_note(answer: Document, about: str = "") -> None:
    """Print the note in a response from the gateway, if there is one. ``about`` names the
    subject.
    """
    if answer.get("note"):
        say((f"{about}: " if about else "") + clean(answer["note"]))


def say_total(answer: Document, shown: int) -> None:
    """Print the total number of rows in the list, if not all rows are shown."""
    if (answer.get("total") or 0) > shown:
        say(
            f"{shown:,} of {total_words(answer['total'], bool(answer['total_exact']))}; for more: "
            "--limit"
        )


def clean(value: object, *, lines: bool = False) -> str:
    """Return the text with escaped control characters, because data must not control a terminal.

    If ``lines`` is true, line breaks and tabs are kept.
    """
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


def moment(value: object) -> datetime | None:
    """Return the time in a field from the API; ``None`` if the field is empty."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def span(seconds: float) -> str:
    """Return a duration in its largest one or two units: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h
    10 min``.
    """
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    return duration(seconds)


def ago(value: object) -> str:
    """Return a time relative to now (``3 s ago``, ``in 2 min``), or in UTC with ``--time-format
    iso``; ``-`` if there is none.
    """
    found = moment(value)
    if found is None:
        return "-"
    if current().time_format == "iso":
        return f"{found.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    seconds = (now() - found).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def number(value: object) -> str:
    """Return a count with thousands separators; ``-`` if there is none."""
    return f"{value:,}" if isinstance(value, int) else "-"


def took(begin: object, end: object) -> str:
    """Return the duration between two times from the API. If there is no end, return the duration
    until now.
    """
    since = moment(begin)
    until = moment(end) or now()
    return span((until - since).total_seconds()) if since else "-"


def milliseconds(value: object) -> str:
    """Return a number of milliseconds as a duration; ``-`` if there is none."""
    return span(value / 1000) if isinstance(value, int | float) else "-"


def written(cell: Cell) -> str:
    """Return the text of a table cell for a terminal; ``-`` for an empty one."""
    match cell:
        case At(time, exact):
            return (clean(time) or "-") if exact else ago(time)
        case Took(begin, end):
            return took(begin, end)
        case Lag(ms):
            return milliseconds(ms)
        case Count(known):
            return number(known)
        case Word(text) | Link(text) | Note(text):
            return clean(text) or "-"
        case CellLine(parts):
            return " ".join(written(part) for part in parts if part) or "-"
        case Mapping() | list() | tuple():
            return as_json(cell, indent=None) if cell else "-"
    return clean(cell) or "-"


def as_json(document: object, *, indent: int | None = 2) -> str:
    """Return JSON in which the letters of all languages are readable and invisible characters are
    escaped.
    """
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def as_yaml(document: object) -> str:
    """Return YAML with escaped invisible characters.

    Strings that contain such characters get double quotes, in which YAML allows escapes.
    """
    import yaml  # imported here, because few commands need it

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Dumper, value: str) -> yaml.ScalarNode:
        visible = value.replace("\n", "").isprintable()
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", value, style=None if visible else '"'
        )

    Dumper.add_representer(str, text)
    dumped = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return "".join(
        c
        if c.isprintable() or c == "\n"
        else f"\\u{ord(c):04x}"
        if ord(c) < 0x10000
        else f"\\U{ord(c):08x}"
        for c in dumped
    )


def emit(
    document: object,
    *,
    names: Sequence[object],
    table: Callable[[], None],
    rows: Sequence[Document] | None = None,
) -> None:
    """Write ``document`` in the format that ``-o`` selects. ``table`` is a function that writes the
    document as a table.

    ``names`` are the ids for ``-o name``. ``rows`` are the lines for ``-o jsonl`` (default: the
    document as one line).
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
    """Write rows in the format that ``-o`` selects. ``name`` is the field with a row's id.

    ``beside`` contains further parts of the document, whose ``text`` is printed below the table.
    """
    known = {name: part for name, part in beside.items() if part}

    def table() -> None:
        show_rows(rows, columns, empty=empty)
        for part in known.values():
            print(clean(part.get("text")))

    emit({key: list(rows), **known}, names=[row.get(name) for row in rows], table=table, rows=rows)


def show_list(
    path: str, columns: Sequence[Column], *, key: str, empty: str, **filters: Any
) -> None:
    """Write the rows of a list from the API in the format that ``-o`` selects.

    ``key`` is the field with a row's id.
    """
    with current().gateway() as gateway:
        rows = gateway.rows(path, last=(beside := dict[str, Any]()), **filters)
    emit_list(path.rpartition("/")[2], rows, columns, name=key, empty=empty)
    say_total(beside, len(rows))
    say_note(beside)


def build_table(rows: Sequence[Document], columns: Sequence[Column]) -> Any:
    """Return a rich table with the columns of the output format (``table`` or ``wide``)."""
    from rich.table import Table
    from rich.text import Text

    wide = current().output == "wide"
    shown = [column for column in columns if "terminal" in column.on and (wide or not column.wide)]
    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 2, 0, 0),
        show_edge=False,
        expand=False,
    )
    for column in shown:
        table.add_column(
            column.title.upper(), justify="right" if column.right else "left", overflow="fold"
        )
    for row in rows:
        texts = [written(column.cell(row)) for column in shown]
        table.add_row(*(Text(text, style=STYLES.get(text.partition(" ")[0], "")) for text in texts))
    return table


def show_rows(rows: Sequence[Document], columns: Sequence[Column], *, empty: str) -> None:
    """Print a table on standard output. If there are no rows, print ``empty`` on standard error."""
    if not rows:
        say(empty)
        return
    terminal = console()
    with terminal.capture() as capture:
        terminal.print(build_table(rows, columns))
    # Remove trailing spaces, which are a nuisance when people copy a line: Rich pads the last
    # column, too.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
    for row in rows:
        if row.get("unreadable"):  # this entry does not continue until a person repairs it
            say(clean(row["unreadable"]))


def show_facts(facts: Sequence[tuple[str, Cell]]) -> None:
    """Print each name and its value on one line."""
    from rich.text import Text

    terminal = console()
    width = max(len(name) for name, _ in facts) + 2
    for name, value in facts:
        words = written(value).partition(" ")
        line = Text(name.ljust(width), style="bold").append(
            words[0], style=STYLES.get(words[0], "not bold")
        )
        terminal.print(line.append("".join(words[1:]), style="not bold"))


def show_finding(level: str, style: str, name: str, text: str, fix: str | None) -> None:
    """Print a finding at once, with the fix below it. ``level`` is already padded to the width of
    its column.
    """
    from rich.text import Text

    terminal = console()
    line = (
        Text(level, style=style)
        .append(name.ljust(13), style="bold")
        .append(clean(text), style="not bold")
    )
    terminal.print(line)
    if fix:
        terminal.print(Text(" " * (len(level) + 13) + f"fix: {clean(fix)}"))
    terminal.file.flush()


def console() -> Any:
    """Return a rich console on standard output that interprets no markup in text."""
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
    """Print lines with the current time.

    The lines go to standard error if standard output is for a program.
    """
    moment = f"{now():%Y-%m-%dT%H:%M:%SZ}"
    for line in lines:
        if current().for_people:
            print(f"{moment} {line}")
        else:
            say(f"{moment} {line}")
    sys.stdout.flush()
