"""Reading the OCI archives that the tests assemble."""

from __future__ import annotations

import json
import tarfile
from typing import IO, Any

from tests.support import crawler_image, service_image


def blob(archive: tarfile.TarFile, digest: str) -> IO[bytes]:
    """Return the content with this digest."""
    file = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
    assert file is not None
    return file


def manifest_of(archive: tarfile.TarFile) -> tuple[Any, str]:
    """Return the manifest of the archive's only image, and the name under which containerd will
    know it.
    """
    index = archive.extractfile("index.json")
    assert index is not None
    [entry] = json.loads(index.read())["manifests"]
    return json.loads(blob(archive, entry["digest"]).read()), entry["annotations"][
        "io.containerd.image.name"
    ]


def assert_as_made(
    archive: tarfile.TarFile, manifest: Any, made: crawler_image.Recipe | service_image.Recipe
) -> None:
    """Check that the image has the user, the folder, the entry point and the environment of its
    Dockerfile.
    """
    config = json.loads(blob(archive, manifest["config"]["digest"]).read())["config"]
    assert (config["User"], config["WorkingDir"], config["Entrypoint"]) == (
        made.user,
        made.workdir,
        made.entrypoint,
    )
    assert made.env.items() <= dict(pair.split("=", 1) for pair in config["Env"]).items()
