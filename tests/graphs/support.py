"""Runs the examples of documents, with only their imports changed."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from types import ModuleType
from typing import Any

#: Modules of the originals, and their replacements.
IMPORTS = {
    "oban_pro": "crawler_lifecycle.graphs.oban",
    "oban": "crawler_lifecycle.graphs.oban",
    "chancy.plugins.leadership": "crawler_lifecycle.graphs.chancy",
    "chancy.plugins.workflow": "crawler_lifecycle.graphs.chancy",
    "chancy": "crawler_lifecycle.graphs.chancy",
}
#: What the documents' examples call without showing it.
OTHERS = """
import asyncio
from datetime import datetime
from crawler_lifecycle.graphs import oban
from crawler_lifecycle.graphs.oban import Record, Workflow, worker

executed = []


@worker(max_attempts=1)
class Worker:
    async def process(self, job):
        executed.append(job.name)
        if job.args.get("fails"):
            raise RuntimeError("as told")
        return Record(job.args) if job.args else None


def _worker(name):
    made = worker(max_attempts=1)(type(name, (Worker,), {"__module__": __name__, "__qualname__": name}))
    globals()[name] = made


for _name in ("Extract Transform Prepare Send Setup Cleanup Process Finish Fetch Merge Notify Summary").split():
    _worker(f"{_name}Worker")
"""


def changed(source: str) -> str:
    """Return the source with its imports changed."""
    for theirs, ours in IMPORTS.items():
        source = re.sub(
            rf"^( *from ){re.escape(theirs)}( import )", rf"\1{ours}\2", source, flags=re.MULTILINE
        )
    return source


def play(source: str, name: str = "example", before: str = OTHERS) -> Any:
    """Return the module that the source makes; whatever it awaits at its top level is awaited."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(before, f"{name}.py", "exec"), module.__dict__)
    code = compile(changed(source), f"{name}.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(code, module.__dict__)
    if inspect.iscoroutine(found):
        asyncio.run(found)
    return module
