"""A build tool as SCRAM is one: reads the configuration of an area, follows the tools and packages
that it names, and looks whether what they say is there. `make ROOT` lays out an area, `walk ROOT
PACKAGE...` goes through it as the tool would before it builds these packages.
"""

import os
import random
import sys

FOLDERS = ["src", "interface", "plugins", "test", "python", "data"]


def make(root):
    dice = random.Random(34)
    os.makedirs(f"{root}/config/toolbox")
    for number in range(60):
        base = f"{root}/external/tool{number}/{dice.randint(1, 9)}.{dice.randint(0, 20)}"
        for folder in ("include", "lib", "bin"):
            os.makedirs(f"{base}/{folder}")
        for header in range(dice.randint(3, 12)):
            text(f"{base}/include/h{header}.h", dice.randint(500, 20_000))
        text(f"{base}/lib/libtool{number}.so", dice.randint(20_000, 900_000))
        uses = "".join(f'<use name="tool{dice.randint(0, 59)}"/>\n' for _ in range(2))
        with open(f"{root}/config/toolbox/tool{number}.xml", "w") as out:
            out.write(f'<tool name="tool{number}">\n<client base="{base}"/>\n{uses}</tool>\n')
        os.symlink(base, f"{root}/external/tool{number}/current")
    for subsystem in range(12):
        for package in range(10):
            base = f"{root}/src/Sub{subsystem}/Package{package}"
            for folder in FOLDERS[: dice.randint(2, 6)]:
                os.makedirs(f"{base}/{folder}")
                for number in range(dice.randint(1, 12)):
                    text(f"{base}/{folder}/f{number}.cc", dice.randint(300, 30_000))
            uses = [f"tool{dice.randint(0, 59)}" for _ in range(4)]
            uses += [f"Sub{dice.randint(0, 11)}/Package{dice.randint(0, 9)}" for _ in range(3)]
            with open(f"{base}/BuildFile.xml", "w") as out:
                out.writelines(f'<use name="{use}"/>\n' for use in uses)


def text(path, size):
    with open(path, "w") as out:
        out.write("// nothing\n" * (size // 11))


def uses_of(path):
    with open(path) as lines:
        return [line.split('"')[1] for line in lines if line.startswith("<use")]


def walk(root, wanted):
    for name in sorted(os.listdir(f"{root}/config/toolbox")):
        with open(f"{root}/config/toolbox/{name}") as lines:
            lines.read()
    seen, queue = set(), list(wanted)
    while queue:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if "/" not in name:
            os.readlink(f"{root}/external/{name}/current")
            for folder in ("include", "lib", "lib64", "bin"):
                os.path.exists(f"{root}/external/{name}/current/{folder}")
            queue += uses_of(f"{root}/config/toolbox/{name}.xml")
            continue
        package = f"{root}/src/{name}"
        for folder in FOLDERS:
            os.path.exists(f"{package}/{folder}/BuildFile.xml")
            if os.path.isdir(f"{package}/{folder}"):
                for entry in os.listdir(f"{package}/{folder}"):
                    os.lstat(f"{package}/{folder}/{entry}")
        queue += uses_of(f"{package}/BuildFile.xml")


if __name__ == "__main__":
    make(sys.argv[2]) if sys.argv[1] == "make" else walk(sys.argv[2], sys.argv[3:])
