"""A hook of MkDocs that adds pages that are not files in ``docs/``, and adapts Markdown that MkDocs
cannot show.

``openapi.md`` is generated from ``openapi.json``. A link to a file of the project outside ``docs/``
becomes its path, because the site does not contain the file. A link to a file that does not exist
causes a warning, which ``--strict`` refuses.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: The logger of MkDocs, so that its warnings count with ``--strict``.
LOG = logging.getLogger("mkdocs.hooks.site")
ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\" >]+)"
)
ROLES = {"read": 1, "operate": 2, "admin": 3}


def on_files(files: Any, config: Any) -> Any:
    """Add the page of the HTTP API."""
    from mkdocs.structure.files import File

    document = json.loads((Path(config["docs_dir"]) / "openapi.json").read_text())
    files.append(File.generated(config, "openapi.md", content="\n".join(api(document))))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page in the form that MkDocs needs."""
    return "\n".join(parted(outside(markdown, page.file.src_path)))


def on_post_page(output: str, page: Any, **_: Any) -> None:
    """Warn about everything that the page would request from another server."""
    for address in LOADED.findall(output):
        LOG.warning("%s loads %s from another server", page.file.src_path, address)


def outside(markdown: str, name: str) -> str:
    """Return the text with paths instead of links to files that are not part of the site."""

    def path(link: re.Match[str]) -> str:
        if not (ROOT / link[2]).exists():
            LOG.warning("%s links to %s, which does not exist", name, link[2])
        return (
            f"`{link[2]}`"
            if Path(link[1]).name == Path(link[2]).name
            else f"{link[1]} (`{link[2]}`)"
        )

    return OUTSIDE.sub(path, markdown)


def parted(markdown: str) -> Iterator[str]:
    """Return the lines in the form that Python's Markdown needs: with an empty line before each
    list or table, and with only one word after a fence.
    """
    before, fence = "", False
    for line in markdown.splitlines():
        if line.lstrip().startswith("```"):
            # A second word after a fence is only for our tests.
            fence, line = not fence, re.sub(r"^(```\w+) .*", r"\1", line)
        new = re.match(r"[-*] |\d+\. |\|", line)
        if (
            new
            and not fence
            and before
            and before[0] not in " |-*"
            and not re.match(r"\d+\. ", before)
        ):
            yield ""
        yield line
        before = line


def api(document: Mapping[str, Any]) -> Iterator[str]:
    """Return the page about every route and every value in its requests and answers."""
    yield "# Every route of the HTTP API\n"
    yield (
        "Generated from [openapi.json](openapi.json), which client generators can use. "
        f"{document['info']['description']}"
    )
    yield (
        "[The gateway](gateway.md) explains how to use it, and every error code is in [problem "
        "documents](problems.md).\n"
    )
    for path, methods in document["paths"].items():
        yield f"\n## {path}\n"
        for method, said in methods.items():
            yield from operation(method, said)
    yield "\n## Values\n"
    for name, schema in document["components"]["schemas"].items():
        yield f"\n### {name}\n"
        yield from fields(schema)


def operation(method: str, said: Mapping[str, Any]) -> Iterator[str]:
    """Return the section about one operation: its purpose, callers, parameters, body and answers."""
    yield f"\n### {method.upper()}: {said['operationId']}\n"
    yield f"\n{said.get('description', said.get('summary', ''))}\n"
    roles = {
        role for one in said.get("security", []) for role in one.get("bearer", []) if role in ROLES
    }
    if roles:
        yield f"\nRole: `{min(roles, key=ROLES.__getitem__)}`\n"
    if rows := said.get("parameters"):
        yield "\n| parameter | in | type | meaning |\n|---|---|---|---|"
        for one in rows:
            need = ", required" if one.get("required") else ""
            yield (
                f"| `{one['name']}` | {one['in']}{need} | {kind(one['schema'])} | "
                f"{cell(one.get('description'))} |"
            )
    for media, body in said.get("requestBody", {}).get("content", {}).items():
        yield f"\nBody (`{media}`): {kind(body.get('schema', {}))}\n"
    yield "\n| answer | holds |\n|---|---|"
    for status, answer in said["responses"].items():
        if "$ref" in answer:
            yield f"| {status} | a [problem document](problems.md) |"
            continue
        bodies = answer.get("content", {}).items()
        what = ", ".join(f"{kind(one.get('schema', {}))} (`{media}`)" for media, one in bodies)
        yield f"| {status} | {cell(answer['description'])}{': ' + what if what else ''} |"


def fields(schema: Mapping[str, Any]) -> Iterator[str]:
    """Return the section about a schema: its description and its fields."""
    yield f"\n{schema.get('description', '')}\n"
    if "properties" not in schema:
        yield f"\n{kind(schema)}\n"
        return
    yield "\n| field | type | meaning |\n|---|---|---|"
    for name, one in schema["properties"].items():
        need = "" if name in schema.get("required", []) else ", optional"
        yield f"| `{name}` | {kind(one)}{need} | {cell(one.get('description'))} |"


def kind(schema: Mapping[str, Any]) -> str:
    """Return the type of a value in a few words. A named type is a link."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(kind(one) for one in schema[several])
    if "enum" in schema:
        return ", ".join(f"`{cell(str(value))}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{cell(str(schema['const']))}`"
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    return cell(str(schema.get("format") or schema.get("type") or "any"))


def cell(text: str | None) -> str:
    """Return the text in a form that a cell of a table can contain."""
    return " ".join((text or "").split()).replace("|", "\\|")
