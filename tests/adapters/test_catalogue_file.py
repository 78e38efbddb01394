"""crawlers.yaml: every mistake is reported with file, line, key and fix, and none stops a working
service.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.adapters.catalogue import NODES_MAX, SIZE_MAX, YamlCatalogue, load
from crawler_lifecycle.domain.ends import Ends
from crawler_lifecycle.domain.errors import CatalogueError
from tests.support.examples import examples

GOOD = "- name: plain\n  kind: command\n  command: [python, crawl.py]\n"


def _write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_numbers_are_quantities_as_the_api_server_reads_them(tmp_path: Path) -> None:
    entry = GOOD + (
        "  resources: {cpu: 1, memory: 536870912}\n"
        "  kubernetes:\n    requests: {cpu: 0.5}\n    scratch: 1000000\n"
        "    sidecars: [{name: proxy, image: p, resources: {cpu: 2}}]\n"
    )
    (found,) = load(_write(tmp_path / "c.yaml", entry))
    assert (found.resources.cpu, found.resources.memory) == ("1", "536870912")
    assert (found.kubernetes.requests.cpu, found.kubernetes.scratch) == ("0.5", "1000000")
    assert found.kubernetes.sidecars[0].resources.cpu == "2"
    with pytest.raises(CatalogueError, match=r"resources\.cpu: '-1'"):
        load(_write(tmp_path / "c.yaml", GOOD + "  resources: {cpu: -1}\n"))
    with pytest.raises(
        CatalogueError, match=r'args.cpu.default: 1 is not a string; put it in quotes: "1"'
    ):
        load(_write(tmp_path / "c.yaml", GOOD + "  args: {cpu: {default: 1}}\n"))


@pytest.mark.parametrize("key", ["on", "off", "yes", "no", "On", "NO", "true", "false"])
def test_a_key_is_what_is_written_also_where_yaml_reads_a_boolean(tmp_path: Path, key: str) -> None:
    (found,) = load(
        _write(tmp_path / "c.yaml", GOOD + f"  args: {{{key}: {{}}}}\n  env: {{{key}: x}}\n")
    )
    assert (list(found.args), list(found.env)) == ([key], [key])
    with pytest.raises(CatalogueError, match=rf"c\.yaml:4: {key}: unknown key; known: name"):
        load(_write(tmp_path / "c.yaml", GOOD + f"  {key}: 1\n"))
    with pytest.raises(CatalogueError, match=r"c\.yaml:5: env\.no: appears twice, first on line 4"):
        load(_write(tmp_path / "c.yaml", GOOD + "  env: {no: a,\n    'no': b}\n"))


def test_a_file_that_breaks_says_since_when_and_which_list_holds(tmp_path: Path) -> None:
    file, more = (
        _write(tmp_path / "c.yaml", GOOD),
        _write(tmp_path / "more.yaml", GOOD.replace("plain", "other")),
    )
    catalogue = YamlCatalogue(file, more)
    assert [one.name for one in catalogue.all()] == ["plain", "other"]
    assert catalogue.problem is None
    for broken in (file, more):
        good = broken.read_text()
        _write(broken, good + "  again: 3\n")
        assert len(catalogue.all()) == 2
        minute = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"
        words = rf"{broken}:4 has not been read since {minute}: again: unknown key; .*; the list read at {minute} applies"
        assert re.fullmatch(words, catalogue.problem or "")
        _write(broken, good)
        assert len(catalogue.all()) == 2
        assert catalogue.problem is None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "crawlers.yaml"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "empty; declare at least one crawler"),
        ("# nothing\n", None, "empty"),
        ("[]\n", None, "empty"),
        ("name: plain\n", 1, "not a list"),
        ("plain\n", 1, "not a list"),
        ("\n- plain\n", 2, "not a crawler"),
        ("- kind: command\n  command: [x]\n", 1, "name: missing; add it"),
        (GOOD + "  again: 3\n", 4, "again: unknown key; known: name, kind"),
        (
            GOOD + "  args:\n    site: {defalt: x}\n",
            5,
            "args.site.defalt: unknown key; known: default, required",
        ),
        (
            GOOD + "  resources: {mem: 1Gi}\n",
            4,
            "resources.mem: unknown key; known: cpu, memory",
        ),
        (GOOD + "  kubernetes: {nodes: {}}\n", 4, "kubernetes.nodes: unknown key"),
        (GOOD + "  limits: {grace: 3}\n", 4, "limits.grace: unknown"),
        (GOOD + "  limits:\n    stop_grace_s: -3\n", 5, "limits.stop_grace_s: -3"),
        (
            GOOD + "  limits: {stop_grace_s: .nan}\n",
            4,
            "limits.stop_grace_s: '.nan' is not a finite number",
        ),
        (GOOD + "  limits: {stop_grace_s: .inf}\n", 4, "not a finite number"),
        (GOOD + "  limits: {stop_grace_s: '3'}\n", 4, "limits.stop_grace_s: '3' is not allowed"),
        (
            GOOD + "  args: {site: {default: 8400}}\n",
            4,
            'args.site.default: 8400 is not a string; put it in quotes: "8400"',
        ),
        (
            GOOD + "  settings:\n    A: a\n    B: yes\n",
            6,
            'settings.B: yes is not a string; put it in quotes: "yes"',
        ),
        (
            GOOD + "  allow_settings: [A, log file]\n",
            4,
            "allow_settings[1]: 'log file' is not allowed",
        ),
        (
            GOOD + "  ends: wegt\n",
            4,
            "ends.like: 'wegt' is not allowed; give one of plain, scrapy, browsertrix, crawlee",
        ),
        (
            GOOD + "  ends:\n    success: [0, 300]\n",
            5,
            "ends.success: 300 is not allowed; give a whole number from 0",
        ),
        (
            GOOD + "  ends: {success: [8], final: [8]}\n",
            4,
            "ends.success: 8 is not allowed; it is also in another list",
        ),
        (GOOD + "  ends: {success: ['8']}\n", 4, "ends.success[0]: '8' is not allowed"),
        (
            GOOD + "  ends: {failed: [8]}\n",
            4,
            "ends.failed: unknown key; known: like, success, final, retry",
        ),
        (
            "- {name: a, project: b, ends: {final: [4]}}\n",
            1,
            "ends: [4] is not allowed; leave out all but failed_words",
        ),
        (
            GOOD + "  allow_settings: [1]\n",
            4,
            'allow_settings[0]: 1 is not a string; put it in quotes: "1"',
        ),
        (GOOD + "  args:\n    n: {type: int}\n", 5, "args.n.type: 'int' is not allowed"),
        (
            GOOD + "  args:\n    n: {type: integer, default: 1.5}\n",
            5,
            "args.n.default: '1.5' is not allowed",
        ),
        (
            GOOD + "  args:\n    n: {type: boolean, default: yes}\n",
            5,
            "args.n.default: 'yes' is not allowed",
        ),
        (
            GOOD + "  args:\n    n: {choices: [1]}\n",
            5,
            'args.n.choices[0]: 1 is not a string; put it in quotes: "1"',
        ),
        (
            GOOD + "  env: {PORT: 0x10}\n",
            4,
            'env.PORT: 0x10 is not a string; put it in quotes: "0x10"',
        ),
        (GOOD + "  env: {A: }\n", 4, 'env.A: nothing is not a string; put it in quotes: ""'),
        (GOOD + "  env: {A: 2026-01-02}\n", 4, 'read as a date; put it in quotes: "2026-01-02"'),
        (GOOD + "  env: {A: [x]}\n", 4, "env.A: ['x'] is not a string; give one string"),
        (GOOD + "  env: {CRAWL_RUN_ID: x}\n", 4, "env.CRAWL_RUN_ID: names that begin with CRAWL_"),
        (GOOD + "  env: {1: x}\n", 4, "the key '1' is not a string"),
        (GOOD + "  resumable: 'yes'\n", 4, "resumable: 'yes' is not allowed"),
        (GOOD + "  items: 'off'\n", 4, "items: 'off' is not allowed"),
        (
            GOOD + "  items: {file: x}\n",
            4,
            "items.file: unknown key; known: files, format, delimiter, quote, key",
        ),
        (
            GOOD + "  items:\n    key: [id, 7]\n",
            5,
            "items.key: ['id', 7] is not allowed; give the name of a field",
        ),
        (
            GOOD + "  items: {key: ''}\n",
            4,
            "items.key: '' is not allowed; give the name of a field, or a list of 1 to 10",
        ),
        (
            GOOD + "  items:\n    files: out/*\n    format: yaml\n",
            6,
            "items.format: 'yaml' is not allowed; give one",
        ),
        (
            GOOD + "  items: {delimiter: 7}\n",
            4,
            "items.delimiter: 7 is not allowed; give one ASCII character",
        ),
        (GOOD + "  files_max: -1\n", 4, "files_max: -1 is not allowed"),
        (
            GOOD + "  expect: {price: 0}\n",
            4,
            "expect.price: 0 is not allowed; give a number above 0",
        ),
        (GOOD + "  expect:\n    title: 1\n    price: 2\n", 6, "expect.price: 2 is not allowed"),
        (GOOD + "  expect: {price: .nan}\n", 4, "expect.price: '.nan' is not a finite number"),
        (GOOD + "  expect: {price: high}\n", 4, "expect.price: 'high' is not allowed"),
        (GOOD + "  expect: [price]\n", 4, "expect: ['price'] is not allowed"),
        (
            GOOD + "  expect: {price: {min: 1}}\n",
            4,
            "expect.price: {'min': 1} is not allowed; give a number above 0",
        ),
        (
            GOOD + "  expect:\n    pages: 1\n    items: 0.9\n",
            6,
            "expect.items.min: 0.9 is not allowed; give a whole",
        ),
        (
            GOOD + "  expect: {items: {most: 1}}\n",
            4,
            "give {min, drop}; a field of items called items is named below",
        ),
        (GOOD + "  expect: {items: {}}\n", 4, "expect.items: {} is not allowed; give {min, drop}"),
        (
            GOOD + "  expect:\n    items:\n      min: 1\n      drop: 50\n",
            7,
            "expect.items.drop: 50 is not allowed",
        ),
        (
            GOOD + "  expect: {errors: 0.1}\n",
            4,
            "expect.errors: {'min': 0.1} is not allowed; give {max_share}",
        ),
        (
            GOOD + "  expect: {errors: {max_share: yes}}\n",
            4,
            "expect.errors.max_share: True is not allowed",
        ),
        (GOOD + "  expect: {pages: }\n", 4, "expect.pages.min: None is not allowed"),
        (
            GOOD + "  expect: {fields: {items: 2}}\n",
            4,
            "expect.items: 2 is not allowed; give a number above 0",
        ),
        (GOOD + "  expect: {fields: {items: [1]}}\n", 4, "expect.items: [1] is not allowed"),
        (GOOD + f"  expect: {{{'x' * 1_000}: 1}}\n", 4, "expect: 'xxx"),
        (
            GOOD + f"  expect: {{{', '.join(f'f{n}: 1' for n in range(100))}}}\n",
            4,
            "expect: '100 fields' is not allowed",
        ),
        (GOOD + "  on_violation: shout\n", 4, "on_violation: 'shout' is not allowed"),
        (GOOD + "  stop_signal: SIGKILL\n", 4, "stop_signal: 'SIGKILL' is not allowed"),
        (GOOD + "  resources:\n    memory: lots\n", 5, "resources.memory: 'lots' is not allowed"),
        (GOOD + '  env: {A: "a\\0b"}\n', 4, "env.A: contains a NUL character"),
        (GOOD + "  kind: command\n", 4, "kind: appears twice, first on line 2"),
        (GOOD + GOOD, 4, "name: 'plain' is already declared on line 1"),
        (GOOD + "  <<: {a: b}\n", 4, "merge keys are not supported"),
        (GOOD + "  env: !!python/object/apply:os.system ['true']\n", 4, ""),
        (GOOD + "  env: {A: !!binary aGk=}\n", 4, "the tag"),
        (GOOD + "  kubernetes: !custom {}\n", 4, "the tag '!custom' is not allowed"),
        ("- name: x\n  kind: command\n", 1, "command: missing"),
        ("- name: x\n", 1, "project: missing"),
        ("- name: x\n  kind: exec\n", 2, "kind: 'exec' is not allowed"),
        ("- name: Not A Name\n  project: x\n", 1, "name: 'Not A Name' is not allowed"),
        ("- name: x\n   kind: y\n", 2, "not valid YAML"),
        ("- name: 'x\n", 2, "not valid YAML"),
        ("- name: \x01\n", None, "not valid YAML"),
        ("--- []\n--- []\n", 2, "not valid YAML"),
        ("- name: *unknown\n", 1, "not valid YAML"),
        ("[" * 5000, None, "nested too deeply"),
        (b"- name: plain\n- name: \xff\n", 2, "byte 0xff is not UTF-8"),
        ("#" * (SIZE_MAX + 1), None, "larger than"),
    ],
)
def test_a_mistake_is_told_by_line(
    file: Path, text: str | bytes, line: int | None, words: str
) -> None:
    with pytest.raises(CatalogueError) as caught:
        load(_write(file, text))
    told = str(caught.value)
    assert told.startswith(f"{file}:{line}: " if line else f"{file}: ")
    assert words in told
    assert "\n" not in told


def test_arguments_of_a_type_are_written_as_they_are_meant(file: Path) -> None:
    text = (
        "  args:\n    pages: {type: integer, default: 100, choices: [10, 0100, 100], description: at most}\n"
        "    delay: {type: number, default: 1.50}\n    images: {type: boolean, default: false}\n"
    )
    [crawler] = load(_write(file, GOOD + text))
    assert {name: (arg.type, arg.default) for name, arg in crawler.args.items()} == {
        **{"pages": ("integer", "100"), "delay": ("number", "1.50"), "images": ("boolean", "false")}
    }
    assert (crawler.args["pages"].choices, crawler.args["pages"].description) == (
        ["10", "0100", "100"],
        "at most",
    )


def test_a_small_file_cannot_unfold_into_a_large_one(file: Path) -> None:
    levels = "".join(f"  l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9))
    text = (
        GOOD + "  kubernetes:\n   volumes:\n" + "    l0: &l0 [x]\n" + levels.replace("  l", "    l")
    )
    with pytest.raises(CatalogueError, match="too large once its aliases are followed"):
        load(_write(file, text))
    with pytest.raises(CatalogueError, match="too large once its aliases are followed"):
        load(_write(file, GOOD + "  kubernetes: &a {volumes: *a}\n"))
    assert NODES_MAX <= 1_000_000


def test_honest_aliases_work(file: Path) -> None:
    text = GOOD + "  env: &env {A: a}\n" + GOOD.replace("plain", "second") + "  env: *env\n"
    assert [c.env for c in load(_write(file, text))] == [{"A": "a"}, {"A": "a"}]


def test_projects_are_relative_to_the_file(file: Path) -> None:
    _write(
        file,
        "- {name: a, project: ../b}\n- {name: c, project: /abs}\n- {name: d, image: registry/x}\n",
    )
    assert [c.project for c in load(file)] == [str(file.parent.parent / "b"), "/abs", None]


@pytest.mark.parametrize("what", ["missing", "folder", "unreadable"])
def test_a_file_that_cannot_be_read(tmp_path: Path, what: str) -> None:
    path = tmp_path if what == "folder" else tmp_path / "none.yaml"
    if what == "unreadable":
        path.symlink_to(path)
    with pytest.raises(CatalogueError, match=r"cannot be read .*LIFECYCLE_CATALOGUE"):
        YamlCatalogue(path)


def test_ends_may_be_the_name_of_a_preset(file: Path) -> None:
    names = [
        load(_write(file, GOOD + f"  ends: {given}\n"))[0].ends
        for given in ("wget", "{like: wget, success: [8]}")
    ]
    assert names == [Ends("wget"), Ends("wget", success=[8])]


def test_a_change_is_seen_and_a_broken_one_leaves_the_last_good(file: Path) -> None:
    catalogue = YamlCatalogue(_write(file, GOOD))
    assert catalogue.problem is None
    _write(file, GOOD + "- name: second\n  project: x\n")
    assert [c.name for c in catalogue.all()] == ["plain", "second"]
    _write(file, "- nonsense\n")
    assert catalogue.get("second") is not None
    assert catalogue.problem is not None
    assert f"{file}:1" in catalogue.problem
    file.unlink()
    assert catalogue.get("plain") is not None
    assert "cannot be read" in str(catalogue.problem)
    _write(file, GOOD)
    assert [c.name for c in catalogue.all()] == ["plain"]
    assert catalogue.problem is None


def test_readers_at_once_while_the_file_is_replaced(file: Path) -> None:
    catalogue = YamlCatalogue(_write(file, GOOD))
    over = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not over.is_set():
            if catalogue.get("plain") is None:
                wrong.append("lost")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(100):
        _write(file.with_suffix(".new"), GOOD + f"# {n}\n")
        os.replace(file.with_suffix(".new"), file)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert catalogue.problem is None


@settings(max_examples=examples(150))
@given(
    st.text(
        alphabet=st.sampled_from("-:[]{}&*!|>'\"%@`#,?\n \tab01nkem~<=.\\\0\u2028é"), max_size=60
    )
)
def test_no_text_is_anything_but_a_catalogue_or_its_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes((GOOD + text).encode())
    with contextlib.suppress(CatalogueError):
        assert load(file)


def test_the_example_catalogue_is_valid() -> None:
    crawlers = load(Path(__file__).parents[2] / "examples" / "crawlers.yaml")
    assert {"services", "operations", "plain"} <= {c.name for c in crawlers}


# --- a second file, for names that the first does not declare -------------------------------------

OWN = "- {name: mine, kind: command, command: [mine]}\n"
MORE = "- {name: site, kind: command, command: [generic]}\n- {name: other, kind: command, command: [other]}\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    own, more = tmp_path / "own.yaml", tmp_path / "more.yaml"
    own.write_text(OWN)
    more.write_text(MORE)
    return own, more


def test_names_of_both_the_first_ones_first(files: tuple[Path, Path]) -> None:
    catalogue = YamlCatalogue(*files)
    assert [crawler.name for crawler in catalogue.all()] == ["mine", "site", "other"]
    assert catalogue.get("site") is not None
    assert catalogue.get("nobody") is None


def test_the_first_wins_as_soon_as_it_declares_a_name(files: tuple[Path, Path]) -> None:
    own, more = files
    catalogue = YamlCatalogue(own, more)
    own.write_text(OWN + "- {name: site, kind: command, command: [my-own]}\n")
    found = catalogue.get("site")
    assert found.command == ["my-own"]
    assert [crawler.name for crawler in catalogue.all()] == ["mine", "site", "other"]
    own.write_text(OWN)
    found = catalogue.get("site")
    assert found.command == ["generic"]


def test_a_second_one_that_cannot_be_used_is_named(files: tuple[Path, Path]) -> None:
    own, more = files
    more.write_text("- {name: site, kind: command, command: [x], surplus: 1}\n")
    with pytest.raises(CatalogueError, match=r"more\.yaml:1: surplus: unknown key"):
        YamlCatalogue(own, more)


DOCS = Path(__file__).parents[2]
EXAMPLES = [
    pytest.param(block, id=f"{page.name}:{n}")
    for page in (*sorted((DOCS / "docs").glob("*.md")), DOCS / "README.md")
    for n, block in enumerate(
        re.findall(r"^```ya?ml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), 1
    )
]


@pytest.mark.parametrize("block", EXAMPLES)
def test_every_example_of_the_docs_is_read(tmp_path: Path, block: str) -> None:
    """Our reader loads the entries of the catalogue, also parts of them; a YAML parser loads the
    rest.
    """
    if block.startswith("  "):
        block = "- name: shops\n" + block
    if re.search("^- ", block, re.MULTILINE) and not re.search("^[a-z]", block, re.MULTILINE):
        what = "kind: command\n  command: [crawl]" if "ends:" in block else "project: crawlers"
        whole = block if "project:" in block or "command:" in block else f"{block}  {what}\n"
        assert load(_write(tmp_path / "crawlers.yaml", whole))
    else:
        for document in yaml.safe_load_all(block):
            assert all(isinstance(key, str) for key in keys_of(document))


def keys_of(value: object) -> Iterator[object]:
    for part in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from keys_of(part)
    if isinstance(value, dict):
        yield from value
