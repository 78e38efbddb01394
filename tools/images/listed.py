"""List all images that the files in ``deploy/`` name, in ``deploy/images.txt``, for installations
without access to a registry.

The chart names no images. Its images are values, and ``helm template`` with your values lists them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import yaml

from tools.images import build

DEPLOY = build.ROOT / "deploy"
LIST = DEPLOY / "images.txt"
_HEAD = """\
# The images that deploy/ names, and where. `python3 -m tools image-list` writes this list; docs/images.md: mirrors.
# Ours are built (`make image`); the others are the demo's: production has a database and a Temporal of its own.
"""


def named(value: object) -> Iterator[str]:
    """Yield each image that a document names for a container or a crawler."""
    match value:
        case dict():
            for key, inner in value.items():
                if key == "image" and isinstance(inner, str):
                    yield inner
                else:
                    yield from named(inner)
        case list():
            for inner in value:
                yield from named(inner)


def found(deploy: Path = DEPLOY) -> dict[str, set[str]]:
    """Return the folders whose files name an image, by the name of the image.

    Our images are listed without a tag, because you build them under your own tag.
    """
    where = defaultdict[str, set[str]](set)
    ours = {image.name for image in build.IMAGES}
    for file in sorted(deploy.rglob("*.yaml")):
        folder = file.parent.relative_to(deploy)
        if folder.parts[:1] == ("helm",):
            continue
        for document in yaml.safe_load_all(file.read_text()):
            # Catalogue entries without an image.
            crawlers = [build.IMAGES[1].name] if file.name == "crawlers.yaml" else []
            for image in (*named(document), *crawlers):
                bare = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
                where[bare if bare in ours else image].add("/".join(folder.parts[:2]))
    return dict(where)


def text(deploy: Path = DEPLOY) -> str:
    """Return the content of the list."""
    images = found(deploy)
    width = max(len(name) for name in images)
    lines = [
        f"{name:{width}}  # {', '.join(sorted(folders))}\n"
        for name, folders in sorted(images.items())
    ]
    return _HEAD + "".join(lines)
