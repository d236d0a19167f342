"""Looks through the tar of an image for what must not be in it, and shares nothing with the
program that made the tar.

usage: search.py TAR [FILE...]    the bytes of each FILE must not be in it either
"""

import hashlib
import re
import sys
import tarfile

PEM = re.compile(rb"-----BEGIN ([A-Z]+ )*PRIVATE KEY-----\r?\n[A-Za-z0-9+/=:, \r\n-]{40}")
NAMES = re.compile(
    r"(\.keytab|(^|/)krb5cc_[^/]*|(^|/)ssh_host_[^/]*_key|(^|/)id_(rsa|ed25519|ecdsa)"
    r"|(^|/)random-seed|credential\.secret|\.secret|tieline/machine\.toml)$"
)


def findings(tar, texts):
    sums, suspects = set(), []
    for member in tar:
        name = member.name.removeprefix("./")
        if NAMES.search(name):
            yield name, "its name"
        if not member.isfile():
            continue
        data = tar.extractfile(member).read()
        if name.startswith("var/lib/dpkg/info/") and name.endswith(".md5sums"):
            for line in data.decode().splitlines():
                md5, path = line.split("  ", 1)
                sums.add((md5, path.removeprefix("usr/")))
        if name == "etc/machine-id" and data:
            yield name, "a machine's id"
        if name in ("etc/shadow", "etc/shadow-"):
            for line in data.decode().splitlines():
                if line.split(":")[1][:1] not in ("*", "!"):
                    yield name, "a password of " + line.split(":")[0]
        if data[:2] == b"\5\2" and len(data) > 20 or data[:4] == b"\5\4\0\x0c":
            yield name, "a keytab or tickets"
        if any(text in data for text in texts):
            yield name, "a secret of this test"
        if PEM.search(data):
            path = name.removeprefix("usr/")
            suspects.append((name, (hashlib.md5(data).hexdigest(), path)))
    for name, file in suspects:
        if file not in sums:
            yield name, "a private key"


def main():
    texts = [open(path, "rb").read().strip() for path in sys.argv[2:]]
    assert all(len(text) > 15 for text in texts), "too short to be looked for"
    with tarfile.open(sys.argv[1]) as tar:
        found = sorted(set(findings(tar, texts)))
    for name, what in found:
        print(f"{name}: {what}")
    return 1 if found else 0


sys.exit(main())
