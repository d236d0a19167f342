"""What record.py recorded: programs.py NAME, on the files of uproot's own tests."""

import os
import sys

import uproot


def taus_all():
    with uproot.open("uproot-issue79.root") as file:
        for _ in file["taus"].iterate(step_size="500 kB"):
            pass


def taus_some():
    with uproot.open("uproot-issue79.root") as file:
        taus = file["taus"]
        taus.arrays(taus.keys()[::7])


def rntuple():
    with uproot.open("uproot-physlite-rntuple_v1-0-0-0.root") as file:
        events = file["EventData;1"]
        for name in list(events.keys())[:200:10]:
            events[name].array()


def hzz_twice():
    for _ in range(2):
        with uproot.open("uproot-HZZ-uncompressed.root") as file:
            for _ in file["events"].iterate(step_size=200):
                pass


def baskets():
    """As ROOT's tree cache does: the baskets of some branches, entry range by entry range."""
    with uproot.open("uproot-HZZ-uncompressed.root") as file:
        events, found = file["events"], []
        for branch in events.branches[::3]:
            for number in range(branch.num_baskets):
                key = branch.basket_key(number)
                begin = branch.entry_offsets[number]
                found.append((begin // 500, key.data_cursor.index, key.data_compressed_bytes))
    handle = os.open("uproot-HZZ-uncompressed.root", os.O_RDONLY)
    for _, offset, length in sorted(found):
        os.pread(handle, length, offset)


def skips():
    """A little of every mebibyte."""
    handle = os.open("large", os.O_RDONLY)
    for offset in range(0, os.path.getsize("large"), 1 << 20):
        os.pread(handle, 48 << 10, offset + 4096)


def leaps():
    """From place to place, by no rule."""
    handle, place = os.open("large", os.O_RDONLY), 12345
    for _ in range(200):
        place = (place * 1103515245 + 12345) % (os.path.getsize("large") - 65536)
        os.pread(handle, 8192, place)


def columns():
    """Eight columns that lie behind one another, some rows of each at a time."""
    handle, column = os.open("large", os.O_RDONLY), os.path.getsize("large") // 8
    for row in range(0, 2 << 20, 48 << 10):
        for number in range(8):
            os.pread(handle, 48 << 10, number * column + row)


def clusters():
    """One column after the other of a file that holds them cluster by cluster."""
    handle = os.open("large", os.O_RDONLY)
    for column in range(6):
        for cluster in range(40):
            os.pread(handle, 50_000, cluster * 1_600_000 + column * 50_000)


def slices():
    """Jobs that open the file for each piece that they want."""
    for offset in range(0, os.path.getsize("large") - (2 << 20), 7 << 20):
        handle = os.open("large", os.O_RDONLY)
        os.lseek(handle, offset + 4321, os.SEEK_SET)
        os.read(handle, 2 << 20)
        os.close(handle)


globals()[sys.argv[1]]()
