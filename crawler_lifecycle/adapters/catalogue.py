"""Reads the catalogue of crawlers from a YAML file (docs/crawlers.md).

The reader is strict, and reads the file again after a change.

The file is parsed into YAML nodes, which this module converts. Only nodes have line numbers, which
people need to correct the file. An unquoted ``8400`` or ``yes`` is refused where a string is
expected. Otherwise a crawler would get a value that its author did not write.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from crawler_lifecycle.domain.coverage import ExpectedCoverage
from crawler_lifecycle.domain.crawlers.arguments import Argument, ArgumentType
from crawler_lifecycle.domain.crawlers.crawler import DOCUMENT_MAX, CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import (
    PodOptions,
    PodVolume,
    ReservedNames,
    Sidecar,
    Toleration,
)
from crawler_lifecycle.domain.ends import Ends
from crawler_lifecycle.domain.errors import CatalogueError, InvalidRequest
from crawler_lifecycle.domain.names import CRAWLER_NAME
from crawler_lifecycle.domain.resources import Resources

logger = logging.getLogger(__name__)

SIZE_MAX = 1024 * 1024
#: The maximum number of nodes after the expansion of aliases. Without this limit, a small file
#: could expand to billions of nodes ("billion laughs").
NODES_MAX = 200_000
DEPTH_MAX = 32

_DEFINITION = TypeAdapter(CrawlerDefinition)
_FIELDS = [f.name for f in fields(CrawlerDefinition) if f.name != "number"]
_PARTS = {
    "args": Argument,
    "resources": Resources,
    "kubernetes": PodOptions,
    "kubernetes.requests": Resources,
    "kubernetes.tolerations": Toleration,
    "kubernetes.volumes": PodVolume,
    "ends": Ends,
    "kubernetes.sidecars": Sidecar,
    "kubernetes.sidecars.resources": Resources,
}
_KNOWN = {"": _FIELDS, **{path: [f.name for f in fields(part)] for path, part in _PARTS.items()}}

#: The tags of keys.
_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:bool")
#: The types of arguments whose values need no quotes in the file.
_UNQUOTED = frozenset(kind.value for kind in ArgumentType if kind is not ArgumentType.STRING)

#: Keys of quantities, which Kubernetes also accepts as numbers, and the parts whose keys people
#: choose freely.
_QUANTITIES = frozenset(("cpu", "memory", "shm", "scratch", "empty_dir"))
_OF_PEOPLE = ("args", "env", "settings")

Path_ = tuple[str | int, ...]
NOTHING_OWNED = ReservedNames()


class YamlCatalogue:
    """The port ``Catalogue`` over a file.

    The constructor raises ``CatalogueError`` if the file cannot be used. If the file becomes
    invalid later, its last valid content stays in use. ``more`` is a second file for names that the
    first one does not declare. ``owned`` contains names that no entry may use. ``say`` is called
    with a line when a file becomes unreadable, and when it is readable again.
    """

    def __init__(
        self,
        path: Path | str,
        more: Path | str | None = None,
        owned: ReservedNames = NOTHING_OWNED,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self.path = Path(path)
        self._owned = owned
        self._problem: str | None = None
        self._say = say
        self._more = None if more is None else YamlCatalogue(more, owned=owned, say=say)
        self._lock = threading.Lock()
        self._stamp = self._stat()
        self._crawlers = {c.name: c for c in load(self.path, owned)}
        self._read_at = _minute()

    @property
    def problem(self) -> str | None:
        """The error from the last read; ``None`` if the newest version of each file is in use."""
        return self._problem or (None if self._more is None else self._more.problem)

    def get(self, name: str) -> CrawlerDefinition | None:
        """Return the crawler with this name, or ``None``."""
        found = self._current().get(name)
        return self._more.get(name) if found is None and self._more is not None else found

    def all(self) -> list[CrawlerDefinition]:
        """Return all crawlers in the order of the file, followed by those of the second file."""
        own = self._current()
        more = [] if self._more is None else [c for c in self._more.all() if c.name not in own]
        return [*own.values(), *more]

    def _stat(self) -> tuple[int, ...] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _current(self) -> dict[str, CrawlerDefinition]:
        with self._lock:
            # This comes before the file is read, so that the next call notices a change that
            # happens while the file is being read.
            stamp = self._stat()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._crawlers = {c.name: c for c in load(self.path, self._owned)}
                except CatalogueError as error:
                    place, _, why = str(error).partition(": ")
                    held = f"the list read at {self._read_at} applies"
                    self._problem = f"{place} has not been read since {_minute()}: {why}; {held}"
                    self._say(self._problem)
                else:
                    if self._problem is not None:
                        self._say(f"{self.path} can be read again")
                    self._problem = None
                    self._read_at = _minute()
            return self._crawlers


def read_document(
    document: Mapping[str, Any], owned: ReservedNames = NOTHING_OWNED
) -> CrawlerDefinition:
    """Read an entry that is not from a file, with the rules of a file.

    Raises ``InvalidRequest``, which begins with the key.
    """
    text = json.dumps(document)
    if len(text) > DOCUMENT_MAX:
        raise InvalidRequest(f"document: larger than {DOCUMENT_MAX} characters; make it smaller")
    try:
        return _Reader(None, owned, lines={(): 0}).checked(json.loads(text))
    except CatalogueError as error:
        raise InvalidRequest(str(error)) from None


def _minute() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def load(path: Path, owned: ReservedNames = NOTHING_OWNED) -> list[CrawlerDefinition]:
    """Read a catalogue once. ``owned`` contains names that no entry may use.

    Raises ``CatalogueError`` with the file, line, key, error and fix.
    """
    reader = _Reader(path, owned)
    root = reader.root()
    found: list[CrawlerDefinition] = []
    lines: dict[str, int] = {}
    for node in root.value:
        definition = reader.definition(node)
        line = _line(node)
        if definition.name in lines:
            raise reader.error(
                line,
                "name",
                f"{definition.name!r} is already declared on line {lines[definition.name]}; "
                "rename one",
            )
        lines[definition.name] = line
        found.append(definition)
    return found


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


@dataclass
class _Reader:
    """Reads a file, or a document without a ``path``, once."""

    path: Path | None
    owned: ReservedNames
    nodes: int = 0
    lines: dict[Path_, int] = field(default_factory=dict)
    """The line of each path in the current entry."""
    written: dict[Path_, str] = field(default_factory=dict)
    """The scalars of the current entry as they are written in the file, because an error about
    ``yes`` must not show ``true``.
    """

    def error(self, line: int | None, key: str, text: str) -> CatalogueError:
        where = f"{self.path}:{line}" if line else str(self.path or "")
        return CatalogueError(": ".join(part for part in (where, key, text) if part))

    def at(self, path: Path_, text: str, line: int | None = None) -> CatalogueError:
        """Return an error about a path of the current entry, with the line of the nearest node in
        the file.
        """
        near = path
        while near and near not in self.lines:
            near = near[:-1]
        return self.error(line or self.lines[near], _dotted(path), text)

    def root(self) -> yaml.SequenceNode:
        """Return the top-level list. Raises ``CatalogueError``."""
        assert self.path is not None
        try:
            with self.path.open("rb") as file:
                raw = file.read(SIZE_MAX + 1)
        except OSError as error:
            fix = "give the path of a readable crawlers.yaml (LIFECYCLE_CATALOGUE)"
            raise self.error(None, "", f"cannot be read ({error.strerror}); {fix}") from None
        if len(raw) > SIZE_MAX:
            raise self.error(None, "", f"larger than {SIZE_MAX} bytes; split the catalogue")
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise self.error(
                line, "", f"byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8"
            ) from None
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            raise self.error(
                line, "", f"not valid YAML: {error.problem or error}; correct this line"
            ) from None
        except yaml.YAMLError as error:
            first = str(error).splitlines()[0]
            raise self.error(
                None, "", f"not valid YAML: {first}; remove the characters that YAML does not allow"
            ) from None
        except RecursionError:
            raise self.error(
                None, "", "nested too deeply; a catalogue is a flat list of crawlers"
            ) from None
        if root is None or (isinstance(root, yaml.SequenceNode) and not root.value):
            raise self.error(None, "", "empty; declare at least one crawler: '- name: …'")
        if not isinstance(root, yaml.SequenceNode):
            raise self.error(_line(root), "", "not a list; begin every crawler with '- name: …'")
        return root

    def definition(self, node: yaml.Node) -> CrawlerDefinition:
        """Return one entry of the list after all checks."""
        if not isinstance(node, yaml.MappingNode):
            raise self.error(
                _line(node), "", "not a crawler; each entry is '- name: …' with its keys below"
            )
        self.lines = {(): _line(node)}
        self.written = {}
        definition = self.checked(self._plain(node, ()))
        written = definition.project
        if written is None or definition.package is not None:
            return definition
        assert self.path is not None
        return replace(definition, project=os.path.normpath(self.path.absolute().parent / written))

    def checked(self, data: dict[str, Any]) -> CrawlerDefinition:
        """Return the entry with these keys after all checks."""
        self._as_written(data)
        try:
            if isinstance(expect := data.get("expect"), dict):
                ExpectedCoverage.of(
                    expect
                ).check()  # this error is more detailed than those of the types
            definition = _DEFINITION.validate_json(json.dumps(data), strict=True)
            self._check(definition)
        except ValidationError as error:
            raise self._explain(error, data) from None
        except InvalidRequest as error:
            raise self._of_domain(error, data.get("name")) from None
        pod = definition.kubernetes
        if definition.project is None or pod.project is not None:
            return definition
        # A pod's project is a folder of its image, so its path stays as written.
        return replace(definition, kubernetes=replace(pod, project=definition.project))

    def _as_written(self, data: Any) -> None:
        """Replace unquoted defaults and choices with their text in the file if the argument's type
        is not text.

        ``ends: wget`` is short for ``ends: {like: wget}``.
        """
        if isinstance(data.get("ends"), str):
            data["ends"] = {"like": data["ends"]}
        declared = data.get("args")
        for name, argument in declared.items() if isinstance(declared, dict) else ():
            if not isinstance(argument, dict) or argument.get("type") not in _UNQUOTED:
                continue
            at: Path_ = ("args", name)
            if isinstance(argument.get("default"), bool | int | float):
                argument["default"] = self._text_at((*at, "default"), argument["default"])
            if isinstance(choices := argument.get("choices"), list):
                argument["choices"] = [
                    self._text_at((*at, "choices", n), choice)
                    if isinstance(choice, bool | int | float)
                    else choice
                    for n, choice in enumerate(choices)
                ]

    def _text_at(self, path: Path_, value: object) -> str:
        return self.written.get(path) or json.dumps(value)

    def _check(self, definition: CrawlerDefinition) -> None:
        """Check the rules that the types of a definition do not express.

        Raises ``InvalidRequest``.
        """
        if not CRAWLER_NAME.fullmatch(definition.name):
            raise InvalidRequest(
                f"name: {_shown(definition.name)} is not allowed; give 1 to 63 characters of a-z, "
                "0-9, '-', '_' and "
                "'.', and end in a letter or digit"
            )
        if (
            definition.kind is CrawlerKind.SCRAPY
            and definition.project is None
            and definition.image is None
            and definition.package is None
        ):
            raise InvalidRequest(
                "project: missing; name the folder of the Scrapy project, or an image or a package "
                "that contains it"
            )
        if definition.number is not None:
            raise InvalidRequest("number: the database counts it; remove it")
        if definition.files_max is not None and definition.files_max < 0:
            raise InvalidRequest(
                f"files_max: {definition.files_max} is not allowed; give 0 or more"
            )
        for path, text in _texts(definition):
            if "\0" in text:
                raise InvalidRequest(
                    f"{path}: contains a NUL character, which no process can receive; remove it"
                )
        self.owned.check(definition.kubernetes, definition.secrets)

    # --- nodes to plain data, with the line of every path -----------------------------------------

    def _plain(self, node: yaml.Node, path: Path_) -> Any:
        self.nodes += 1
        if self.nodes > NODES_MAX or len(path) > DEPTH_MAX:
            raise self.at(
                path,
                "too large once its aliases are followed, or too deep; make it smaller",
                _line(node),
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self.lines |= {(*path, n): _line(child) for n, child in enumerate(node.value)}
            return [self._plain(child, (*path, n)) for n, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        if node.tag != "tag:yaml.org,2002:map":
            raise self.at(
                path, f"the tag {_shown(node.tag)} is not allowed; remove it", _line(node)
            )
        plain: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise self.error(line, "<<", "merge keys are not supported; write the keys out")
            # YAML 1.1 reads the keys ``on``, ``off``, ``yes`` and ``no`` as booleans. Here they are
            # plain text.
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in _KEY_TAGS:
                shown = _shown(getattr(key_node, "value", "a list or mapping"))
                raise self.at(path, f"the key {shown} is not a string; put it in quotes", line)
            key = str(key_node.value)
            here = (*path, key)
            if key in plain:
                raise self.at(
                    here, f"appears twice, first on line {self.lines[here]}; remove one", line
                )
            self.lines[here] = line
            plain[key] = self._plain(value_node, here)
        return plain

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        text = str(node.value)
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        self.written[path] = text
        number = kind in ("int", "float")
        if kind == "str" or (number and path[-1] in _QUANTITIES and path[0] not in _OF_PEOPLE):
            return text
        if kind == "null":
            return None
        if kind in ("bool", "int", "float"):
            try:
                # Only these three standard tags reach the constructor, so it can return only a
                # plain value.
                value = yaml.constructor.SafeConstructor().construct_object(node)
            except (ValueError, KeyError):
                value = math.nan
            if isinstance(value, float) and not math.isfinite(value):
                raise self.at(
                    path,
                    f"{_shown(text)} is not a finite number; give one",
                    _line(node),
                )
            return value
        if kind == "timestamp":
            raise self.at(
                path, f'{text} is read as a date; put it in quotes: "{text}"', _line(node)
            )
        raise self.at(path, f"the tag {_shown(node.tag)} is not allowed; remove it", _line(node))

    # --- errors -----------------------------------------------------------------------------------

    def _explain(self, error: ValidationError, data: dict[str, Any]) -> CatalogueError:
        """Return a readable message for the first error."""
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InvalidRequest):
            return self._of_domain(cause, data.get("name"), tuple(first["loc"]))
        path = tuple(first["loc"])
        value = first.get("input")
        kind = first["type"]
        if kind == "missing":
            return self.at(path, "missing; add it")
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            around = [str(part) for part in path[:-1] if not isinstance(part, int)]
            known = _KNOWN.get(".".join(around)) or _KNOWN.get(next(iter(around), ""), _FIELDS)
            return self.at(path, f"unknown key; known: {', '.join(known)}")
        if kind == "string_type":
            written = self.written.get(path)
            if written is None:
                text = f"{_shown(value)} is not a string; give one string"
            else:
                text = (
                    f"{written or 'nothing'} is not a string; "
                    f"put it in quotes: {json.dumps(written)}"
                )
            return self.at(path, text)
        words = str(first["msg"])
        return self.at(path, f"{_shown(value)} is not allowed; {words[:1].lower()}{words[1:]}")

    def _of_domain(self, error: InvalidRequest, name: object, at: Path_ = ()) -> CatalogueError:
        """Return a domain error with its file and line.

        The error text starts with the key (``limits.stop_grace_s: …``), in some cases after the
        crawler's name. ``at`` is the path of the part that raised it, because a part only knows its
        own keys.
        """
        text = str(error)
        found = re.match(
            rf"(?:{re.escape(str(name))}: )?([A-Za-z_][\w.\-]*(?:\[\d+\][\w.\-]*)*): ", text
        )
        if found is None:
            return self.at(at, text)
        path: Path_ = tuple(
            int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", found[1])
        )
        if path[0] == "resources" and at:
            path = path[1:]
        if not at or path[0] != at[0]:
            path = (*at, *path)
        return self.at(path, text[found.end() :])


def _texts(definition: CrawlerDefinition) -> Iterator[tuple[str, str]]:
    """Yield each string that is passed to a process, with its key."""
    for name in ("project", "spider", "image"):
        value = getattr(definition, name)
        if value is not None:
            yield name, value
    if definition.kubernetes.project is not None:
        yield "kubernetes.project", definition.kubernetes.project
    yield from ((f"command[{n}]", word) for n, word in enumerate(definition.command))
    for name, argument in definition.args.items():
        yield from ((f"args.{name}", text) for text in (argument.default or "", *argument.choices))
    for section in ("settings", "env"):
        yield from (
            (f"{section}.{name}", value) for name, value in getattr(definition, section).items()
        )


def _dotted(path: Path_) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class EmptyCatalogue:
    """A catalogue without crawlers."""

    problem = None

    def get(self, name: str) -> CrawlerDefinition | None:
        """Return ``None``."""
        return None

    def all(self) -> list[CrawlerDefinition]:
        """Return an empty list."""
        return []
