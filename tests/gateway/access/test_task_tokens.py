"""The token of a crawler for its own run."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.task_tokens import (
    Purpose,
    TaskClaim,
    sign,
    sign_task,
    verify,
    verify_task,
)
from tests.support.run_refs import run_ref

KEY = b"k" * 32
NUMBERS_OF_RUNS = st.integers(min_value=1, max_value=2**63 - 1)
RUNS = st.builds(run_ref, NUMBERS_OF_RUNS)
SEVEN = run_ref(7)


@given(RUNS, st.binary(min_size=32, max_size=64))
def test_a_signed_token_names_its_run(run: RunRef, key: bytes) -> None:
    assert verify(key, sign(key, run)) == run


@given(RUNS, st.binary(min_size=32, max_size=64), st.binary(min_size=32, max_size=64))
def test_another_key_opens_nothing(run: RunRef, key: bytes, other: bytes) -> None:
    # HMAC pads short keys with zeros, so keys that differ only in trailing zeros are the same key.
    if key.rstrip(b"\0") != other.rstrip(b"\0"):
        assert verify(other, sign(key, run)) is None


@given(RUNS, st.text(max_size=200), st.data())
def test_a_changed_token_opens_nothing(run: RunRef, noise: str, data: st.DataObject) -> None:
    token = sign(KEY, run)
    at = data.draw(st.integers(0, len(token) - 1))
    for changed in (
        noise,
        token[:at] + token[at + 1 :],
        token[:at] + noise + token[at:],
        token.upper(),
        token + "\n",
    ):
        if changed != token:
            assert verify(KEY, changed) is None


def test_a_token_of_one_run_does_not_fit_another() -> None:
    mac = sign(KEY, SEVEN).rpartition(".")[2]
    for number in ("8", "07", "+7", "7 ", "٧", "-7", "7.0", str(2**63)):
        assert verify(KEY, f"task.{number}-{SEVEN.uid}.{mac}") is None
    assert verify(KEY, f"task.7-{'f' * 32}.{mac}") is None, (
        "not one that has the number after a restore, either"
    )
    assert verify(KEY, f"task.7.{mac}") is None


def test_a_plain_signature_with_the_same_key_is_no_token() -> None:
    mac = hmac.new(KEY, str(SEVEN).encode(), hashlib.sha256).hexdigest()
    assert verify(KEY, f"task.{SEVEN}.{mac}") is None
    assert verify(KEY, f"task.{SEVEN}.{mac[:43]}") is None


@pytest.mark.parametrize(
    "run", [run_ref(0), run_ref(-1), run_ref(2**63), RunRef(7, ""), RunRef(7, "7")], ids=str
)
def test_only_runs_that_can_be_are_signed(run: RunRef) -> None:
    with pytest.raises(ValueError, match="run: "):
        sign(KEY, run)


def test_a_short_key_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="LIFECYCLE_GATEWAY__TASK_KEY"):
        sign(b"short", SEVEN)
    with pytest.raises(ValueError, match="LIFECYCLE_GATEWAY__TASK_KEY"):
        verify(b"short", sign(KEY, SEVEN))


NUMBERS = st.integers(min_value=1, max_value=2**31 - 1)


@given(st.sampled_from(Purpose), RUNS, st.integers(0, 2**31 - 1), NUMBERS)
def test_a_token_of_a_task_names_its_task_and_is_good_for_one_purpose(
    purpose: Purpose, run: RunRef, index: int, attempt: int
) -> None:
    claim = TaskClaim(purpose, run, index, attempt)
    token = sign_task(KEY, claim)
    assert verify_task(KEY, token) == claim
    assert verify(KEY, token) is None
    assert verify_task(KEY, sign(KEY, run)) is None
    mac = token.rpartition(".")[2]
    later = RunRef(run.run_id, "f" * 32)
    for other in (
        f"{run}.{index + 1}.{attempt}",
        f"{run}.{index}.{attempt + 1}",
        f"{later}.{index}.{attempt}",
    ):
        assert verify_task(KEY, f"{purpose}.{other}.{mac}") is None
    assert verify(KEY, f"task.{run}.{mac}") is None
    for other_purpose in set(Purpose) - {purpose}:
        assert verify_task(KEY, f"{other_purpose}.{run}.{index}.{attempt}.{mac}") is None


def test_numbers_cannot_be_moved_over_the_dots() -> None:
    one = run_ref(1)
    mac = sign_task(KEY, TaskClaim(Purpose.FILES, one, 23, 4)).rpartition(".")[2]
    for other in ("2.34", "23.04", "023.4", "23.4 "):
        assert verify_task(KEY, f"files.{one}.{other}.{mac}") is None
    for run, index, attempt in (
        (run_ref(0), 0, 1),
        (one, -1, 1),
        (one, 0, 0),
        (run_ref(2**63), 0, 1),
        (one, 2**31, 1),
    ):
        with pytest.raises(ValueError, match="no task can have"):
            sign_task(KEY, TaskClaim(Purpose.FILES, run, index, attempt))
