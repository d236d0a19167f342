"""Reads the first branches of a tree or RNTuple by uproot."""
import sys, time
import uproot

start = time.monotonic()
with uproot.open(sys.argv[1]) as file:
    names = [f"b{index:02d}" for index in range(int(sys.argv[2]))]
    arrays = file["t"].arrays(names, library="np")
    assert all(len(array) == file["t"].num_entries for array in arrays.values())
print(time.monotonic() - start)
