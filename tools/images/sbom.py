"""The bill of materials of an image, in the CycloneDX format. It lists the packages of Debian and
of Python, read from the image itself.

debsbom writes a bill of Debian's packages, and cyclonedx-py writes one of Python's packages. This
module combines them into one document about the image with its digest. Both tools are installed
from locked packages into their own environment, in a folder outside the tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
import venv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.images import base, build

LOCK = build.ROOT / "images" / "sbom" / "requirements.lock"
VERSION = "1.6"
#: A program that refuses a document that violates the CycloneDX schema. The environment of the
#: tools executes it.
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(f"not CycloneDX: {wrong}" if wrong else 0)
"""


def tools() -> Path:
    """Return the folder of the tools, and install them if they are missing."""
    kept = (
        base.cache()
        / f"sbom-{hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]}"
    )
    if not (kept / "made").exists():
        shutil.rmtree(kept, ignore_errors=True)
        venv.create(kept, with_pip=True, symlinks=True)
        install = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--require-hashes",
            "--only-binary=:all:",
            "-r",
            str(LOCK),
        ]
        subprocess.run([str(kept / "bin" / "python"), *install], check=True)
        (kept / "made").touch()
    return kept / "bin"


def written(image: build.Image, archive: Path, epoch: int) -> Path:
    """Write the document next to the archive.

    Raises ``CalledProcessError`` if the document is not valid.
    """
    programs, path = tools(), archive.with_name(f"{image.name}.cdx.json")
    with tempfile.TemporaryDirectory() as name, build.opened(archive) as opened:
        root, digest, labels = (
            Path(name, "root"),
            opened.digest,
            opened.config["config"].get("Labels") or {},
        )
        root.mkdir()
        build.unpacked(archive, root)
        parts = [_debian(programs, root, Path(name)), _python(programs, root, image, Path(name))]
    document = merged(
        image.name, labels.get("org.opencontainers.image.version", ""), digest, epoch, parts
    )
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    subprocess.run([str(programs / "python"), "-c", _VALIDATE], input=text, text=True, check=True)
    path.write_text(text)
    return path


def _debian(programs: Path, root: Path, work: Path) -> dict[str, Any]:
    made = work / "debian.cdx.json"
    what = [
        "--sbom-type=cdx",
        f"--cdx-schema-version={VERSION}",
        "--with-licenses",
        f"--out={made}",
    ]
    subprocess.run([str(programs / "debsbom"), "generate", f"--root={root}", *what], check=True)
    found: dict[str, Any] = json.loads(made.read_text())
    return found


def _python(programs: Path, root: Path, image: build.Image, work: Path) -> dict[str, Any]:
    """Return the bill of Python's packages in the image. No program of the image is executed for
    it.
    """
    [packages] = root.glob(image.packages)
    room, made = work / "venv", work / "python.cdx.json"
    venv.create(room, symlinks=True)
    [site] = room.glob("lib/python*/site-packages")
    shutil.rmtree(site)
    site.symlink_to(packages)
    what = [
        "environment",
        "--output-reproducible",
        f"--spec-version={VERSION}",
        f"--output-file={made}",
        str(room),
    ]
    clean = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
    subprocess.run([str(programs / "cyclonedx-py"), *what], check=True, env=clean)
    found: dict[str, Any] = json.loads(made.read_text())
    return found


def merged(
    name: str, version: str, digest: str, epoch: int, parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return one document about the image. The same image gives the same document."""
    reference = f"pkg:oci/{name}@{digest.replace(':', '%3A')}"
    component = {
        "type": "container",
        "bom-ref": reference,
        "name": name,
        "version": version or digest,
    }
    roots = {
        part["metadata"]["component"]["bom-ref"]
        for part in parts
        if "component" in part["metadata"]
    }
    depends = [one for part in parts for one in part["dependencies"] if one["ref"] not in roots]
    listed = [one for part in parts for one in part["components"]]
    own = {"ref": reference, "dependsOn": sorted(one["bom-ref"] for one in listed)}
    algorithm, _, value = digest.partition(":")
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, reference)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(),
            "tools": {
                "components": [
                    one for part in parts for one in part["metadata"]["tools"]["components"]
                ]
            },
            "component": {
                **component,
                "purl": reference,
                "hashes": [{"alg": {"sha256": "SHA-256"}[algorithm], "content": value}],
            },
        },
        "components": sorted(listed, key=lambda one: str(one["bom-ref"])),
        "dependencies": sorted([own, *depends], key=lambda one: str(one["ref"])),
    }


def count(document: Path) -> str:
    """Return the number of components of each kind, for people."""
    listed = json.loads(document.read_text())["components"]
    kinds = [str(one.get("purl", "")).partition("/")[0].removeprefix("pkg:") for one in listed]
    return ", ".join(f"{kinds.count(kind)} {kind or 'other'}" for kind in sorted(set(kinds)))
