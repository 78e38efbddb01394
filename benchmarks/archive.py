"""Zip and upload of supporting files to S3, compared with an upload of the same bytes without
packing.

The server is `rclone serve s3` over a local folder. The content is three quarters text of pages and
one quarter random bytes. The baseline writes the standard library's uncompressed zip into the same
parts, without digests or a manifest. Each export is a separate process; its memory is the growth of
its peak (VmHWM) after all imports and connections. The parts alone are three buffers of 8 MiB.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from benchmarks.sizes import size
from crawler_lifecycle.adapters.archive.s3.archive import S3Archive
from crawler_lifecycle.adapters.archive.zip.stream import Digesting
from crawler_lifecycle.ports.files import FileSource
from tests.support.s3 import S3Server, aws_environment, rclone_s3

REPETITIONS = size(3, 1)
MIB = 2**20
#: Name -> number of files, bytes of each.
SHAPES = {
    "many x 100 KiB": (size(2000, 20), 100 * 1024),
    "few x 100 MiB": (size(10, 1), size(100, 1) * MIB),
}
#: The sources, and the larger of the two archives on the server twice, while it is replaced.
_DISK_NEEDED = size(5 * 2**30, 2**28)
_BLOCK = 16 * 1024


async def main() -> None:
    """Run both kinds in turn, and print medians, their ratio and the memory."""
    await asyncio.to_thread(_main)


def _main() -> None:
    with tempfile.TemporaryDirectory(prefix="archive-bench-") as name, rclone_s3() as server:
        folder = Path(name)
        if (free := shutil.disk_usage(folder).free) < _DISK_NEEDED:
            print(
                f"not measured: {folder} has {free // MIB} MiB free, {_DISK_NEEDED // MIB} "
                "are needed"
            )
            return
        for shape, (count, size) in SHAPES.items():
            _write(folder / "files", count, size)
            _measure(server, folder / "files", shape, count * size)
            shutil.rmtree(folder / "files")


def _measure(server: S3Server, files: Path, shape: str, total: int) -> None:
    bucket = server.bucket().name
    found: dict[str, list[dict[str, float]]] = {"packed": [], "stored": []}
    for _ in range(REPETITIONS):
        for kind, results in found.items():
            results.append(_exported(server, kind, f"s3://{bucket}/{kind}", files))
    speeds = {
        kind: statistics.median(total / r["seconds"] / 1e6 for r in results)
        for kind, results in found.items()
    }
    for kind, results in found.items():
        memory = max(r["memory_mib"] for r in results)
        share = results[0]["bytes"] / total
        print(
            f"{shape} {kind:6}: {speeds[kind]:6.0f} MB/s of files, {share:.2f} of their size, "
            f"{memory:.0f} MiB memory"
        )
    print(f"{shape} ratio : {speeds['packed'] / speeds['stored']:.2f}", flush=True)


def _exported(server: S3Server, kind: str, url: str, files: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.archive", kind, url, str(files)],
        env={**os.environ, **aws_environment(server.url)},
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _write(folder: Path, count: int, size: int) -> None:
    chance = random.Random(count)
    words = [
        "".join(chance.choices("etaoinshrdlucmfwyp", k=chance.randint(2, 11))) for _ in range(4000)
    ]
    pages = []
    while sum(map(len, pages)) < 8 * MIB:
        text = " ".join(chance.choices(words, k=2000))
        pages.append(
            '<div class="item"><a '
            f'href="/page/{chance.random()}">{text[:40]}</a><p>{text}</p></div>\n'
        )
    pool = "".join(pages).encode()
    folder.mkdir()
    for number in range(count):
        with (folder / f"page-{number:05}.html").open("wb") as file:
            for block in range(-(-size // _BLOCK)):
                length = min(_BLOCK, size - block * _BLOCK)
                start = chance.randrange(len(pool) - _BLOCK)
                file.write(
                    chance.randbytes(length) if block % 4 == 3 else pool[start : start + length]
                )


# --- the exporting process


def _export(kind: str, url: str, files: Path) -> None:
    archive = S3Archive(url)
    archive.bucket.client  # noqa: B018
    export = cast(
        dict[str, Callable[[S3Archive, Path], int]], {"packed": _packed, "stored": _stored}
    )[kind]
    before = _peak()
    began = time.perf_counter()
    size = export(archive, files)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "memory_mib": (_peak() - before) / 1024, "bytes": size}))


def _packed(archive: S3Archive, files: Path) -> int:
    return archive.store(
        "7/1/files.zip", [FileSource("0/1", files)], {"run_id": 7}, lambda *_: None
    ).bytes


def _stored(archive: S3Archive, files: Path) -> int:
    from crawler_lifecycle.adapters.archive.s3.upload import PART_BYTES, Upload

    bucket = archive.bucket
    with Upload(bucket.client, bucket.name, "stored.zip", {}, PART_BYTES, lambda: None) as upload:
        stream = _Counting(upload)
        with zipfile.ZipFile(cast(Any, stream), "w", zipfile.ZIP_STORED) as packed:
            for path in sorted(files.iterdir()):
                with path.open("rb") as file, packed.open(path.name, "w") as member:
                    shutil.copyfileobj(file, member, MIB)
        upload.finish("", 0)
    return stream.size


class _Counting(Digesting):
    """A stream that counts bytes without a digest."""

    def write(self, data: bytes) -> int:
        self.size += len(data)
        cast(Any, self._target).write(data)
        return len(data)


def _peak() -> int:
    """Return the peak of this process's resident memory, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    _export(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
