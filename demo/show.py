#!/usr/bin/env python3
"""Puts events into a running demo federation, analyses them over the mount, and says what was measured.

usage: show.py --tieline PROGRAM --folder DIR --mount DIR FILE...
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import analysis
import wire

# Files whose name holds one of these go to fnal; the others to uf.
AT_FNAL = ("nano_dy", "pfnano")
# For the rate of one large file.
LARGE = 64 << 20


class Demo:
    """A running federation and its mount."""

    def __init__(self, tieline, folder, mount):
        self.tieline, self.folder, self.mount = tieline, folder, mount
        status = json.loads(self.run("dev", "status", "--dir", f"{folder}/federation", "--json"))
        self.processes = {process["name"]: process for process in status["processes"]}

    def run(self, *words):
        done = subprocess.run([self.tieline, *words], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"tieline {' '.join(words)} failed:\n{done.stderr}")
        return done.stdout

    def metrics(self):
        """The mount's counters: name with labels to value."""
        url = f"http://{self.processes['mount-0']['admin']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def at(self, *parts):
        return os.path.join(self.mount, *parts)


class Measured:
    """What the mount's counters say of a piece of work: `with Measured(demo) as work: ...`."""

    def __init__(self, demo):
        self.demo = demo

    def __enter__(self):
        self.before, self.start = self.demo.metrics(), time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.start
        self.after = self.demo.metrics()

    def grown(self, prefix):
        """How much all counters with this name grew together."""
        names = [name for name in self.after if name.split("{")[0] == prefix]
        return sum(self.after[name] - self.before.get(name, 0) for name in names)

    def trips(self, server):
        name = f'tieline_round_trips_total{{server="{server}"}}'
        return int(self.after.get(name, 0) - self.before.get(name, 0))

    def line(self):
        handed = self.grown("tieline_client_read_bytes_total")
        fetched = self.grown("tieline_client_fetched_bytes_total")
        return (
            f"{self.seconds:.1f} s; {size(handed)} handed to the program, {size(fetched)} fetched "
            f"from data servers; round trips: {self.trips('mds')} to metadata, "
            f"{self.trips('oss')} to data servers"
        )


def size(count):
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024


def title(text):
    print(f"\n\033[1m{text}\033[0m", flush=True)


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
    kdc, cache = f"{demo.folder}/federation/kdc", f"FILE:{demo.folder}/ann.cc"
    own = {**os.environ, "KRB5_CONFIG": f"{kdc}/krb5.conf", "KRB5CCNAME": cache}
    subprocess.run(["kinit", "ann"], input="ann\n", text=True, env=own, check=True, stdout=subprocess.DEVNULL)
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
        demo.run("flavor", "set", "--fs", demo.mount, f"extenci.srpc.flavor.default.cli2ost={flavor}")
        with wire.Listener(known) as line:
            subprocess.run([demo.tieline, "cat", path], check=True, stdout=subprocess.DEVNULL)
        seen = "the events are seen" if line.found else "no event is seen"
        print(f"  {flavor} between client and data server: {seen} in {size(line.heard)} on the line")
        if flavor == "krb5p" and line.found:
            sys.exit("bytes of events crossed in clear under krb5p")


def next_steps(demo):
    tieline, federation = demo.tieline, f"{demo.folder}/federation"
    title("It is yours now")
    print(
        f"""  ls -l {demo.at('data')} {demo.at('fnal', 'data')}
  cp -r /etc/apt {demo.mount}/ && diff -r /etc/apt {demo.mount}/apt
  {tieline} df -h {demo.mount}
  {tieline} setstripe -c -1 {demo.at('data')}                # new files go round the pool's OSTs
  {tieline} dev status --dir {federation}     # processes, addresses, logs
  {tieline} dev kill --random --restart --dir {federation}   # a server dies: go on working
  curl -s http://{demo.processes['mount-0']['admin']}/metrics | grep round_trips
  make demo-down                        # ends it and removes every trace"""
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tieline", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--mount", required=True)
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    demo = Demo(arguments.tieline, arguments.folder, arguments.mount)
    paths = put_events(demo, arguments.files)
    where(demo, paths)
    analyse(demo, paths)
    rate(demo)
    stranger(demo)
    protected(demo, paths)
    next_steps(demo)


if __name__ == "__main__":
    main()
