"""The rule for which files of a task contain items. The runner counts the items in these files, and
all other components show them.

A file is recognised by its name, or because a line in the file ``DECLARED`` names it. The runner
writes ``DECLARED`` for a catalogue entry with ``items``, and for Scrapy feeds whose names do not
show their format; a crawler may write ``DECLARED``, too.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, groupby
from typing import Any

from .item_reader import FORMATS, Feed, Keys, SkippedData, kind_of, read_items, suffix_of

#: The file in a task's folder that names more item files, with one JSON object per line
#: (``declared``).
DECLARED = ".crawl_items.jsonl"
#: The maximum number of bytes and lines that are read from that file.
DECLARED_MAX = 256 * 1024
LINES_MAX = 2_000
#: The maximum number of a task's feeds, and the maximum depth of folders in which feeds are found:
#: those found by name alone, and declared ones.
FEEDS_MAX = 2_000
DEPTH_MAX = 3
DECLARED_DEPTH_MAX = 17
#: The maximum number of fields in a key.
_KEY_MAX = 10
#: The maximum number of files without items that a sentence names.
_NAMED_MAX = 5
_NAMED_ITEMS = re.compile(r"(^|/)items[^/]*$", re.IGNORECASE)
_SUFFIX = re.compile(r"\.[^.]*(\.gz)?\Z", re.IGNORECASE)
_NO_FEED = re.compile(r"(^|/)(skipped\.jsonl$|pages/)")
#: The sentence for a run without items.
NO_FEEDS = (
    "this run has left no items yet: a crawler writes them to items.jsonl in the folder "
    "CRAWL_FILES_DIR, one JSON object per line; a Scrapy project gets such a feed by default"
)


def declared_in(text: bytes) -> list[Feed]:
    """Return the declarations in the content of ``DECLARED``, omitting invalid lines."""
    found = []
    for line in text[:DECLARED_MAX].splitlines()[:LINES_MAX]:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(declared(json.loads(line)))
    return found


def declared(said: object) -> Feed:
    """Return a declaration: a feed whose name is a pattern, in which ``*`` stands for any
    characters.

    Raises ``ValueError``, which names the key, its value and the fix.
    """
    if not isinstance(said, dict) or not said:
        raise ValueError(
            f": {said!r:.100} is not allowed; give off, or some of {', '.join(_VALUES)}"
        )
    for key, value in said.items():
        if key not in _VALUES:
            raise ValueError(f".{key!s:.50}: unknown key; known: {', '.join(_VALUES)}")
        texts = (
            value
            if key == "key" and isinstance(value, list) and len(value) <= _KEY_MAX
            else [value]
        )
        if not texts or not all(
            isinstance(text, str) and _VALUES[key][0].fullmatch(text) for text in texts
        ):
            raise ValueError(f".{key}: {value!r:.100} is not allowed; give {_VALUES[key][1]}")
    fields = said.get("key", [])
    known = (fields,) if isinstance(fields, str) else tuple(fields)
    said = {name: said.get(name, "") for name in _VALUES}
    return Feed(said["files"], said["format"], said["delimiter"], said["quote"], known)


#: Key of a declaration -> the pattern and the description of its allowed values.
_VALUES = {
    "files": (
        re.compile(r"(?!/|(.*/)?\.\.(/|$))(?!(.*\*){6})[^\0\n]{1,512}"),
        "a relative path, with * for any name",
    ),
    "format": (re.compile("|".join(FORMATS)), f"one of {', '.join(FORMATS)}"),
    "delimiter": (re.compile(r"[\x01-\x7e]", re.DOTALL), "one ASCII character"),
    "quote": (re.compile('none|"'), "none, or leave it out"),
    "key": (
        re.compile(r"(?=.*\S)[^\0]{1,200}", re.DOTALL),
        f"the name of a field, or a list of 1 to {_KEY_MAX} names",
    ),
}


def items_of(
    found: Iterable[Feed],
    pieces: Callable[[str], Iterable[bytes]],
    skipped: SkippedData,
    **decoder: Any,
) -> Iterator[Any]:
    """Yield the items of a run's feeds, task by task.

    If several items of a task have the same key, only the first one is yielded. ``pieces`` returns
    the bytes of the file with this name. ``skipped`` counts data that could not be read.
    """
    return chain.from_iterable(_items_of_each(found, pieces, skipped, decoder))


def _items_of_each(
    found: Iterable[Feed], pieces: Any, skipped: SkippedData, decoder: Any
) -> Iterator[Iterable[Any]]:
    for _, of_task in groupby(sorted(found, key=_task_of), _task_of):
        keys = Keys()
        for feed in of_task:
            items = read_items(feed, pieces(feed.name), skipped, **decoder)
            yield filter(partial(keys.is_first, feed, skipped), items) if feed.key else items


def _task_of(feed: Feed) -> int:
    return task_of(feed.name)


def task_of(name: str) -> int:
    """Return the task index that a file's name contains: 3 for ``task-3/…`` or
    ``task-3-attempt-2/…``. If there is none, return -1.
    """
    number = name.partition("/")[0].replace("task-", "", 1).partition("-")[0]
    return int(number) if number.isdecimal() else -1


def is_items(name: str) -> bool:
    """Return whether a file with this name may contain items."""
    return bool(kind_of(name))


def feeds(names: Iterable[str], read: Callable[[str], bytes]) -> list[Feed]:
    """Return the feeds among the files of a run, in order.

    The first folder of a name is the task's. The feeds of a task are the files that ``DECLARED``
    names; if there are none, the files named ``items…``; and if there are none, all files that may
    contain items. A feed in two formats, such as ``items.jsonl`` and ``items.csv``, counts once.
    ``read`` returns the first bytes of a file.
    """
    tasks: dict[str, list[str]] = {}
    said: dict[str, list[Feed]] = {}
    for name in names:
        task, _, path = name.partition("/")
        if path == DECLARED:
            said[task] = declared_in(read(name))
        else:
            tasks.setdefault(task, []).append(path)
    return [
        feed._replace(name=f"{task}/{feed.name}")
        for task, paths in tasks.items()
        for feed in _of_task(paths, said.get(task, []))
    ]


def _of_task(paths: list[str], said: list[Feed]) -> list[Feed]:
    named = [feed for feed in said if feed.name]
    if named:
        found = [
            feed._replace(name=path)
            for path in paths
            for feed in named
            if fnmatchcase(path, feed.name)
        ]
    else:
        usual = said[0] if said else Feed("")
        near = [path for path in paths if path.count("/") < DEPTH_MAX]
        some = [path for path in near if is_items(path) and not _NO_FEED.search(path)]
        found = [
            usual._replace(name=path)
            for path in [path for path in some if _NAMED_ITEMS.search(path)] or some
        ]
    best: dict[str, Feed] = {}
    for feed in found:
        stem = _SUFFIX.sub("", feed.name) if is_items(feed.name) else feed.name
        best[stem] = min(best.get(stem, feed), feed, key=_rank)
    return list(best.values())[:FEEDS_MAX]


def _rank(feed: Feed) -> int:
    kind = feed.format or suffix_of(feed.name)
    return FORMATS.index(kind) if kind in FORMATS else len(FORMATS)


def no_feeds(names: Iterable[str], counted: int | None = None) -> str:
    """Return a sentence about files, none of which is read as items.

    ``counted`` is the number of items that the run counted.
    """
    others = [
        name for name in names if not _NO_FEED.search(name) and not name.endswith(f"/{DECLARED}")
    ]
    if not others and not counted:
        return NO_FEEDS
    told = f"{counted:,} items were counted, but " if counted else ""
    if not others:
        return (
            f"{told}there is no file with items: a pipeline may have sent them elsewhere, or a "
            "feed was not written"
        )
    some = ", ".join(others[:_NAMED_MAX]) + (
        f" and {len(others) - _NAMED_MAX:,} more" if others[_NAMED_MAX:] else ""
    )
    return (
        f"{told}no file is read as items, but these exist: {some}; name them as items in "
        "the crawler's entry"
    )
