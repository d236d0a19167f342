"""Processes that open a file each within a second and read 1 MiB: p99 of open, p90 of reading."""
import multiprocessing, os, random, sys, time

def read(task):
    path, pause = task
    time.sleep(pause)
    start = time.monotonic()
    file = os.open(path, os.O_RDONLY)
    opened = time.monotonic()
    left = 1 << 20
    while left > 0:
        left -= len(os.read(file, left))
    return opened - start, time.monotonic() - opened

def share(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]

count = int(sys.argv[2])
random.seed(1)
with multiprocessing.Pool(count) as pool:
    tasks = [(f"{sys.argv[1]}/f{index}", random.random()) for index in range(count)]
    times = pool.map(read, tasks, chunksize=1)
print(share([opened for opened, _ in times], 0.99), share([took for _, took in times], 0.9))
