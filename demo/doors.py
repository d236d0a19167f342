"""The third chapter: the same events by protocols that other programs speak."""

import os
import shutil
import subprocess
import sys

import numpy as np
import uproot

import analysis
from federation import call, chapter, title

# Where Debian has the bindings of XRootD's client, which have Kerberos; those of PyPI do not.
BINDINGS = "/usr/lib/python3/dist-packages"


def show(demo, paths):
    chapter(3, "Doors: the events by root:// and https://")
    if not demo.door:
        print("  the federation has no door: not shown")
        return
    demo.run("id", "--fs", demo.mount, "add", "ann")
    print("  the stranger of before is a user now: tieline id add ann")
    found = [analysis.look(path) for path in paths if path.endswith(".root")]
    most = max(found, key=lambda one: len(one.masses))
    inside, wanted = "/" + os.path.relpath(most.path, demo.mount), most.masses
    by_root(demo, inside, wanted)
    by_https(demo, inside, wanted)


def by_root(demo, inside, wanted):
    door = demo.door["root"]
    title("root://, with ann's Kerberos ticket (xrdfs, xrdcp, uproot)")
    if not shutil.which("xrdcp"):
        print("  no xrdcp here (Debian: xrootd-client xrootd-plugins): not shown")
        return
    own, copy = demo.tickets("ann"), f"{demo.folder}/copy.root"
    listed = call(["xrdfs", door, "ls", "-l", os.path.dirname(inside)], env=own)
    print("\n".join(f"  {line}" for line in listed.splitlines()))
    print(f"  xrdfs query checksum: {call(['xrdfs', door, 'query', 'checksum', inside], env=own).strip()}")
    call(["xrdcp", "-f", "-s", "--cksum", "adler32:source", f"{door}/{inside}", copy], env=own)
    compare("xrdcp", analysis.look(copy).masses, wanted)
    os.remove(copy)
    if os.path.isdir(f"{BINDINGS}/XRootD"):
        os.environ.update(KRB5_CONFIG=own["KRB5_CONFIG"], KRB5CCNAME=own["KRB5CCNAME"])
        sys.path.append(BINDINGS)
        compare("uproot", masses(f"{door}/{inside}", uproot.source.xrootd.XRootDSource), wanted)


def by_https(demo, inside, wanted):
    door, authority = demo.door["https"], demo.door["authority"]
    title("https://, with a token of ann's (curl, uproot)")
    folder = os.path.dirname(inside)
    token = demo.run("dev", "token", "ann", "--scope", f"storage.read:{folder}", "--dir", demo.dir).strip()
    curl = ["curl", "-sS", "--cacert", authority, "-o", "/dev/null", "-w", "%{http_code}"]
    asks = [*curl, "-H", f"Authorization: Bearer {token}"]
    print(f"  a token for {folder}: {call([*asks, door + inside])}; of {folder}2 it says {call([*asks, door + folder + '2/f'])}")
    print(f"  without a token: {call([*curl, door + inside])}")
    os.environ["SSL_CERT_FILE"] = authority
    url = f"{door}{inside}?authz=Bearer%20{token}"
    compare("uproot", masses(url, uproot.HTTPSource), wanted)


def masses(url, handler):
    with uproot.open(url, handler=handler) as file:
        return np.asarray(analysis.masses_of(analysis.tree_of(file)), dtype=float)


def compare(what, found, wanted):
    if not np.array_equal(found, wanted):
        sys.exit(f"{what}: other masses than over the mount")
    print(f"  {what}: {len(found)} pairs, the same masses as over the mount")
