"""Makes a tree of 20 branches of float64, 256 MB."""
import sys
import numpy, uproot

dice = numpy.random.default_rng(1)
names = [f"b{index:02d}" for index in range(20)]
with uproot.recreate(sys.argv[1], compression=None) as file:
    file.mktree("t", {name: "f8" for name in names})
    for _ in range(10):
        file["t"].extend({name: dice.random(160000) for name in names})
