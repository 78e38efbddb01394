"""Finds the spiders of the Scrapy project in the working directory. Only host processes use it."""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
from typing import Any

#: The maximum number of characters of a traceback, and the maximum length of a default.
_TRACEBACK_MAX = 3000
_DEFAULT_MAX = 1000
#: Parameters that Scrapy itself passes.
_OF_SCRAPY = frozenset({"name"})


def found() -> dict[str, Any]:
    """Return the spiders by name, or the end of the traceback if the project cannot be imported."""
    try:
        return {"spiders": _spiders()}
    except BaseException as error:  # sys.exit() at import is a failure, too
        return {"failed": _reason(error)}


def _reason(error: BaseException) -> str:
    """Return the end of a traceback, with the lines of the project only."""
    here = os.path.join(os.getcwd(), "")
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(here)
    ]
    lines = [*traceback.format_list(own), *traceback.format_exception_only(error)]
    return "".join(lines).replace(here, "").strip()[-_TRACEBACK_MAX:]


def _spiders() -> list[dict[str, Any]]:
    project = importlib.import_module("scrapy.utils.project")
    loader = importlib.import_module("scrapy.spiderloader")
    settings = project.get_project_settings()
    settings.set("SPIDER_LOADER_WARN_ONLY", False)
    spiders = loader.get_spider_loader(settings)
    return [
        {"name": name, "args": _arguments(spiders.load(name))} for name in sorted(spiders.list())
    ]


def _arguments(spider: type) -> dict[str, Any]:
    """Return the arguments in the signature of a spider."""
    return {
        name: _rule(parameter)
        for name, parameter in inspect.signature(spider).parameters.items()
        if name not in _OF_SCRAPY
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _rule(parameter: inspect.Parameter) -> dict[str, Any]:
    if parameter.default is parameter.empty:
        return {"required": True}
    default = parameter.default
    simple = isinstance(default, str | int | float) and len(str(default)) <= _DEFAULT_MAX
    return {"default": str(default) if simple else None}
