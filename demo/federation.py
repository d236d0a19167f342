"""A running demo federation: its program, its processes, what their counters say of a piece of work."""

import json
import os
import subprocess
import sys
import time
import urllib.request


class Demo:
    """A running federation and its mount."""

    def __init__(self, tieline, folder, mount):
        self.tieline, self.folder, self.mount = tieline, folder, mount
        self.dir = f"{folder}/federation"
        status = json.loads(self.run("dev", "status", "--dir", self.dir, "--json"))
        self.processes = {process["name"]: process for process in status["processes"]}
        self.door = status["door"]

    def run(self, *words, **how):
        return call([self.tieline, *words], **how)

    def tickets(self, user):
        """An environment in which `user` has a ticket; the KDC's users have their names as passwords."""
        kdc, cache = f"{self.dir}/kdc", f"FILE:{self.folder}/{user}.cc"
        own = {**os.environ, "KRB5_CONFIG": f"{kdc}/krb5.conf", "KRB5CCNAME": cache}
        call(["kinit", user], input=f"{user}\n", env=own)
        return own

    def metrics(self):
        """The mount's counters: name with labels to value."""
        url = f"http://{self.processes['mount-0']['admin']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def at(self, *parts):
        return os.path.join(self.mount, *parts)


def call(words, **how):
    """Runs a program, and gives what it printed. If it fails, so does the demo, with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, **how)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{done.stderr or done.stdout}")
    return done.stdout


def wait_until(what, holds, patience=60):
    """Looks again and again; gives the seconds that it took."""
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > patience:
            sys.exit(f"{what}: not after {patience} s")
        time.sleep(0.05)
    return time.monotonic() - start


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


def chapter(number, text):
    print(f"\n\033[1;7m {number}. {text} \033[0m", flush=True)


def title(text):
    print(f"\n\033[1m{text}\033[0m", flush=True)
