"""Makes what analyses read, with 20 fields of float64: `plain`, a tree in large baskets (256 MB);
`packed`, one that is compressed, in small baskets; `ntuple`, an RNTuple, compressed too."""
import sys
import numpy, uproot

path, kind = sys.argv[1:]
dice = numpy.random.default_rng(1)
names = [f"b{index:02d}" for index in range(20)]
rows, clusters = (160000, 10) if kind == "plain" else (18000, 60)

def some():
    # Numbers of few digits, as detectors measure them, are what compresses.
    digits = 17 if kind == "plain" else 4
    return {name: dice.random(rows).round(digits) for name in names}

compression = None if kind == "plain" else uproot.ZLIB(1)
with uproot.recreate(path, compression=compression) as file:
    if kind == "ntuple":
        table = file.mkrntuple("t", some())
        clusters -= 1
    else:
        table = file.mktree("t", {name: "f8" for name in names})
    for _ in range(clusters):
        table.extend(some())
