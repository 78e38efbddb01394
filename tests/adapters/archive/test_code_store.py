"""The code store in a folder and in a bucket: versions are complete or missing, and the bucket may
be unavailable.
"""

from __future__ import annotations

import io
import os
from datetime import timedelta
from pathlib import Path

import pytest

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.features.packages.adapters import code_store
from crawler_lifecycle.features.packages.adapters.code_store import open_code_store
from crawler_lifecycle.features.packages.ports import CodeStore
from tests.support.fakes.packages import FakeCodeStore
from tests.support.s3 import Bucket, use_aws
from tests.support.s3_faults import FaultProxy


def digest(n: int) -> str:
    return f"sha256:{n:064x}"


def read(store: CodeStore, n: int) -> bytes:
    with store.open(digest(n)) as file:
        return file.read()


def keeps_zips(store: CodeStore) -> None:
    assert [*store.stored()] == []
    for n in (1, 2, 2):
        store.put(digest(n), io.BytesIO(b"zip %d" % n))
    found = dict(store.stored())
    assert found.keys() == {digest(1), digest(2)}
    assert [*store.stored(digest(2))] == [(digest(2), found[digest(2)])]
    assert [*store.stored(digest(3))] == []
    assert all(abs(at - utc_now()) < timedelta(minutes=5) for at in found.values())
    assert (read(store, 1), read(store, 2), read(store, 2)) == (b"zip 1", b"zip 2", b"zip 2")
    store.remove(digest(1))
    store.remove(digest(1))
    with pytest.raises(NotDelivered, match="code cannot be read"):
        store.open(digest(1))
    for wrong in ("sha256:0", "../../etc/passwd", f"md5:{'0' * 64}"):
        with pytest.raises(InvalidRequest, match="digest"):
            store.open(wrong)


def test_a_folder_keeps_zips(tmp_path: Path) -> None:
    store = open_code_store((tmp_path / "a" / "code").as_uri(), tmp_path / "cache")
    keeps_zips(store)
    assert os.listdir(tmp_path / "a" / "code") == [f"{2:064x}.zip"]
    (tmp_path / "file").touch()
    broken = open_code_store((tmp_path / "file").as_uri(), tmp_path)
    with pytest.raises(NotDelivered, match="LIFECYCLE_CODE__URL"):
        broken.put(digest(1), io.BytesIO(b""))


def test_a_zip_that_another_process_removes_meanwhile_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_code_store(tmp_path.as_uri(), tmp_path)
    store.put(digest(1), io.BytesIO(b"zip"))
    gone = tmp_path / f"{2:064x}.zip"
    found = [gone, *tmp_path.glob("*.zip")]
    monkeypatch.setattr(Path, "glob", lambda *_: found)
    assert [name for name, _ in store.stored()] == [digest(1)]


def test_the_fake_keeps_zips() -> None:
    keeps_zips(FakeCodeStore())


def test_a_zip_that_cannot_be_read_completely_is_not_stored(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise OSError("the disk is broken")
            return super().read(1)

    store = open_code_store(tmp_path.as_uri(), tmp_path / "cache")
    with pytest.raises(NotDelivered, match="the disk is broken"):
        store.put(digest(1), Broken(b"zip"))
    assert os.listdir(tmp_path) == []


def test_a_bucket_keeps_zips(bucket: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    keeps_zips(open_code_store(f"s3://{bucket.name}/code", tmp_path / "cache"))
    assert bucket.keys() == [f"code/{2:064x}.zip"]


def test_what_was_read_once_stays_while_the_bucket_is_away(
    bucket: Bucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_store, "CACHED_MAX", len(b"zip 0") * 2)
    url = f"s3://{bucket.name}"
    store = open_code_store(url, tmp_path / "cache")
    for n in range(4):
        store.put(digest(n), io.BytesIO(b"zip %d" % n))
    for n in range(3):
        assert read(store, n) == b"zip %d" % n
        os.utime(tmp_path / "cache" / f"{n:064x}.zip", (n, n))
    bucket.client.delete_object(Bucket=bucket.name, Key=f"{2:064x}.zip")
    assert read(store, 2) == b"zip 2"
    for n in (0, 3):
        bucket.client.delete_object(Bucket=bucket.name, Key=f"{n:064x}.zip")
        with pytest.raises(NotDelivered, match=f"{n:064x}.zip: code cannot be read"):
            store.open(digest(n))


def test_code_that_was_read_is_served_without_a_bucket_and_other_code_names_the_reason(
    bucket: Bucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{bucket.name}"
    store = open_code_store(url, tmp_path / "cache")
    for n in range(2):
        store.put(digest(n), io.BytesIO(b"zip %d" % n))
    assert read(store, 0) == b"zip 0"
    use_aws(monkeypatch, "http://127.0.0.1:9")
    away = open_code_store(url, tmp_path / "cache")
    assert read(away, 0) == b"zip 0"
    with pytest.raises(NotDelivered, match=r"code cannot be read.*127\.0\.0\.1:9"):
        away.open(digest(1))


@pytest.mark.parametrize("url", ["http://a/b", "file:relative", "file://host/a", "s3://A", ""])
def test_another_url_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="LIFECYCLE_CODE__URL"):
        open_code_store(url, tmp_path)
