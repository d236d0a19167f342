"""The fifth chapter: a machine that starts from an image and finds the file system."""

import os
import time

from federation import chapter, title

MACHINE = "wn1"
JOB = """ls -l
echo "hello from $(hostname)" >from-virtual-client
"""


def show(demo):
    chapter(5, "A virtual client")
    if os.environ.get("IMAGE") != "1":
        print("  downloads 110 MB of Debian packages and starts a machine: make demo IMAGE=1")
        return
    image, machines = f"{demo.folder}/image", f"{demo.folder}/machines"
    title("An image of Debian packages and this program (tieline image build)")
    if not os.path.exists(f"{image}/image.json"):
        start = time.monotonic()
        demo.run("image", "build", "--level", "client", "--format", "raw", "--output", image)
        print(f"  made in {time.monotonic() - start:.0f} s")
    print(f"  {image}: no key, no password in it")

    title(f"{MACHINE} gets a key of its own, starts, and runs a job in the file system (tieline vm start)")
    demo.run("image", "enroll", MACHINE, "--fs", demo.mount, "--trust", "root", "--machines", machines)
    job = f"{demo.folder}/job.sh"
    with open(job, "w") as file:
        file.write(JOB)
    start = time.monotonic()
    demo.run("vm", "start", MACHINE, "--image", image, "--machines", machines, "--run", job)
    print(f"  started, worked, powered off: {time.monotonic() - start:.0f} s")
    with open(demo.at("from-virtual-client")) as file:
        print(f"  it left a file: {file.read().strip()}")
