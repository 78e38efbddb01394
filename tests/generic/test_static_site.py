"""The static server of ``crawlctl dev --site``, as a real process, with raw paths."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from crawler_lifecycle.cli.stack import site

Answer = tuple[int, dict[str, str], bytes]
Get = Callable[..., Answer]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pages, and next to it a file that must not be served."""
    tmp_path = tmp_path_factory.mktemp("site")
    (tmp_path / "secret.html").write_text("<title>secret")
    root = tmp_path / "pages"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "index.html").write_text("<title>Home</title>")
    (root / "sub" / "index.html").write_text("<title>Sub</title>")
    (root / "sub" / "page.html").write_text("<title>Page</title>")
    (root / "latin.html").write_bytes(
        b'<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1">\xe9'
    )
    (root / "data.json").write_text("{}")
    (root / ".git" / "config.html").write_text("hidden")
    (root / ".env").write_text("hidden")
    (root / "out.html").symlink_to(tmp_path / "secret.html")
    (root / "up").symlink_to(tmp_path)
    (root / "again.html").symlink_to(root / "sub" / "page.html")
    (root / "sly.html").symlink_to(root / ".env")
    os.mkfifo(root / "fifo.html")
    return root


@pytest.fixture
def changed(folder: Path) -> Iterator[Path]:
    """The folder, which a test may change; its start page is restored, and a page for missing
    addresses removed.
    """
    yield folder
    (folder / "index.html").write_text("<title>Home</title>")
    (folder / "404.html").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def get(folder: Path) -> Iterator[Get]:
    command = [
        sys.executable,
        "-m",
        "crawler_lifecycle.cli.stack.site",
        "--port",
        "0",
        "--folder",
        str(folder),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = urlsplit(process.stdout.readline().strip()).netloc

        def ask(path: str, method: str = "GET", **headers: str) -> Answer:
            connection = http.client.HTTPConnection(address, timeout=60)
            try:
                connection.putrequest(method, path, skip_host=False)
                for name, value in headers.items():
                    connection.putheader(name.replace("_", "-"), value)
                connection.endheaders()
                response = connection.getresponse()
                return (
                    response.status,
                    {n.lower(): v for n, v in response.getheaders()},
                    response.read(),
                )
            finally:
                connection.close()

        yield ask
        process.terminate()
        assert process.wait(60) == 0


def test_pages_indexes_and_types(get: Get) -> None:
    assert get("/")[2] == b"<title>Home</title>"
    assert get("/sub/")[2] == b"<title>Sub</title>"
    status, headers, _ = get("/sub")
    assert status in (301, 307, 308)
    assert urlsplit(headers["location"]).path == "/sub/"
    assert get("/index.html")[1]["content-type"] == "text/html; charset=utf-8"
    assert get("/latin.html")[1]["content-type"] == "text/html"
    assert get("/data.json")[1]["content-type"] == "application/json"
    assert get("/again.html")[2] == b"<title>Page</title>"
    assert get("/.healthz")[0] == 200


def test_validators_head_and_ranges(get: Get) -> None:
    _, headers, body = get("/sub/page.html")
    status, again, nothing = get("/sub/page.html", If_None_Match=headers["etag"])
    assert (status, nothing, again["etag"]) == (304, b"", headers["etag"])
    assert get("/sub/page.html", If_Modified_Since=headers["last-modified"])[0] == 304
    status, head, nothing = get("/sub/page.html", "HEAD")
    assert (status, nothing, head["content-length"]) == (200, b"", str(len(body)))
    assert get("/sub/page.html", Range="bytes=0-6")[::2] == (206, b"<title>")
    status, headers, _ = get("/", "POST")
    assert status == 405
    assert "GET" in headers["allow"]


NOT_THERE = (
    *(
        "/../secret.html",
        "/%2e%2e/secret.html",
        "/sub/..%2f..%2fsecret.html",
        "//etc/passwd",
        "/..%5csecret.html",
    ),
    *(
        "/out.html",
        "/up/secret.html",
        "/.git/config.html",
        "/.env",
        "/sly.html",
        "/sub/../.env",
        "/%2egit/config.html",
    ),
    *(
        "/fifo.html",
        "/sub/empty/",
        "/sub/page.html/",
        "/nothing.html",
        "/%00",
        "/" + "x" * 5000,
        "/index.html/x",
    ),
)


def test_nothing_else_is_served(get: Get) -> None:
    for path in NOT_THERE:
        status, headers, body = get(path)
        assert (path[:40], status) == (path[:40], 404)
        assert headers["content-type"].startswith("text/html")
        assert b"<h1>404 Not Found</h1>" in body
        assert b"secret</title>" not in body
        assert b"hidden" not in body


def test_what_is_quoted_back_is_escaped(get: Get) -> None:
    assert b"<script>" not in get("/%3Cscript%3E")[2]


def test_a_folder_without_a_start_page_gets_one_that_names_its_pages(
    changed: Path, get: Get
) -> None:
    (changed / "index.html").unlink()
    (changed / "sub" / "a & <b>.html").write_text("x")
    (changed / os.fsdecode(b"\xff.html")).write_text("x")
    status, _, body = get("/")
    assert status == 200
    assert b'<a href="/sub/page.html">sub/page.html</a>' in body
    assert b'<a href="/sub/a%20%26%20%3Cb%3E.html">sub/a &amp; &lt;b&gt;.html</a>' in body
    assert b"%FF.html" in body
    for absent in (b"secret", b"hidden", b"fifo", b".git", b"out.html"):
        assert absent not in body
    assert get("/sub/empty/")[0] == 404


def test_its_own_page_for_what_is_not_there(changed: Path, get: Get) -> None:
    (changed / "404.html").write_text("<title>Lost</title>")
    assert get("/nothing")[::2] == (404, b"<title>Lost</title>")
    (changed / "index.html").unlink()
    assert get("/")[0] == 200


def test_a_folder_that_goes_away_while_it_is_served(folder: Path, get: Get) -> None:
    assert get("/sub/page.html")[0] == 200
    folder.rename(folder.parent / "moved")
    assert get("/sub/page.html")[0] == 404
    (folder.parent / "moved").rename(folder)
    assert get("/sub/page.html")[0] == 200


def test_what_cannot_be_served_is_said_before(tmp_path: Path) -> None:
    (tmp_path / "file.html").write_text("x")
    empty = tmp_path / "empty"
    (empty / ".hidden").mkdir(parents=True)
    (empty / ".hidden" / "x.html").write_text("x")
    (empty / "link.html").symlink_to(tmp_path / "file.html")
    (empty / "notes.txt").write_text("x")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, words in (
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "file.html", "is not a folder"),
        (empty, "has no HTML page"),
        (loop, "cannot be read"),
    ):
        with pytest.raises(site.Unusable, match=words) as refused:
            site.check(path)
        assert str(path) in str(refused.value)
        assert "; give " in str(refused.value)
