"""The second chapter: a directory that one site publishes, and everybody reads."""

import filecmp
import json
import os
import shutil
import socket

from federation import chapter, title, wait_until

NAME = "conditions.extenci.org"
# Short, so that nobody has to wait here; usual are some minutes.
TTL = "2 s"
RUNS, CHANNELS = 40, 500


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def write_conditions(folder):
    """Pedestals and gains of a detector that nobody built: one file for each run."""
    os.makedirs(folder)
    for run in range(RUNS):
        rows = [{"channel": c, "pedestal": 200 + c % 7 + run, "gain": 1 + c / 1e4} for c in range(CHANNELS)]
        with open(f"{folder}/run{run:03}.json", "w") as file:
            json.dump(rows, file)
    os.symlink(f"run{RUNS - 1:03}.json", f"{folder}/latest.json")


def serve(demo, repositories):
    """Has a server of uf serve what is published there; the URL of its repositories."""
    port = free_port()
    with open(f"{demo.dir}/sites/uf/oss.toml", "a") as settings:
        settings.write(f'\n[http]\nlisten = "127.0.0.1:{port}"\nrepositories = "{repositories}"\n')
    demo.run("dev", "restart", "oss-uf", "--dir", demo.dir)
    return f"http://127.0.0.1:{port}/cvmfs/@fqrn@"


def publish(demo, storage, source):
    said = demo.run("repo", "publish", NAME, source, "--storage", storage, "--json")
    return json.loads(said)


def same(one, other):
    """Are the trees the same, to the byte?"""
    names = sorted(os.listdir(one))
    if names != sorted(os.listdir(other)):
        return False
    return filecmp.cmpfiles(one, other, names, shallow=False)[0] == names


def show(demo):
    chapter(2, "Published: conditions data, signed, over HTTP")
    source, keys = f"{demo.folder}/conditions", f"{demo.folder}/keys"
    repositories = f"{demo.dir}/sites/uf/repositories"
    storage = f"{repositories}/{NAME}"
    for old in (source, keys):
        shutil.rmtree(old, ignore_errors=True)
    write_conditions(source)

    title(f"uf publishes {RUNS} files (tieline repo create, tieline repo publish)")
    demo.run("repo", "create", NAME, "--keys", keys, "--storage", storage, "--ttl", TTL)
    first = publish(demo, storage, source)
    url = serve(demo, repositories)
    print(f"  revision {first['revision']} of {NAME}, signed, at {url}")

    title("fnal mounts it (tieline mount); below /extenci it is a directory (tieline repo add)")
    mount, public = f"{demo.folder}/cvmfs/{NAME}", f"{keys}/{NAME}.pub"
    os.makedirs(mount, exist_ok=True)
    demo.run("repo", "add", NAME, url, "--pubkey", public, "--at", "conditions", "--fs", demo.mount)
    demo.run("mount", NAME, mount, "-o", f"url={url},pubkey={public}")
    try:
        junction = demo.at("conditions")
        wait_until(junction, lambda: os.path.isdir(junction))
        for place in (mount, junction):
            if not same(source, place):
                raise SystemExit(f"{place} is not what was published")
            print(f"  {place}: the same {RUNS + 1} names, the same bytes")
        publish_again(demo, storage, source, mount)
    finally:
        demo.run("umount", mount)


def publish_again(demo, storage, source, mount):
    title("One file changes, and uf publishes again")
    with open(f"{source}/run000.json", "w") as file:
        file.write("[]")
    second = publish(demo, storage, source)
    seen = lambda: os.path.getsize(f"{mount}/run000.json") == 2
    seconds = wait_until("the second revision", seen)
    print(f"  revision {second['revision']} is seen after {seconds:.1f} s; its time to live is {TTL}")
    try:
        open(f"{mount}/mine", "w")
    except OSError as error:
        print(f"  who writes there is told: {error.strerror}")
