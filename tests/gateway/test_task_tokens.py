"""The token of a crawler for its own run."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.task_tokens import sign, sign_files, verify, verify_files

KEY = b"k" * 32
RUNS = st.integers(min_value=1, max_value=2**63 - 1)


@given(RUNS, st.binary(min_size=32, max_size=64))
def test_a_signed_token_names_its_run(run_id: int, key: bytes) -> None:
    assert verify(key, sign(key, run_id)) == run_id


@given(RUNS, st.binary(min_size=32, max_size=64), st.binary(min_size=32, max_size=64))
def test_another_key_opens_nothing(run_id: int, key: bytes, other: bytes) -> None:
    # HMAC pads short keys with zeros, so keys that differ in trailing zeros alone are the same key.
    if key.rstrip(b"\0") != other.rstrip(b"\0"):
        assert verify(other, sign(key, run_id)) is None


@given(RUNS, st.text(max_size=200), st.data())
def test_a_changed_token_opens_nothing(run_id: int, noise: str, data: st.DataObject) -> None:
    token = sign(KEY, run_id)
    at = data.draw(st.integers(0, len(token) - 1))
    for changed in (noise, token[:at] + token[at + 1 :], token[:at] + noise + token[at:], token.upper(), token + "\n"):
        if changed != token:
            assert verify(KEY, changed) is None


def test_a_token_of_one_run_does_not_fit_another() -> None:
    mac = sign(KEY, 7).rpartition(".")[2]
    for number in ("8", "07", "+7", "7 ", "٧", "-7", "7.0", str(2**63)):
        assert verify(KEY, f"task.{number}.{mac}") is None


def test_a_plain_signature_with_the_same_key_is_no_token() -> None:
    mac = hmac.new(KEY, b"7", hashlib.sha256).hexdigest()
    assert verify(KEY, f"task.7.{mac}") is None
    assert verify(KEY, f"task.7.{mac[:43]}") is None


@pytest.mark.parametrize("run_id", [0, -1, 2**63])
def test_only_ids_that_a_run_can_have_are_signed(run_id: int) -> None:
    with pytest.raises(ValueError, match="run_id"):
        sign(KEY, run_id)


def test_a_short_key_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="LIFECYCLE_GATEWAY__TASK_KEY"):
        sign(b"short", 1)
    with pytest.raises(ValueError, match="LIFECYCLE_GATEWAY__TASK_KEY"):
        verify(b"short", "task.1.x")


NUMBERS = st.integers(min_value=1, max_value=2**31 - 1)


@given(RUNS, st.integers(0, 2**31 - 1), NUMBERS)
def test_a_token_for_files_names_its_task_and_is_no_token_of_the_run(run_id: int, index: int, attempt: int) -> None:
    token = sign_files(KEY, run_id, index, attempt)
    assert verify_files(KEY, token) == (run_id, index, attempt)
    assert verify(KEY, token) is None
    assert verify_files(KEY, sign(KEY, run_id)) is None
    mac = token.rpartition(".")[2]
    for other in (f"{run_id}.{index + 1}.{attempt}", f"{run_id}.{index}.{attempt + 1}", f"{run_id}0.{index}.{attempt}"):
        assert verify_files(KEY, f"files.{other}.{mac}") is None
    assert verify(KEY, f"task.{run_id}.{mac}") is None


def test_numbers_cannot_be_moved_over_the_dots() -> None:
    mac = sign_files(KEY, 1, 23, 4).rpartition(".")[2]
    for other in ("12.3.4", "1.2.34", "1.23.04", "01.23.4", "1.23.4 "):
        assert verify_files(KEY, f"files.{other}.{mac}") is None
    for run_id, index, attempt in ((0, 0, 1), (1, -1, 1), (1, 0, 0), (2**63, 0, 1), (1, 2**31, 1)):
        with pytest.raises(ValueError, match="no such task"):
            sign_files(KEY, run_id, index, attempt)
