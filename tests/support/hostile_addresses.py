"""Addresses that no webhook may have, whatever a name server returns for them."""

from __future__ import annotations

HOSTILE = (
    # Invalid ports, or those of other protocols.
    *(f"https://hooks.example.com:{port}/" for port in ("", "0", "00443", "65536", "99999", "-1", "+443", "4 43", "x")),
    *(f"https://hooks.example.com:{port}/" for port in (22, 25, 53, 110, 389, 445, 1023)),
    "https://hooks.example.com:443:443/",
    "https://hooks.example.com:443.evil.example/",
    # A user name or password before the host, also to hide the host.
    "https://ann@hooks.example.com/",
    "https://ann:secret@hooks.example.com/",
    "https://:secret@hooks.example.com:99999/",
    "https://hooks.example.com@169.254.169.254/",
    "https://hooks.example.com\\@169.254.169.254/",
    "https://@hooks.example.com/",
    # Addresses outside the public internet.
    *("https://127.0.0.1/", "https://0.0.0.0/", "https://10.0.0.1/", "https://192.168.1.1:8443/", "https://172.16.0.1/"),
    *("https://169.254.169.254/latest/meta-data/", "https://168.63.129.16/", "https://100.100.100.200/"),
    *("https://[::1]/", "https://[::]/", "https://[fe80::1]/", "https://[fd00:ec2::254]/", "https://[ff02::1]/"),
    *("https://[::ffff:127.0.0.1]/", "https://[::ffff:a9fe:a9fe]/", "https://[::127.0.0.1]/", "https://[64:ff9b::a00:1]/"),
    *("https://[2002:7f00:1::]/", "https://[fe80::1%25eth0]/", "https://[::1]evil.example/", "https://[127.0.0.1]/"),
    "https://::1/",
    # The same in notations that resolvers understand.
    *("https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/"),
    *("https://0/", "https://0x/", "https://127.0.0.1./", "https://1.2.3.4.5/", "https://127.0.0.09/", "https://%31%32%37.0.0.1/"),
    # Names of this machine and of inner networks.
    *("https://localhost/", "https://localhost./", "https://LOCALHOST/", "https://a.localhost/", "https://a.localhost./"),
    *("https://metadata.google.internal/", "https://metadata/", "https://db.local/", "https://api.crawls.svc/"),
    "https://kubernetes.default.svc.cluster.local/",
    # What looks like another name, or like no name.
    *("https://h\u00f6\u00f6ks.example.com/", "https://\u24dbocalhost/", "https://127\u30020\u30020\u30021/", "https://hooks\uff0eexample.com/"),
    *("https://hooks..example.com/", "https://.example.com/", "https://hooks.example.com\\.evil.example/", "https:///x"),
    *("https:hooks.example.com", "https://", "//hooks.example.com/", "https://hooks.example.com,evil.example/"),
    *(f"https://{'a' * 64}.example.com/", f"https://{'a.' * 127}com/", "https://hooks.example.com/" + "x" * 2000),
    # White space, lines, fragments.
    *(" https://hooks.example.com/", "https://hooks.example.com/ ", "https://hooks .example.com/"),
    *("https://hooks.example.com/\r\nX: y", "https://hooks\t.example.com/", "https://hooks.example.com/\x00", "https://hooks.example.com/\u202ex"),
    *("https://hooks.example.com/#x", "https://hooks.example.com#@evil.example/", "https://hooks.example.com/#"),
    # No https.
    *("http://hooks.example.com/", "http://127.0.0.1:8500/", "http://localhost:8500.evil.example/", "http://[::1]evil.example/"),
    *("ftp://hooks.example.com/", "file:///etc/passwd", "gopher://hooks.example.com/", "javascript:alert(1)", ""),
)  # fmt: skip
#: Similar addresses that are allowed.
HARMLESS = (
    *("https://hooks.example.com/crawls?shop=7", "https://hooks.example.com:443/", "https://hooks.example.com:8443/x"),
    *("https://HOOKS.example.com/", "https://hooks.example.com./", "https://xn--hks-sna.example.com/", "https://8.8.8.8/"),
    *("https://[2606:4700:4700::1111]:8443/", "https://localhost.example.com/", "https://127.0.0.1.example.com/"),
    *("https://0x7f.example.com/", "https://internal.example.com/a@b", "https://[::ffff:8.8.8.8]/"),
)  # fmt: skip
