"""The rule which files of a task are its items. The runner counts these, and all others show these.

A file is known by its name, or because a line of ``DECLARED`` names it. The runner writes that file for an entry of the
catalogue with ``items``, and for feeds of Scrapy whose names say too little; a crawler may write it, too.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from .item_reader import FORMATS, Feed, kind_of, suffix_of

#: The file in a task's folder that names more items: a JSON object a line (``declared``).
DECLARED = ".crawl_items.jsonl"
#: The most bytes and lines of it that are read.
DECLARED_MAX, LINES_MAX = 256 * 1024, 2_000
#: The most feeds of a task, and the most levels of folders in which they are found.
FEEDS_MAX, DEPTH_MAX = 2_000, 3
#: The most names of other files in a sentence.
_NAMED_MAX = 5
_NAMED_ITEMS = re.compile(r"(^|/)items[^/]*$", re.IGNORECASE)
_SUFFIX = re.compile(r"\.[^.]*(\.gz)?\Z", re.IGNORECASE)
_NO_FEED = re.compile(r"(^|/)(skipped\.jsonl$|pages/)")
#: The sentence about a run without items.
NO_FEEDS = (
    "this run has left no items yet: a crawler writes them to items.jsonl in the folder CRAWL_FILES_DIR, a JSON object "
    "a line; a Scrapy project gets such a feed by default"
)


def declared_in(text: bytes) -> list[Feed]:
    """Return the declarations in the content of ``DECLARED``. Lines that are none are left out."""
    found = []
    for line in text[:DECLARED_MAX].splitlines()[:LINES_MAX]:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(declared(json.loads(line)))
    return found


def declared(said: object) -> Feed:
    """Return a declaration: a feed with a pattern for a name, in which ``*`` stands for any characters.

    Raises ``ValueError``, which names the key, its value and the cure.
    """
    if not isinstance(said, dict) or not said:
        raise ValueError(f": {said!r:.100} is not allowed; give off, or some of {', '.join(_VALUES)}")
    for key, value in said.items():
        if key not in _VALUES:
            raise ValueError(f".{key!s:.50}: unknown key; known are {', '.join(_VALUES)}")
        if not isinstance(value, str) or not _VALUES[key][0].fullmatch(value):
            raise ValueError(f".{key}: {value!r:.100} is not allowed; give {_VALUES[key][1]}")
    return Feed(said.get("files", ""), *(said.get(name, "") for name in Feed._fields[1:]))


#: Key of a declaration -> what it may be.
_VALUES = {
    "files": (re.compile(r"(?!/|(.*/)?\.\.(/|$))(?!(.*\*){6})[^\0\n]{1,512}"), "a relative path, with * for any name"),
    "format": (re.compile("|".join(FORMATS)), f"one of {', '.join(FORMATS)}"),
    "delimiter": (re.compile(r"[\x01-\x7e]", re.DOTALL), "one character of ASCII"),
    "quote": (re.compile('none|"'), "none, or leave it out"),
}


def is_items(name: str) -> bool:
    """Return whether a file with this name may contain items."""
    return bool(kind_of(name))


def feeds(names: Iterable[str], read: Callable[[str], bytes]) -> list[Feed]:
    """Return the feeds among the files of a run, in their order.

    The first folder of a name is the task. For each task these are the files that ``DECLARED`` names, or else those
    with a name ``items…``, or else all that may contain items. A feed in two formats, such as ``items.jsonl`` and
    ``items.csv``, counts once. ``read`` returns the first bytes of a file.
    """
    tasks: dict[str, list[str]] = {}
    said: dict[str, list[Feed]] = {}
    for name in names:
        task, _, path = name.partition("/")
        if path == DECLARED:
            said[task] = declared_in(read(name))
        elif path.count("/") < DEPTH_MAX:
            tasks.setdefault(task, []).append(path)
    return [
        feed._replace(name=f"{task}/{feed.name}")
        for task, paths in tasks.items()
        for feed in _of_task(paths, said.get(task, []))
    ]


def _of_task(paths: list[str], said: list[Feed]) -> list[Feed]:
    named = [one for one in said if one.name]
    if named:
        found = [one._replace(name=path) for path in paths for one in named if fnmatchcase(path, one.name)]
    else:
        usual = said[0] if said else Feed("")
        some = [path for path in paths if is_items(path) and not _NO_FEED.search(path)]
        found = [usual._replace(name=path) for path in [path for path in some if _NAMED_ITEMS.search(path)] or some]
    best: dict[str, Feed] = {}
    for feed in found:
        stem = _SUFFIX.sub("", feed.name) if is_items(feed.name) else feed.name
        best[stem] = min(best.get(stem, feed), feed, key=_rank)
    return list(best.values())[:FEEDS_MAX]


def _rank(feed: Feed) -> int:
    kind = feed.format or suffix_of(feed.name)
    return FORMATS.index(kind) if kind in FORMATS else len(FORMATS)


def no_feeds(names: Iterable[str], counted: int | None = None) -> str:
    """Return a sentence about files of which none is read as items. ``counted``: the items that the run counted."""
    others = [name for name in names if not _NO_FEED.search(name) and not name.endswith(f"/{DECLARED}")]
    if not others and not counted:
        return NO_FEEDS
    told = f"{counted:,} items were counted, but " if counted else ""
    if not others:
        return f"{told}no file with items is there: a pipeline may have sent them elsewhere, or a feed was not written"
    some = ", ".join(others[:_NAMED_MAX]) + (f" and {len(others) - _NAMED_MAX:,} more" if others[_NAMED_MAX:] else "")
    return f"{told}no file is read as items, but these are there: {some}; name them as items in the crawler's entry"
