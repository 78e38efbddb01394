"""The command for our container images, which the Makefile calls."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.images import base, build, listed, sbom


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.images", description=__doc__)
    parser.add_argument("verb", choices=("build", "again", "base", "list"))
    parser.add_argument(
        "--fresh", action="store_true", help="build the base image again, with Debian's updates"
    )
    parser.add_argument("--only", action="append", help="name of an image")
    given = parser.parse_args()
    chosen = [image for image in build.IMAGES if given.only is None or image.name in given.only]
    if given.verb == "base":
        for kind in base.PACKAGES:
            print(base.made(kind, fresh=given.fresh))
        return 0
    if given.verb == "list":
        listed.LIST.write_text(listed.text())
        return 0
    if given.verb == "build":
        plan = build.plan(fresh=given.fresh)
        for image, path in build.all_built(plan, chosen):
            document = sbom.written(image, path, plan.epoch)
            print(
                f"  {document.name}: valid CycloneDX {sbom.VERSION}, {sbom.count(document)}",
                flush=True,
            )
        return 0
    return again(chosen)


def again(chosen: list[build.Image]) -> int:
    """Build the images once more, and compare the digests."""
    with tempfile.TemporaryDirectory() as name:
        other = []
        for image, path in build.all_built(build.plan(), chosen, Path(name)):
            with build.opened(path) as now, build.opened(build.DIST / path.name) as before:
                same = now.digest == before.digest
                print(
                    f"{image.name}: {'the same digest' if same else 'ANOTHER digest'} as that of "
                    "dist/images"
                )
                other += [] if same else [image.name]
    return len(other) > 0


if __name__ == "__main__":
    sys.exit(main())
