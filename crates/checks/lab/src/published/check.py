#!/usr/bin/env python3
"""check.py STORAGE PUBLIC_KEY FQRN [TREE]

Reads a repository in CVMFS's format as it lies in a directory, by its specification alone: Python's
own sqlite3, zlib and hashlib, and the program openssl. Verifies every signature, every digest and
every number in it, and, if a TREE is named, that it is what was published. Prints what it found as
JSON and fails with a line for each thing that does not hold. Shares nothing with the program that
it judges.
"""
import hashlib
import json
import os
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
import time
import zlib

wrongs = []
ALGORITHMS = ["", "-rmd160", "-shake128"]
COUNTED = ["regular", "symlink", "special", "dir", "nested", "chunked", "chunks", "file_size",
           "chunked_size", "xattr", "external", "external_file_size"]


def expect(holds, what):
    if not holds:
        wrongs.append(what)


def digest(data, tag):
    if tag == "":
        return hashlib.sha1(data).hexdigest()
    if tag == "-rmd160":
        run = subprocess.run(["openssl", "dgst", "-rmd160", "-provider", "legacy", "-provider",
                              "default", "-r"], input=data, capture_output=True, check=True)
        return run.stdout.split()[0].decode() + tag
    return hashlib.shake_128(data).hexdigest(20) + tag


def tag_of(text):
    return text[40:]


class Repository:
    def __init__(self, storage, public, name):
        self.storage, self.public, self.name = storage, public, name
        self.objects = {}
        self.entries = {}

    def read(self, path):
        with open(os.path.join(self.storage, path), "rb") as file:
            return file.read()

    def object(self, text, letter):
        data = self.read(f"data/{text[:2]}/{text[2:]}{letter}")
        expect(digest(data, tag_of(text)) == text, f"object {text}{letter} has its digest")
        return data

    def sealed(self, file):
        """The lines, the digest's spelling and the signature."""
        text, rest = self.read(file).split(b"\n--\n", 1)
        spelling, signature = rest.split(b"\n", 1)
        text, spelling = text + b"\n", spelling.decode()
        expect(digest(text, tag_of(spelling)) == spelling, f"{file} has its digest")
        return text.decode().splitlines(), spelling, signature

    def manifest(self):
        lines, spelling, signature = self.sealed(".cvmfspublished")
        said = {line[0]: line[1:] for line in lines}
        expect(said.get("N") == self.name, "the manifest is this repository's")
        expect(said.get("R") == hashlib.md5(b"").hexdigest(), "the manifest's root path")
        expect(int(said["D"]) > 0 and int(said["S"]) > 0, "time to live and revision")
        expect(abs(int(said["T"]) - time.time()) < 7 * 86400, "the time of publication")
        pem = zlib.decompress(self.object(said["X"], "X"))
        key = openssl(["x509", "-noout", "-pubkey"], pem)
        with kept(key) as key, kept(signature) as signature:
            verified = subprocess.run(["openssl", "dgst", "-sha1", "-verify", key, "-signature",
                                       signature], input=spelling.encode(), capture_output=True)
        expect(verified.returncode == 0, "the manifest is signed with its certificate's key")
        self.whitelist(openssl(["x509", "-outform", "DER"], pem))
        return said

    def whitelist(self, certificate):
        lines, spelling, signature = self.sealed(".cvmfswhitelist")
        with kept(signature) as signature:
            recovered = subprocess.run(["openssl", "pkeyutl", "-verifyrecover", "-pubin", "-inkey",
                                        self.public, "-in", signature], capture_output=True)
        expect(recovered.stdout == spelling.encode(), "the whitelist is signed with the master key")
        expect(len(lines[0]) == 14 and lines[0].isdigit(), "the whitelist's first line is a time")
        now = time.strftime("%Y%m%d%H", time.gmtime())
        expect(lines[1][0] == "E" and lines[1][1:11] > now, "the whitelist has not expired")
        expect(lines[2] == "N" + self.name, "the whitelist is this repository's")
        prints = [line.split("#")[0].strip() for line in lines[3:]]
        prints = [text.replace(":", "").lower() for text in prints if text]
        listed = any(digest(certificate, tag_of(text)) == text for text in prints)
        expect(listed, "the certificate is on the whitelist")

    def catalog(self, text, path, size):
        data = zlib.decompress(self.object(text, "C"))
        expect(size in (None, len(data)), f"catalog {path or '/'} is as long as is said")
        with kept(data) as file:
            db = sqlite3.connect(file)
            db.text_factory = bytes
            return self.rows(db, path)

    def rows(self, db, path):
        said = dict(db.execute("select key, value from properties"))
        said = {key.decode(): value for key, value in said.items()}
        expect(said["schema"] == b"2.5", "schema")
        expect(said.get("root_prefix", b"") == path.encode(), f"the prefix of {path or '/'}")
        has_nanos = int(said["schema_revision"]) >= 7
        columns = ("md5path_1, md5path_2, parent_1, parent_2, hardlinks, hash, size, mode, mtime, "
                   "flags, name, symlink, uid, gid, xattr, " + ("mtimens" if has_nanos else "0"))
        rows = {row[:2]: row for row in db.execute(f"select {columns} from catalog")}
        pieces, nested = {}, {}
        for one, two, offset, size, value in db.execute(
                "select md5path_1, md5path_2, offset, size, hash from chunks order by offset"):
            pieces.setdefault((one, two), []).append((offset, size, value))
        for name, text, size in db.execute("select path, sha1, size from nested_catalogs"):
            nested[name.decode()] = (text.decode(), size)
        counted = dict.fromkeys(COUNTED, 0)
        counted["nested"], counted["chunks"] = len(nested), sum(map(len, pieces.values()))
        children = {}
        for key, row in rows.items():
            if key != path_hash(path):
                children.setdefault(row[2:4], []).append(key)
        todo, seen, groups = [(path_hash(path), path)], set(), {}
        while todo:
            key, at = todo.pop()
            expect(key in rows, f"{at or '/'} has a row")
            if key not in rows:
                continue
            seen.add(key)
            self.row(rows[key], at, path, pieces.get(key, []), counted, groups)
            below = children.get(key, [])
            expect(at not in nested or not below, f"{at} is in one catalog only")
            for child in below:
                name = rows[child][10].decode(errors="surrogateescape")
                expect(path_hash(f"{at}/{name}") == child, f"{at}/{name} has the hash of its path")
                todo.append((child, f"{at}/{name}"))
        expect(seen == set(rows), f"all rows of catalog {path or '/'} are below its root")
        for links, names in groups.values():
            expect(links == len(names), f"{names} are as many as their link count")
        below = dict.fromkeys(COUNTED, 0)
        for name, (text, size) in nested.items():
            is_place = path_hash(name) in rows and rows[path_hash(name)][9] & 2
            expect(is_place, f"{name} is the place of a catalog")
            inner = self.catalog(text, name, size)
            marker = f"{name}/.cvmfscatalog"
            expect(marker in self.entries, f"{marker} is there")
            below = {of: below[of] + inner[of] for of in COUNTED}
        told = {key.decode(): value for key, value in
                db.execute("select counter, value from statistics")}
        for of in COUNTED:
            expect(told.get(f"self_{of}") == counted[of], f"self_{of} of {path or '/'}: "
                   f"{told.get(f'self_{of}')} is {counted[of]}")
            expect(told.get(f"subtree_{of}") == below[of], f"subtree_{of} of {path or '/'}")
        return {of: counted[of] + below[of] for of in COUNTED}

    def row(self, row, at, path, pieces, counted, groups):
        links, value, size, mode, mtime, flags, _, target, uid, gid, xattr, nanos = row[4:]
        kind, tag = stat.S_IFMT(mode), ALGORITHMS[flags >> 8 & 7]
        expect(bool(flags & 1) == (kind == stat.S_IFDIR), f"{at} is a directory by its flags")
        expect(bool(flags & 8) == (kind == stat.S_IFLNK), f"{at} is a link by its flags")
        expect(bool(flags & 32) == (at == path != ""), f"{at} is a nested root by its flags")
        expect(not flags & 2 or not flags & 32, f"{at} is not both ends of a seam")
        attributes = unpacked(xattr)
        counted["xattr"] += bool(attributes)
        plain = None
        if kind == stat.S_IFDIR:
            counted["dir"] += 1
        elif kind == stat.S_IFLNK:
            counted["symlink"] += 1
            expect(size == len(target) and value is None, f"{at}: a link's size is its target's")
        elif kind == stat.S_IFREG:
            counted["regular"] += 1
            counted["file_size"] += size
            if links >> 32:
                names = groups.setdefault((row[2:4], links >> 32), (links & 0xffffffff, []))[1]
                names.append(at)
            plain = hashlib.sha256()
            if flags & 64:
                counted["chunked"] += 1
                counted["chunked_size"] += size
                offset = 0
                for begin, length, piece in pieces:
                    expect(begin == offset, f"{at} has no gaps")
                    part = self.bytes_of(piece.hex() + tag, "P", flags)
                    expect(len(part) == length, f"{at}: a piece is as long as is said")
                    plain.update(part)
                    offset += length
                expect(offset == size and pieces, f"{at} is whole")
            else:
                expect(not pieces and value is not None, f"{at} is in one piece")
                part = self.bytes_of(value.hex() + tag, "", flags)
                expect(len(part) == size, f"{at} is as long as is said")
                plain.update(part)
            plain = plain.hexdigest()
        else:
            counted["special"] += 1
            expect(flags & 16 and value is None, f"{at} is special by its flags")
        if at == path and path:
            known = self.entries.get(at)
            expect(known and known[:6] == (mode, links & 0xffffffff, mtime, nanos, uid, gid),
                   f"both rows of {at} are alike")
        self.entries[at] = (mode, links & 0xffffffff, mtime, nanos, uid, gid,
                            target.decode(errors="surrogateescape"), attributes, plain)

    def bytes_of(self, text, letter, flags):
        known = (text, letter, flags >> 11 & 7)
        if known not in self.objects:
            data = self.object(text, letter)
            self.objects[known] = data if known[2] else zlib.decompress(data)
        return self.objects[known]


def path_hash(path):
    return struct.unpack("<qq", hashlib.md5(path.encode(errors="surrogateescape")).digest())


def unpacked(blob):
    if not blob:
        return {}
    expect(blob[0] == 1, "the version of extended attributes")
    at, found = 2, {}
    for _ in range(blob[1]):
        name, value = blob[at], blob[at + 1]
        found[blob[at + 2:at + 2 + name].decode()] = blob[at + 2 + name:at + 2 + name + value]
        at += 2 + name + value
    expect(at == len(blob), "extended attributes end where they end")
    return found


def openssl(words, data):
    return subprocess.run(["openssl", *words], input=data, capture_output=True, check=True).stdout


class kept:
    """Bytes in a file, for as long as it is looked at."""
    def __init__(self, data):
        self.data = data

    def __enter__(self):
        self.file = tempfile.NamedTemporaryFile()
        self.file.write(self.data)
        self.file.flush()
        return self.file.name

    def __exit__(self, *_):
        self.file.close()


def compare(repository, tree):
    """Is the repository what the tree is? Markers that the publisher made itself are its own."""
    own = {path for path in repository.entries if path.endswith("/.cvmfsautocatalog")}
    own |= {path.replace("autocatalog", "catalog") for path in own}
    there = set()
    for folder, folders, files in os.walk(tree):
        for name in ["."] if folder == tree else []:
            there.add("")
        for name in folders + files:
            there.add("/" + os.path.relpath(os.path.join(folder, name), tree))
    expect(there == set(repository.entries) - (own - there), "the same names: "
           f"{sorted(there ^ (set(repository.entries) - (own - there)))[:5]}")
    for path in sorted(there & set(repository.entries)):
        full = tree + path
        info = os.lstat(full)
        mode, links, mtime, nanos, uid, gid, target, attributes, plain = repository.entries[path]
        same = (info.st_mode, int(info.st_mtime_ns // 10**9), info.st_mtime_ns % 10**9, info.st_uid,
                info.st_gid) == (mode, mtime, nanos, uid, gid)
        expect(same, f"{path}: mode, time and owner")
        if stat.S_ISLNK(mode):
            expect(os.readlink(full) == target, f"{path}: its target")
            continue
        real = {name: os.getxattr(full, name) for name in os.listxattr(full)
                if name.startswith("user.")}
        expect(real == attributes, f"{path}: its extended attributes")
        if stat.S_ISREG(mode):
            with open(full, "rb") as file:
                expect(hashlib.sha256(file.read()).hexdigest() == plain, f"{path}: its bytes")


def main():
    storage, public, name = sys.argv[1:4]
    repository = Repository(storage, public, name)
    said = repository.manifest()
    totals = repository.catalog(said["C"], "", int(said["B"]))
    if "H" in said:
        with kept(zlib.decompress(repository.object(said["H"], "H"))) as file:
            db = sqlite3.connect(file)
            head = db.execute("select hash, revision from tags where name = 'trunk'").fetchone()
            expect(head == (said["C"], int(said["S"])), "the tag of the head")
    if len(sys.argv) > 4:
        compare(repository, sys.argv[4].rstrip("/"))
    for wrong in wrongs:
        print("does not hold:", wrong, file=sys.stderr)
    print(json.dumps({"revision": int(said["S"]), "ttl": int(said["D"]), "root": said["C"],
                      "entries": len(repository.entries), "objects": len(repository.objects),
                      **totals}))
    sys.exit(bool(wrongs))


main()
