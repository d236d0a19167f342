"""The first chapter: one file system over two sites, and who gets in."""

import json
import os
import subprocess
import sys
import time

import analysis
import wire
from federation import Measured, chapter, size, title

# Files whose name holds one of these go to fnal; the others to uf.
AT_FNAL = ("nano_dy", "pfnano")
# For the rate of one large file.
LARGE = 64 << 20


def put_events(demo, files):
    """Sends the files by a client of its own, so that the mount has none of their bytes."""
    title("Events go in")
    os.makedirs(demo.at("data"), exist_ok=True)
    os.makedirs(demo.at("fnal", "data"), exist_ok=True)
    paths = []
    for file in files:
        name = os.path.basename(file)
        site = "fnal" if any(part in name for part in AT_FNAL) else "uf"
        path = demo.at("fnal", "data", name) if site == "fnal" else demo.at("data", name)
        demo.run("put", file, path)
        print(f"  {name} ({size(os.path.getsize(file))}) -> {path}, at {site}")
        paths.append(path)
    return paths


def where(demo, paths):
    title("Where their chunks lie (tieline getstripe)")
    for entry in json.loads(demo.run("getstripe", "--json", *paths)):
        places = {}
        inline = 0
        for extent in entry.get("extents", []):
            inline += extent["length"] if "inline" in extent else 0
            for place in extent.get("chunk", {}).get("places", [])[:1]:
                key = (place["site"], place["ost"])
                count, held = places.get(key, (0, 0))
                places[key] = (count + 1, held + extent["length"])
        told = [
            f"OST{ost:04x} at {site}: {count} chunk{'s' * (count != 1)}, {size(held)}"
            for (site, ost), (count, held) in sorted(places.items())
        ]
        if inline:
            told.append(f"in the metadata: {size(inline)}")
        print(f"  {entry['path']}: {'; '.join(told) or 'empty'}")


def analyse(demo, paths):
    title("Dimuon masses, read over the mount with uproot")
    with Measured(demo) as work:
        found = [analysis.look(path) for path in paths if path.endswith(".root")]
    analysis.report(found)
    picture = os.path.join(demo.folder, "mass.png")
    analysis.plot(found, picture)
    print(f"\n  picture: {picture}")
    print(f"  measured: {work.line()}")
    with Measured(demo) as again:
        for path in paths:
            if path.endswith(".root"):
                analysis.look(path)
    print(f"  once more: {again.line()}")


def rate(demo):
    title(f"One file of {size(LARGE)}, written, made durable, and read elsewhere")
    path = demo.at("large")
    piece = os.urandom(1 << 20)
    with Measured(demo) as write:
        with open(path, "wb") as file:
            for _ in range(LARGE // len(piece)):
                file.write(piece)
            os.fsync(file.fileno())
    print(f"  written and fsynced: {size(LARGE / write.seconds)}/s")
    start = time.monotonic()
    subprocess.run([demo.tieline, "cat", path], check=True, stdout=subprocess.DEVNULL)
    print(f"  read by another client: {size(LARGE / (time.monotonic() - start))}/s")
    print("  (clients, servers and disk share this one machine)")
    os.remove(path)


def stranger(demo):
    title("A stranger comes")
    own = demo.tickets("ann")
    place = f"tieline://{demo.processes['mds-uf']['address']}/extenci"
    print(f"  ann@EXTENCI.ORG has a ticket of this realm, and is nobody here: tieline ls {place}")
    asked = subprocess.run([demo.tieline, "ls", place], capture_output=True, text=True, env=own)
    subprocess.run(["kdestroy"], env=own, check=True)
    if asked.returncode == 0:
        sys.exit("the stranger was let in")
    print(f"  {asked.stderr.strip().splitlines()[-1]}")


def protected(demo, paths):
    """What somebody on the line sees of events that are read, under the default rule and under krb5p."""
    title("What crosses the line (tieline flavor)")
    path = max(paths, key=os.path.getsize)
    with open(path, "rb") as file:
        file.seek(os.path.getsize(path) // 2)
        known = file.read(64)
    if not wire.can_listen():
        print("  only root may listen on the line: not shown")
        return
    for flavor in ("krb5i", "krb5p"):
        protect(demo, flavor)
        with wire.Listener(known) as line:
            subprocess.run([demo.tieline, "cat", path], check=True, stdout=subprocess.DEVNULL)
        seen = "the events are seen" if line.found else "no event is seen"
        print(f"  {flavor} between client and data server: {seen} in {size(line.heard)} on the line")
        if flavor == "krb5p" and line.found:
            sys.exit("bytes of events crossed in clear under krb5p")
    protect(demo, "krb5i")


def protect(demo, flavor):
    demo.run("flavor", "set", "--fs", demo.mount, f"extenci.srpc.flavor.default.cli2ost={flavor}")


def show(demo, files):
    chapter(1, "One file system over two sites")
    paths = put_events(demo, files)
    where(demo, paths)
    analyse(demo, paths)
    rate(demo)
    stranger(demo)
    protected(demo, paths)
    return paths
