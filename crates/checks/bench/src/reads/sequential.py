"""Reads a file from front to back, for so many seconds at most: seconds, and bytes."""
import os, sys, time

start = time.monotonic()
end = start + float(sys.argv[2])
file = os.open(sys.argv[1], os.O_RDONLY)
total, piece = 0, True
while piece and time.monotonic() < end:
    piece = os.read(file, 1 << 20)
    total += len(piece)
print(time.monotonic() - start, total)
