"""The canonical form of a host, whatever people and crawlers write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.hosts import HOST_MAX, domain_of, host_of


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://me:pw@Bücher.example:8443/a?b#c", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("SHOP.example.", "shop.example"),
        ("shop.example:80", "shop.example"),
        ("localhost", "localhost"),
        ("http://[2001:DB8:0::1]:80/", "2001:db8::1"),
        ("::1", "::1"),
        ("10.0.0.1:99", "10.0.0.1"),
        ("_dmarc.shop.example", "_dmarc.shop.example"),
    ],
)
def test_one_host_has_one_form(text: str, host: str) -> None:
    assert host_of(text) == host
    assert host_of(host) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "http://",
        "a b",
        "..",
        "-",
        "http://[::1",
        "javascript:alert(1)",
        "a..b",
        "x:99999",
        "é" * 300,
        "a" * 20000,
        "\x00",
        "shop.example\n.evil.example",
    ],
)
def test_what_is_no_host_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^args\.start_url: .*give a host|at most"):
        host_of(text, "args.start_url")


def test_no_password_is_in_the_error() -> None:
    with pytest.raises(InvalidRequest, match=r"'a b/' is not allowed"):
        host_of("https://me:secret@a b/")


@given(st.text(max_size=60))
def test_any_text_is_a_host_or_is_refused(text: str) -> None:
    try:
        host = host_of(text)
    except InvalidRequest:
        return
    assert host.isascii()
    assert host == host.lower()
    assert len(host) <= HOST_MAX
    assert host_of(host) == host
    assert host == domain_of(host) or host.endswith(f".{domain_of(host)}")


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("www.shop.co.uk", "shop.co.uk"),
        ("me.github.io", "me.github.io"),
        ("co.uk", "co.uk"),
        ("localhost", "localhost"),
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_the_domain_is_what_its_owner_registered(host: str, domain: str) -> None:
    assert domain_of(host) == domain
