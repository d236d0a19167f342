#!/usr/bin/env python3
"""Shows what a running demo federation does, chapter by chapter, and says what was measured.

usage: show.py --tieline PROGRAM --folder DIR --mount DIR FILE...
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import clients
import doors
import filesystem
import published
import tape
from federation import Demo, title


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
    paths = filesystem.show(demo, arguments.files)
    published.show(demo)
    doors.show(demo, paths)
    tape.show(demo, paths)
    clients.show(demo)
    next_steps(demo)


if __name__ == "__main__":
    main()
