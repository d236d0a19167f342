#!/usr/bin/env python3
"""foreign.py TREE STORAGE FQRN KEYS ALGORITHM REVISION [plain]

Writes TREE as a repository in CVMFS's format, as makers other than ours may: with the digests sha1,
rmd160 or shake128, catalogs of any revision of schema 2.5, bytes packed or plain, and keys of
openssl. Python's own modules and the program openssl alone; shares nothing with the program that
reads what it wrote.
"""
import hashlib
import os
import sqlite3
import stat
import struct
import subprocess
import sys
import time
import zlib

TREE, STORAGE, NAME, KEYS, ALGORITHM, REVISION = sys.argv[1:7]
REVISION, IS_PLAIN = int(REVISION), sys.argv[7:] == ["plain"]
TAG = "" if ALGORITHM == "sha1" else "-" + ALGORITHM
FLAGS = {"sha1": 0, "rmd160": 1, "shake128": 2}[ALGORITHM] << 8 | IS_PLAIN << 11
CUT = 3 << 20
COUNTERS = ["regular", "symlink", "special", "dir", "nested", "chunked", "chunks", "file_size",
            "chunked_size", "xattr", "external", "external_file_size"]
SINCE = {"xattr": 2, "external": 3, "external_file_size": 3, "special": 5}


def openssl(words, data=None):
    return subprocess.run(["openssl", *words], input=data, capture_output=True, check=True).stdout


def digest(data):
    if ALGORITHM == "sha1":
        return hashlib.sha1(data).digest()
    if ALGORITHM == "shake128":
        return hashlib.shake_128(data).digest(20)
    run = openssl(["dgst", "-rmd160", "-provider", "legacy", "-provider", "default", "-binary"],
                  data)
    return run


def store(data, letter="", is_plain=False):
    stored = data if is_plain else zlib.compress(data)
    value = digest(stored)
    name = value.hex()
    folder = os.path.join(STORAGE, "data", name[:2])
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name[2:] + TAG + letter), "wb") as file:
        file.write(stored)
    return value


def path_hash(path):
    return struct.unpack("<qq", hashlib.md5(path.encode()).digest())


class Catalog:
    def __init__(self, prefix):
        self.prefix, self.groups = prefix, 0
        self.own, self.below = dict.fromkeys(COUNTERS, 0), dict.fromkeys(COUNTERS, 0)
        self.db = sqlite3.connect(":memory:")
        # One that was upgraded in its place has its newest columns at the end.
        more = ", xattr blob" * (REVISION >= 2) + ", mtimens integer" * (REVISION >= 7)
        size = ", size integer" * (REVISION >= 1)
        self.db.executescript(f"""
            create table catalog (md5path_1 integer, md5path_2 integer, parent_1 integer,
              parent_2 integer, hardlinks integer, hash blob, size integer, mode integer,
              mtime integer, flags integer, name text, symlink text, uid integer, gid integer
              {more}, primary key (md5path_1, md5path_2));
            create index idx_catalog_parent on catalog (parent_1, parent_2);
            create table chunks (md5path_1 integer, md5path_2 integer, offset integer,
              size integer, hash blob, primary key (md5path_1, md5path_2, offset, size));
            create table nested_catalogs (path text, sha1 text {size}, primary key (path));
            create table properties (key text primary key, value text);
            create table statistics (counter text primary key, value integer);""")

    def row(self, path, info, flags, links=1, value=None, target=""):
        name = os.path.basename(path)
        parent = (0, 0) if path == "" else path_hash(os.path.dirname(path).rstrip("/"))
        size = len(target.encode()) if target else info.st_size
        row = [*path_hash(path), *parent, links, value, size, info.st_mode, int(info.st_mtime),
               flags, name, target, info.st_uid, info.st_gid]
        if REVISION >= 2:
            blob = self.xattrs(path, flags)
            self.own["xattr"] += blob is not None
            row.append(blob)
        if REVISION >= 7:
            row.append(info.st_mtime_ns % 10**9)
        marks = ",".join("?" * len(row))
        self.db.execute(f"insert into catalog values ({marks})", row)

    def xattrs(self, path, flags):
        full = TREE + path
        names = [] if flags & 8 else sorted(os.listxattr(full))
        all = [(name.encode(), os.getxattr(full, name)) for name in names
               if name.startswith("user.")]
        each = [bytes([len(name), len(value)]) + name + value for name, value in all]
        return b"".join([bytes([1, len(all)]), *each]) if all else None

    def directory(self, path, info, flags):
        below = sum(entry.is_dir(follow_symlinks=False) for entry in os.scandir(TREE + path))
        self.own["dir"] += 1
        self.row(path, info, flags, links=2 + below)

    def fill(self, path):
        infos = {name: os.lstat(f"{TREE}{path}/{name}") for name in os.listdir(TREE + path)}
        groups = {}
        for name, info in infos.items():
            if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
                groups.setdefault(info.st_ino, []).append(name)
        numbers = {}
        for name, info in sorted(infos.items()):
            at = f"{path}/{name}"
            if stat.S_ISDIR(info.st_mode):
                if os.path.exists(f"{TREE}{at}/.cvmfscatalog"):
                    self.directory(at, info, 3)
                    value, size, counted = Catalog(at).write(info)
                    nested = [at, value.hex() + TAG, size][:3 if REVISION >= 1 else 2]
                    marks = ",".join("?" * len(nested))
                    self.db.execute(f"insert into nested_catalogs values ({marks})", nested)
                    self.own["nested"] += 1
                    self.below = {of: self.below[of] + counted[of] for of in COUNTERS}
                else:
                    self.directory(at, info, 1)
                    self.fill(at)
            elif stat.S_ISLNK(info.st_mode):
                self.own["symlink"] += 1
                self.row(at, info, 12, target=os.readlink(TREE + at))
            elif stat.S_ISREG(info.st_mode):
                links = len(groups.get(info.st_ino, [name]))
                if links > 1:
                    if info.st_ino not in numbers:
                        self.groups += 1
                        numbers[info.st_ino] = self.groups
                    links |= numbers[info.st_ino] << 32
                self.file(at, info, links)
            elif REVISION >= 5:
                self.own["special"] += 1
                self.row(at, info, 20)

    def file(self, at, info, links):
        with open(TREE + at, "rb") as file:
            data = file.read()
        self.own["regular"] += 1
        self.own["file_size"] += len(data)
        if len(data) <= CUT:
            return self.row(at, info, 4 | FLAGS, links, store(data, "", IS_PLAIN))
        self.own["chunked"] += 1
        self.own["chunked_size"] += len(data)
        self.row(at, info, 68 | FLAGS, links)
        for offset in range(0, len(data), CUT):
            part = data[offset:offset + CUT]
            self.own["chunks"] += 1
            self.db.execute("insert into chunks values (?, ?, ?, ?, ?)",
                            [*path_hash(at), offset, len(part), store(part, "P", IS_PLAIN)])

    def write(self, info):
        self.directory(self.prefix, info, 33 if self.prefix else 1)
        self.fill(self.prefix)
        for of in COUNTERS:
            if REVISION >= SINCE.get(of, 0):
                for whose, counted in ("self", self.own), ("subtree", self.below):
                    self.db.execute("insert into statistics values (?, ?)",
                                    [f"{whose}_{of}", counted[of]])
        said = {"schema": "2.5", "schema_revision": str(REVISION), "revision": "1"}
        if self.prefix:
            said["root_prefix"] = self.prefix
        self.db.executemany("insert into properties values (?, ?)", said.items())
        self.db.commit()
        image = self.image()
        counted = {of: self.own[of] + self.below[of] for of in COUNTERS}
        return store(image, "C"), len(image), counted

    def image(self):
        path = os.path.join(STORAGE, "draft")
        with sqlite3.connect(path) as file:
            self.db.backup(file)
        file.close()
        with open(path, "rb") as file:
            data = file.read()
        os.remove(path)
        return data


def sealed(file, lines, sign):
    text = "".join(line + "\n" for line in lines).encode()
    spelling = (digest(text).hex() + TAG).encode()
    with open(os.path.join(STORAGE, file), "wb") as out:
        out.write(text + b"--\n" + spelling + b"\n" + sign(spelling))


def keys():
    """As old tools make them: keys in their own form, a certificate of version 1."""
    os.makedirs(KEYS, exist_ok=True)
    for name in "masterkey", "key":
        with open(f"{KEYS}/{NAME}.{name}", "wb") as file:
            file.write(openssl(["genrsa", "-traditional", "2048"]))
    with open(f"{KEYS}/{NAME}.pub", "wb") as file:
        file.write(openssl(["rsa", "-in", f"{KEYS}/{NAME}.masterkey", "-pubout"]))
    request = openssl(["req", "-new", "-subj", f"/CN={NAME}", "-key", f"{KEYS}/{NAME}.key"])
    certificate = openssl(["x509", "-req", "-days", "1", "-signkey", f"{KEYS}/{NAME}.key"], request)
    with open(f"{KEYS}/{NAME}.crt", "wb") as file:
        file.write(certificate)
    return certificate


def main():
    os.makedirs(STORAGE, exist_ok=True)
    certificate = keys()
    root, size, _ = Catalog("").write(os.lstat(TREE))
    now = time.time()
    stamp = lambda at: time.strftime("%Y%m%d%H%M%S", time.gmtime(at))
    der = openssl(["x509", "-outform", "DER"], certificate)
    value = digest(der).hex().upper()
    colons = ":".join(value[at:at + 2] for at in range(0, 40, 2)) + TAG.upper()
    sealed(".cvmfswhitelist", [stamp(now), "E" + stamp(now + 86400), "N" + NAME, colons + " # ours"],
           lambda text: openssl(["pkeyutl", "-sign", "-inkey", f"{KEYS}/{NAME}.masterkey"], text))
    lines = ["C" + root.hex() + TAG, f"B{size}", "R" + hashlib.md5(b"").hexdigest(), "D240", "S1",
             "Gno", "N" + NAME, "X" + store(certificate, "X").hex() + TAG, f"T{int(now)}"]
    sealed(".cvmfspublished", lines,
           lambda text: openssl(["dgst", "-sha1", "-sign", f"{KEYS}/{NAME}.key"], text))


main()
