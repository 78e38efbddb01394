"""YAML and JSON files with definitions, read strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from crawler_lifecycle.cli.inputs import content_of
from crawler_lifecycle.cli.problems import WrongUsage

#: The kinds of definitions in a folder, with the key that names each.
KINDS: Mapping[str, str] = {
    "pools": "name",
    "crawlers": "name",
    "sites": "site",
    "schedules": "name",
    "webhooks": "name",
}
_ENDINGS = (".yaml", ".yml", ".json")
#: The maximum number of files in a folder.
FILES_MAX = 2000


@dataclass(frozen=True, slots=True)
class Definition:
    """One definition, and the file that contains it."""

    file: Path
    document: dict[str, Any]


class _Loader(yaml.SafeLoader):
    """Reads dates as text, and refuses aliases and repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            text = "aliases are not supported; write the value out"
            raise yaml.MarkedYAMLError(None, None, text, mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, str):
                problem = "is not a string; put it in quotes"
            elif key in keys:
                problem = "appears twice; remove one"
            if problem is not None:
                text = f"the key {key_node.value!r} {problem}"
                raise yaml.MarkedYAMLError(None, None, text, key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_file(file: Path) -> list[Any]:
    """Return the documents of a YAML or JSON file; ``-`` is standard input.

    Raises ``WrongUsage``, which names the line.
    """
    content = content_of(file, "-f")
    try:
        found = [part for part in yaml.load_all(content, _Loader) if part is not None]
        json.dumps(found, allow_nan=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise WrongUsage(f"{where}: {error.problem or 'not valid YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise WrongUsage(f"{file}: not valid YAML", why=first or type(error).__name__) from None
    return found


def definitions_in(place: Path) -> dict[str, dict[str, Definition]]:
    """Return the definitions in a file, or in all files of a folder, by kind and name. A kind that
    no file names is left out.

    Raises ``WrongUsage`` for a definition without a name, and for two of the same name.
    """
    files = [place] if not place.is_dir() else _files_in(place)
    found: dict[str, dict[str, Definition]] = {}
    for file in files:
        for document in read_file(file):
            for kind, definitions in _sections(file, document):
                known = found.setdefault(kind, {})
                for name, definition in _named(file, kind, definitions):
                    if name in known:
                        raise WrongUsage(
                            f"{file}: {kind}: {name!r} is also in {known[name].file}; remove one"
                        )
                    known[name] = Definition(file, definition)
    if not files:
        raise WrongUsage(f"-f {place}: no file ends in {', '.join(_ENDINGS)}")
    return found


def _files_in(folder: Path) -> list[Path]:
    found = [
        file
        for file in sorted(folder.rglob("*"))
        if file.suffix in _ENDINGS
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]
    if len(found) > FILES_MAX:
        raise WrongUsage(f"-f {folder}: more than {FILES_MAX} files; name a folder below it")
    return found


def _sections(file: Path, document: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield each kind in a document with its definitions. A list contains crawlers, as in a
    catalogue file.
    """
    if isinstance(document, list):
        document = {"crawlers": document}
    if not isinstance(document, dict):
        raise WrongUsage(f"{file}: not a list of crawlers, and no mapping of {', '.join(KINDS)}")
    for kind, definitions in document.items():
        if kind not in KINDS:
            raise WrongUsage(f"{file}: {kind!r} is not a kind; known: {', '.join(KINDS)}")
        if definitions is not None and not isinstance(definitions, list):
            raise WrongUsage(
                f"{file}: {kind}: not a list; begin each entry with '- {KINDS[kind]}:'"
            )
        yield kind, definitions or []


def _named(file: Path, kind: str, definitions: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    key = KINDS[kind]
    for n, definition in enumerate(definitions):
        name = definition.get(key) if isinstance(definition, dict) else None
        if not isinstance(name, str) or not name:
            raise WrongUsage(f"{file}: {kind}[{n}].{key}: missing; give a name")
        yield name, definition
