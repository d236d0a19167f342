"""Reads a file from front to back."""
import os, sys, time

start = time.monotonic()
file = os.open(sys.argv[1], os.O_RDONLY)
while os.read(file, 1 << 20):
    pass
print(time.monotonic() - start)
