"""Where the embedded stack finds things."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.stack import dev as dev_verb
from crawler_lifecycle.cli.stack import layout
from crawler_lifecycle.cli.stack.layout import PORTS, Layout, kept_key, modules_with_user_code
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.settings import variables
from tests.cli.cli_support import Crawlctl


def test_a_checkout_has_the_manager_of_its_examples() -> None:
    assert modules_with_user_code(Path(__file__).parents[2]) == [
        "*",
        "examples.graphs",
        "examples.managers",
    ]
    assert modules_with_user_code(Path(__file__).parent) == ["*"]


def test_a_key_that_could_not_be_written_is_none_and_the_next_start_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full, or the process was killed: anybody could sign with an empty key."""
    file = tmp_path / "task.key"

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="no space"):
            kept_key(file)
    assert list(tmp_path.iterdir()) == []
    key = kept_key(file)
    assert (len(key), stat.S_IMODE(file.stat().st_mode)) == (64, 0o600)
    assert kept_key(file) == key


# --- settings of the environment ------------------------------------------------------------------

VALUES = {
    **dict.fromkeys([name for name in layout.OWN if name.endswith("PORT")], "8123"),
    "LIFECYCLE_CLUSTER__KIND": "kubernetes",
    "LIFECYCLE_GATEWAY__AUTH_DISABLED": "false",
}


@pytest.fixture
def dev(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Call ``crawlctl dev`` in this environment. Return how the stack is made, or the refusal."""

    def call(*words: str, **env: str) -> Any:
        made: dict[str, Any] = {}

        def start(plan: Layout, **given: Any) -> None:
            made.update(
                {
                    "archive": plan.archive,
                    "events": plan.events,
                    "more": os.environ.get("LIFECYCLE_EXTRA_CATALOGUE"),
                    "env": dict(os.environ),
                }
            )
            raise CommandFailed(Exit.ERROR, "it would start now")

        with monkeypatch.context() as patch:
            for name in [
                name for name in os.environ if name.startswith(("LIFECYCLE_", "TEMPORAL_"))
            ]:
                patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
            for name in (*layout.TAKEN, layout.MODULES, layout.LOOPBACK_WEBHOOKS):
                if name not in env:  # so that the variables that the command sets are removed again
                    patch.setenv(name, "")
            patch.setattr(dev_verb, "Stack", start)
            patch.setattr(dev_verb, "hide", lambda: None)
            patch.setattr(dev_verb, "keep_files_private", lambda: None)
            result = crawlctl("dev", *words)
        return SimpleNamespace(**made, code=result.code, err=result.err)

    return call


def test_no_setting_is_overridden_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack passes each setting from its environment to its parts, except those that it refuses
    or determines itself.
    """
    for name in variables():
        monkeypatch.setenv(name, "as it was given")
    env = Layout(tmp_path, dict.fromkeys([*PORTS], 1)).environment(tmp_path / "crawlers.yaml")
    changed = {name for name in variables() if env.get(name) != "as it was given"}
    assert changed == {*layout.OWN, *layout.TAKEN}


def test_the_gateway_links_to_temporals_ui_where_dev_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = "LIFECYCLE_GATEWAY__TEMPORAL_UI"
    monkeypatch.delenv(setting, raising=False)
    ports = dict.fromkeys(PORTS, 1) | {"temporal_ui": 8233}
    env = Layout(tmp_path, ports).environment(tmp_path / "crawlers.yaml")
    assert env[setting] == "http://127.0.0.1:8233/namespaces/default"
    del ports["temporal_ui"]
    assert setting not in Layout(tmp_path, ports).environment(tmp_path / "crawlers.yaml")


def test_dev_refuses_by_name_what_it_decides_itself(
    dev: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "some.toml").write_text("[pusher]\n")
    for name in layout.OWN:
        given = (
            str(tmp_path / "some.toml") if name == "LIFECYCLE_CONFIG" else VALUES.get(name, "given")
        )
        done = dev(**{name: given})
        assert done.code == Exit.USAGE
        assert f"{name}: crawlctl dev chooses this itself" in done.err
        assert f"unset {name}" in done.err


def test_dev_takes_places_of_its_environment_however_they_are_written(
    dev: Callable[..., Any], tmp_path: Path
) -> None:
    zips, told = (tmp_path / "zips").as_uri(), (tmp_path / "told.jsonl").as_uri()
    done = dev(
        LIFECYCLE_ARCHIVE__URL=zips,
        LIFECYCLE_EVENTS=json.dumps({"url": told}),
        LIFECYCLE_EXTRA_CATALOGUE="more",
    )
    assert "it would start now" in done.err
    assert (done.archive, done.events, done.more) == (zips, told, "more")
    assert dev("--archive", told, LIFECYCLE_ARCHIVE__URL=zips).archive == told, (
        "an option comes first"
    )
    done = dev(LIFECYCLE_USER_CODE='{"modules": ["shops"]}', lifecycle_webhooks__loopback="false")
    assert (done.env[layout.MODULES], done.env[layout.LOOPBACK_WEBHOOKS]) == ('["shops"]', "false")
    assert "ftp://elsewhere" in dev(LIFECYCLE_ARCHIVE__URL="ftp://elsewhere").err
    assert (
        dev("--database", "sqlite:////x.db", LIFECYCLE_DATABASE__URL="sqlite:////x.db").code
        == Exit.ERROR
    )
    assert "LIFECYCLE_GATEWAY__PORT: crawlctl dev" in dev(LIFECYCLE_GATEWAY='{"port": 1}').err
    assert "TEMPORAL_ADDRESS is not used" in dev(TEMPORAL_ADDRESS="elsewhere:7233").err


def test_another_catalogue_of_the_environment_stands_beside_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFECYCLE_EXTRA_CATALOGUE", str(tmp_path / "more.yaml"))
    (tmp_path / "crawlers.yaml").write_text("[]")
    plan = Layout(tmp_path, dict.fromkeys([*PORTS], 1), crawlers=tmp_path / "crawlers.yaml")
    assert Stack(plan)._catalogues() == (tmp_path / "crawlers.yaml", tmp_path / "more.yaml")
    with pytest.raises(CommandFailed, match="LIFECYCLE_EXTRA_CATALOGUE cannot be used with --site"):
        Stack(replace(plan, site=tmp_path))._catalogues()
