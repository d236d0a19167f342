"""Turns what strace saw of a program into a trace, and a directory into a tree.

    record.py tree ROOT OUT.tree.gz
    record.py seconds COMMAND...
    record.py trace OUT.trace.gz TREE.tree.gz ROOT LANES SECONDS STRACE-PREFIX

A tree is text: `/PATH` begins a directory, and the lines after it are its entries in the order of
their names: `NAME` a directory, `NAME SIZE` a file, `NAME @` a symlink. Entries are numbered as they
stand, from 1; 0 is the root. A trace begins with `trace LANES MICROSECONDS` (how many of its
processes run at once, and how long one computes between two calls: the processor's seconds by the
calls), then has a call a line:

    p            the calls of another process follow
    s N          stat, lstat, access, execve
    x N NAME     the same of a name that is not in directory N
    o N BYTES    opened, and so much read
    l N          listed
    k N          readlink

`strace -ff -ttt -y -e trace=...` wrote one file per process. Only what lies below ROOT is told, by
number: nothing of the machine is. What a program made is left out, for its maker knows it; and so
is what its kernel knew, because an earlier call had asked for it.
"""

import gzip
import os
import re
import resource
import subprocess
import sys

MAPPED_MAX = 4 << 20  # Of a mapped file a program touches some: what a kernel reads around that.


def write(path, lines):
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(("\n".join(lines) + "\n").encode())


def tree(root, out):
    lines = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        lines.append("/" + os.path.relpath(folder, root).replace(".", "", 1)
                     if folder == root else "/" + os.path.relpath(folder, root))
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                lines.append(f"{name.replace(' ', '_')} @")
            elif os.path.isdir(path):
                lines.append(name.replace(" ", "_"))
            elif os.path.isfile(path):
                lines.append(f"{name.replace(' ', '_')} {os.path.getsize(path)}")
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(folder, name))]
    write(out, lines)


def numbers(path):
    """Number and kind of each path of a tree."""
    known, number, folder = {"": (0, "d")}, 0, ""
    for line in gzip.open(path, "rt").read().splitlines():
        if line.startswith("/"):
            folder = line[1:]
            continue
        number += 1
        name, _, size = line.partition(" ")
        kind = {"": "d", "@": "l"}.get(size, "f")
        known[f"{folder}/{name}".lstrip("/")] = (number, kind)
    return known


CALL = re.compile(r"^(\d+\.\d+) (\w+)\((.*)\)\s+= (-?\d+|\?)(.*)$")
AT = re.compile(r'^(?:AT_FDCWD|\d+)<([^>]*)>, "((?:[^"\\]|\\.)*)"')
PLAIN = re.compile(r'^"((?:[^"\\]|\\.)*)"')
DESCRIPTOR = re.compile(r"^(\d+)<([^>]*)>")
MAPPED = re.compile(r"^[^,]+, (\d+), [^,]+, [^,]+, (\d+)<([^>]*)>, (\w+)")
LOOKS = {"stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "execve"}


class Process:
    def __init__(self, root, known):
        self.root, self.known, self.cwd = root, known, root
        self.open, self.calls, self.listed = {}, [], set()

    def inside(self, path):
        """The path below the root, with no symlink before its last name."""
        path = os.path.normpath(os.path.join(self.cwd, path))
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return os.path.relpath(path, self.root) if path.startswith(self.root + "/") else (
            "" if path == self.root else None)

    def missing(self, inside):
        """The first name on the way that is not there."""
        at = ""
        for name in inside.split("/"):
            path = f"{at}/{name}".lstrip("/")
            if path not in self.known:
                return (self.known[at][0], name)
            at = path
        return None

    def look(self, time, inside, is_there):
        if inside in self.known and is_there:
            self.calls.append((time, f"s {self.known[inside][0]}"))
        elif not is_there and (missing := self.missing(inside)):
            name = missing[1].replace(" ", "_")
            self.calls.append((time, f"x {missing[0]} {name}"))

    def see(self, line):
        if not (call := CALL.match(line)):
            return
        time, name, words, result, error = float(call[1]), call[2], call[3], call[4], call[5]
        if name == "chdir" and result == "0":
            self.cwd = os.path.normpath(os.path.join(self.cwd, PLAIN.match(words)[1]))
            return
        if name in ("read", "pread64", "getdents64") and (found := DESCRIPTOR.match(words)):
            self.read(time, name, found, int(result) if result != "?" else 0)
            return
        if name == "mmap" and (found := MAPPED.match(words)):
            opened = self.open.get(found[2])
            if opened:
                opened["mapped"] += int(found[1])
            return
        if at := AT.match(words):
            if words.startswith("AT_FDCWD"):
                self.cwd = at[1]
            path = os.path.join(at[1], at[2])
        elif plain := PLAIN.match(words):
            path = plain[1]
        else:
            return
        if at and at[2] == "":
            return
        inside = self.inside(path)
        if inside is None:
            return
        is_there = "ENOENT" not in error and "ENOTDIR" not in error
        if name in LOOKS:
            self.look(time, inside, is_there)
        elif name in ("readlink", "readlinkat"):
            kind = self.known.get(inside, (0, ""))
            if kind[1] == "l":
                self.calls.append((time, f"k {kind[0]}"))
            else:
                self.look(time, inside, is_there)
        elif name in ("open", "openat"):
            self.opened(time, inside, words, result)

    def opened(self, time, inside, words, result):
        if int(result) < 0:
            self.look(time, inside, False)
            return
        self.listed.discard(inside)
        number, kind = self.known.get(inside, (0, ""))
        if kind == "l":
            real = os.path.realpath(os.path.join(self.root, inside))
            inside = os.path.relpath(real, self.root) if real.startswith(self.root) else ""
            number, kind = self.known.get(inside, (0, ""))
        if kind == "f" and not ("O_WRONLY" in words or "O_TRUNC" in words):
            call = {"bytes": 0, "mapped": 0, "number": number}
            self.open[result] = call
            self.calls.append((time, call))
        else:
            self.open.pop(result, None)

    def read(self, time, name, found, count):
        if name == "getdents64":
            inside = self.inside(found[2])
            if inside in self.known and inside not in self.listed:
                self.listed.add(inside)
                self.calls.append((time, f"l {self.known[inside][0]}"))
        elif opened := self.open.get(found[1]):
            opened["bytes"] += max(count, 0)


def told(call):
    if isinstance(call, str):
        return call
    mapped = min(call["mapped"], MAPPED_MAX)
    return f"o {call['number']} {call['bytes'] + mapped}"


def trace(out, tree_path, root, lanes, seconds, prefix):
    root, known = os.path.realpath(root), numbers(tree_path)
    folder, base = os.path.split(prefix)
    processes = []
    for name in os.listdir(folder):
        if name.startswith(base + "."):
            process = Process(root, known)
            with open(os.path.join(folder, name), errors="replace") as lines:
                for line in lines:
                    process.see(line.rstrip("\n"))
            if process.calls:
                processes.append(process.calls)
    processes.sort(key=lambda calls: calls[0][0])
    if int(lanes) == 1:
        processes = [sorted((call for calls in processes for call in calls), key=lambda c: c[0])]
    lines, count, known = [], 0, {}
    for calls in processes:
        new = [call for call in (told(call) for _, call in calls) if is_new(call, known)]
        if new:
            lines.extend(["p"] + new)
            count += len(new)
    pause = int(float(seconds) * 1e6 / max(count, 1))
    write(out, [f"trace {lanes} {pause}"] + lines)
    print(f"{out}: {count} calls")


def is_new(call, known):
    """Does a kernel ask for this that keeps what it asked for?"""
    what, count = call, 1
    if call.startswith("o"):
        what, count = call.rsplit(" ", 1)
    is_more = int(count) > known.get(what, -1)
    known[what] = max(int(count), known.get(what, -1))
    return is_more


def seconds(*command):
    """What a command takes of processors."""
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    {"tree": tree, "trace": trace, "seconds": seconds}[sys.argv[1]](*sys.argv[2:])
