#!/usr/bin/env python3
"""Records how programs read files: record.py OUT.trace FILE... -- COMMAND...

Runs the command under strace and writes what it opened and read of the files, a line each:
`file NUMBER SIZE NAME`, `open NUMBER`, `read NUMBER OFFSET LENGTH`. Reads beyond a file's end are
left out. Needs strace.
"""

import os
import re
import subprocess
import sys
import tempfile

CALL = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)")


def main():
    out, words = sys.argv[1], sys.argv[2:]
    split = words.index("--")
    files, command = [os.path.realpath(name) for name in words[:split]], words[split + 1:]
    with tempfile.NamedTemporaryFile("r") as said:
        calls = "trace=openat,open,read,pread64,lseek,close,dup,dup2"
        subprocess.run(["strace", "-f", "-e", calls, "-o", said.name, *command], check=True,
                       stdout=subprocess.DEVNULL)
        lines = whole(said.readlines())
    with open(out, "w") as trace:
        for number, name in enumerate(files):
            trace.write(f"file {number} {os.path.getsize(name)} {os.path.basename(name)}\n")
        trace.writelines(line + "\n" for line in followed(lines, files))


def whole(lines):
    """Calls of several threads that interrupt each other, each in one line."""
    begun = {}
    for line in lines:
        pid = line.split()[0]
        if line.rstrip().endswith("<unfinished ...>"):
            begun[pid] = line[: line.index(" <unfinished")]
        elif "resumed>" in line and pid in begun:
            yield begun.pop(pid) + line[line.index("resumed>") + len("resumed>"):]
        else:
            yield line


def followed(lines, files):
    handles = {}
    for line in lines:
        call = CALL.match(line)
        if not call:
            continue
        _, name, rest, result = call.groups()
        result = int(result)
        first = rest.split(",")[0]
        if name in ("open", "openat"):
            path = re.search(r'"([^"]*)"', rest)
            path = os.path.realpath(path.group(1)) if path else ""
            handles.pop(result, None)
            if path in files and result >= 0:
                handles[result] = [files.index(path), 0]
                yield f"open {files.index(path)}"
            continue
        if name.startswith("dup") and first.isdigit() and int(first) in handles and result >= 0:
            handles[result] = handles[int(first)]
        handle = handles.get(int(first)) if first.isdigit() else None
        if handle is None or result < 0:
            continue
        if name == "close":
            handles.pop(int(first))
        elif name == "lseek":
            handle[1] = result
        elif name == "read" and result > 0:
            yield f"read {handle[0]} {handle[1]} {result}"
            handle[1] += result
        elif name == "pread64" and result > 0:
            yield f"read {handle[0]} {int(rest.split(',')[-1])} {result}"


main()
