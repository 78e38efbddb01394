"""The tools of ``make image``, without an engine: their calls to it, the archives, the bill of
materials, the list.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kubernetes.cluster import images
from tools import locks
from tools.images import base, build, listed, sbom

PLAN = build.Plan("buildah", "b1", "c0ffee", 1_700_000_000, {"RUNTIME_IMAGE": "small"})
LOCK = "shop==1.0 \\\n    --hash=sha256:" + "a" * 64 + "\n"


def test_the_list_of_images_is_that_of_the_files() -> None:
    assert listed.LIST.read_text() == listed.text(), "python3 -m tools image-list"
    assert {image.name for image in build.IMAGES} <= set(listed.found())


def test_a_build_says_no_time_and_no_engine() -> None:
    asked = build.command(build.IMAGES[0], PLAN)
    wanted = {
        "--no-cache",
        "--timestamp=1700000000",
        "--identity-label=false",
        "--build-arg=RUNTIME_IMAGE=small",
    }
    assert wanted <= set(asked)
    assert "--build-arg=BUILD_ID=b1" not in build.command(build.IMAGES[1], PLAN), (
        "it has no such argument"
    )


def test_the_base_that_ships_has_neither_pip_nor_apt() -> None:
    runtime, builds = (base.command(kind, Path("x")) for kind in ("runtime", "build"))
    assert "--variant=essential" in runtime
    assert not any("pip" in word for word in runtime)
    assert any("python3-pip" in word for word in builds)


def test_an_archive_keeps_its_digest_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_bytes(b"x" * 1000)
    layer = images.Layer(((tmp_path / "root", ""),))
    images.write_archive(tmp_path / "a.tar", "first:1", [layer], entrypoint=["/file"])
    build.renamed(tmp_path / "a.tar", tmp_path / "b.tar", "second:1")
    with build.opened(tmp_path / "a.tar") as first, build.opened(tmp_path / "b.tar") as second:
        assert first.digest == second.digest
        assert json.load(second.tar.extractfile("index.json"))["manifests"][0]["annotations"] == {  # type: ignore[arg-type]
            "io.containerd.image.name": "second:1"
        }


def test_one_bill_says_what_both_tools_found() -> None:
    parts = [
        {
            "metadata": {
                "component": {"bom-ref": "root"},
                "tools": {"components": [{"name": name}]},
            },
            "components": [{"bom-ref": f"pkg:{name}/one"}],
            "dependencies": [{"ref": "root"}, {"ref": f"pkg:{name}/one"}],
        }
        for name in ("pypi", "deb")
    ]
    made = sbom.merged("shop", "1.0", "sha256:" + "0" * 64, 0, parts)
    assert [one["bom-ref"] for one in made["components"]] == ["pkg:deb/one", "pkg:pypi/one"]
    [own] = [one for one in made["dependencies"] if "dependsOn" in one]
    assert own["ref"] == made["metadata"]["component"]["bom-ref"]
    assert own["dependsOn"] == ["pkg:deb/one", "pkg:pypi/one"]
    assert "root" not in {one["ref"] for one in made["dependencies"]}
    assert made == sbom.merged("shop", "1.0", "sha256:" + "0" * 64, 0, parts)


@pytest.mark.parametrize(
    ("digest", "needs", "complaint"),
    [
        ("a" * 64, [], []),
        ("b" * 64, [], ["shop: the hash of shop.whl is not locked"]),
        (
            "a" * 64,
            ['till; platform_machine == "aarch64"'],
            ["shop needs till; platform_machine == "],
        ),
        ("a" * 64, ['till; platform_machine == "x86_64"'], []),
    ],
)
def test_a_lock_that_fits_one_processor_only_is_complained_about(
    digest: str, needs: list[str], complaint: list[str]
) -> None:
    info = {"url": "somewhere/shop.whl", "archive_info": {"hashes": {"sha256": digest}}}
    found = [{"metadata": {"name": "shop", "requires_dist": needs}, "download_info": info}]
    said = list(locks.complaints(locks.pins(LOCK), found, "aarch64"))
    assert len(said) == len(complaint)
    assert all(one.startswith(start) for one, start in zip(said, complaint, strict=True))
