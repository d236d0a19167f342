"""The fourth chapter: files of a pool in a plain directory, and on a tape behind it."""

import hashlib
import os
import shutil
import subprocess
import sys
import time

import analysis
from federation import call, chapter, size, title, wait_until

# dCache's convention, over a directory; this robot needs a moment.
SCRIPT = """#!/bin/sh
tape=$(dirname "$0")/tape
for word in "$@"; do case "$word" in -uri=*) bit=${word##*/} ;; esac; done
case "$1" in
  put) sleep 1; cp "$3" "$tape/$2.new" && mv "$tape/$2.new" "$tape/$2" && echo "tape://robot/$2" ;;
  get) sleep 1; cp "$tape/$bit" "$3" ;;
  remove) rm -f "$tape/$bit" ;;
  *) exit 30 ;;
esac
"""


def md5(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def show(demo, paths):
    chapter(4, "Data management: a plain directory, and a tape")
    paths = [path for path in paths if path.endswith(".root")]
    expose(demo, chosen(demo, paths, "uf"))
    to_tape(demo, chosen(demo, paths, "fnal"))


def chosen(demo, paths, site):
    """The largest file at a site, or of all if none is there; its chunks in the site's pool from now on."""
    is_at = lambda path: path.startswith(demo.at("fnal", "")) == (site == "fnal")
    path = max(filter(is_at, paths), key=os.path.getsize, default=paths[0])
    demo.run("migrate", "-p", site, path)
    return path


def make_for_server(demo, site, folder):
    """As the user that the site's servers run as."""
    server = os.stat(f"{demo.dir}/sites/{site}/oss")
    os.makedirs(folder, exist_ok=True)
    os.chown(folder, server.st_uid, server.st_gid)


def expose(demo, path):
    title("uf exposes its pool (tieline pool set uf --expose): read without a mount")
    plain = f"{demo.dir}/sites/uf/exposed"
    make_for_server(demo, "uf", plain)
    demo.run("pool", "set", "uf", "--expose", plain, "--fs", demo.mount)
    copy = os.path.join(plain, os.path.relpath(path, demo.mount))
    seconds = wait_until(copy, lambda: os.path.exists(copy))
    if md5(copy) != md5(path):
        sys.exit(f"{copy} is not {path}")
    print(f"  {copy}")
    print(f"  there after {seconds:.1f} s, whole; md5sum says the same of both: {md5(copy)}")
    found = analysis.look(copy)
    print(f"  uproot, in that directory: {found.events} events, {len(found.masses)} opposite-sign pairs")


def by_root(demo, path):
    """What a stock client is told of the file."""
    if not demo.door or not shutil.which("xrdfs"):
        return
    inside = "/" + os.path.relpath(path, demo.mount)
    said = call(["xrdfs", demo.door["root"], "stat", inside], env=demo.tickets("ann"))
    flags = next(line for line in said.splitlines() if line.startswith("Flags"))
    if "Offline" not in flags:
        sys.exit(f"root:// does not say that {path} is on tape: {flags}")
    print(f"  xrdfs stat: {flags}")


def to_tape(demo, path):
    title("fnal has a tape (tieline pool set fnal --hsm): one file goes there and comes back")
    script = f"{demo.dir}/sites/fnal/hsm/robot.sh"
    make_for_server(demo, "fnal", f"{os.path.dirname(script)}/tape")
    with open(script, "w") as file:
        file.write(SCRIPT)
    os.chmod(script, 0o755)
    demo.run("pool", "set", "fnal", "--hsm", script, "--fs", demo.mount)
    before = md5(path)
    demo.run("hsm", "archive", path)
    demo.run("hsm", "release", path)
    print(f"  {demo.run('hsm', 'state', path).strip()}")
    residency = [line for line in demo.run("getstripe", path).splitlines() if "residency" in line]
    print(f"  getstripe: {residency[0].split(':')[-1].strip() if residency else '?'}; ls says {size(os.path.getsize(path))}")
    by_root(demo, path)
    start = time.monotonic()
    # A client of its own, which has none of its bytes.
    back = subprocess.run([demo.tieline, "cat", path], check=True, stdout=subprocess.PIPE).stdout
    if hashlib.md5(back).hexdigest() != before:
        sys.exit(f"{path} came back from tape with other bytes")
    print(f"  somebody reads it: after {time.monotonic() - start:.1f} s it is there, with the same bytes")
