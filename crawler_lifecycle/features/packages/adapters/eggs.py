"""Packs an egg or a wheel again as a package.

The runner executes unpacked code, and Scrapy finds the settings of unpacked code only in
``scrapy.cfg``. An egg has no such file: there, the entry point ``settings`` of the group ``scrapy``
names the module.
"""

from __future__ import annotations

import configparser
import re
from typing import IO

from crawler_lifecycle.runner.package import BadPackage, Package

from .packing import new_zip, write_file

CFG = "scrapy.cfg"
_ENTRY_POINTS = re.compile(r"(EGG-INFO|[^/]+\.(egg|dist)-info)/entry_points\.txt")
_ENTRY_POINTS_MAX = 64 * 1024
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def repack(source: IO[bytes], target: IO[bytes]) -> bool:
    """Write the package with the code of an egg or a wheel to ``target``. Return whether it is a
    Scrapy project.

    Compiled files are left out, because they contain times. Raises ``BadPackage`` for a zip that
    cannot be used.
    """
    package = Package(source)
    paths = sorted(path for path in package.paths if not path.endswith((".pyc", ".pyo")))
    module = None if CFG in paths else _settings_of(package)
    with new_zip(target) as archive:
        for path in paths:
            write_file(archive, path, package.blocks(path))
        if module is not None:
            write_file(archive, CFG, [f"[settings]\ndefault = {module}\n".encode()])
    return CFG in paths or module is not None


def _settings_of(package: Package) -> str | None:
    """Return the name of the settings module, if an entry point names it. Raises
    ``BadPackage``.
    """
    for path in filter(_ENTRY_POINTS.fullmatch, package.paths):
        content = package.read(path, _ENTRY_POINTS_MAX) or b""
        found = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        try:
            found.read_string(content.decode())
        except (configparser.Error, UnicodeDecodeError) as error:
            raise BadPackage(f"{path}: cannot be read: {str(error)[:200]}") from None
        module = found.get("scrapy", "settings", fallback="")
        if _MODULE.fullmatch(module):
            return module
    return None
