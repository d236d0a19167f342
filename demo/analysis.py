#!/usr/bin/env python3
"""Finds pairs of opposite-sign muons in ROOT files and shows the mass of each pair.

It opens plain paths with uproot and knows nothing of Tieline: that is the point. It reads three shapes of
files: NanoAOD (CMS), flat trees with Px, Py, Pz, E per muon, and trees with one pair per event.

usage: analysis.py [--plot OUT.png] FILE...
"""

import argparse
import dataclasses
import sys

import awkward as ak
import numpy as np
import uproot

MASS_Z = 91.2
LOW, HIGH, BINS = 0.0, 120.0, 24


@dataclasses.dataclass
class Found:
    """What one file holds."""

    path: str
    events: int
    masses: np.ndarray
    note: str = ""


def tree_of(file):
    """The tree with the events, whatever it is called, or None."""
    for name in ("Events", "events"):
        if name in file:
            return file[name]
    trees = [file[key] for key, kind in file.classnames().items() if kind == "TTree"]
    return max(trees, key=lambda tree: tree.num_entries, default=None)


def invariant_mass(first, second):
    """From (px, py, pz, energy) of two particles."""
    px, py, pz, energy = (a + b for a, b in zip(first, second))
    return np.sqrt(np.maximum(energy**2 - px**2 - py**2 - pz**2, 0))


def cartesian(pt, eta, phi, mass):
    px, py, pz = pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)
    return px, py, pz, np.sqrt(px**2 + py**2 + pz**2 + mass**2)


def pairs_of(charge, momenta):
    """Masses of all opposite-sign pairs of each event."""
    muons = ak.zip({"q": charge, **{str(i): part for i, part in enumerate(momenta)}})
    first, second = ak.unzip(ak.combinations(muons, 2))
    masses = invariant_mass(*([muon[str(i)] for i in range(4)] for muon in (first, second)))
    return ak.to_numpy(ak.flatten(masses[first["q"] * second["q"] < 0]))


def masses_of(tree):
    """Masses of the pairs in a tree, or None if it has no muons in a shape we know."""
    names = set(tree.keys())
    if {"Muon_pt", "Muon_eta", "Muon_phi", "Muon_charge"} <= names:
        a = tree.arrays(["Muon_pt", "Muon_eta", "Muon_phi", "Muon_mass", "Muon_charge"])
        return pairs_of(a.Muon_charge, cartesian(a.Muon_pt, a.Muon_eta, a.Muon_phi, a.Muon_mass))
    if {"Muon_Px", "Muon_Py", "Muon_Pz", "Muon_E", "Muon_Charge"} <= names:
        a = tree.arrays(["Muon_Px", "Muon_Py", "Muon_Pz", "Muon_E", "Muon_Charge"])
        return pairs_of(a.Muon_Charge, (a.Muon_Px, a.Muon_Py, a.Muon_Pz, a.Muon_E))
    if {"E1", "px1", "py1", "pz1", "Q1", "E2", "px2", "py2", "pz2", "Q2"} <= names:
        a = tree.arrays(["E1", "px1", "py1", "pz1", "Q1", "E2", "px2", "py2", "pz2", "Q2"], library="np")
        one, two = ([a[f"{part}{i}"] for part in ("px", "py", "pz", "E")] for i in (1, 2))
        return invariant_mass(one, two)[a["Q1"] * a["Q2"] < 0]
    return None


def look(path):
    """Everything we want to know of one file."""
    with uproot.open(path) as file:
        tree = tree_of(file)
        if tree is None:
            return Found(path, 0, np.array([]), "no tree of events")
        masses = masses_of(tree)
        if masses is None:
            return Found(path, tree.num_entries, np.array([]), "no muons in a shape known here")
        return Found(path, tree.num_entries, np.asarray(masses, dtype=float))


def histogram(masses, width=44):
    """Lines of a histogram for a terminal."""
    counts, edges = np.histogram(masses, bins=BINS, range=(LOW, HIGH))
    most = max(int(counts.max(initial=0)), 1)
    lines = []
    for count, low, high in zip(counts, edges, edges[1:]):
        mark = "  <- Z" if low <= MASS_Z < high else ""
        lines.append(f"{low:5.0f}-{high:<4.0f}|{'█' * round(width * count / most):<{width}}|{count:4d}{mark}")
    return lines


def peak(masses):
    """The pairs near the Z: how many, and the middle one's mass."""
    near = masses[(masses > 80) & (masses < 102)]
    return len(near), float(np.median(near)) if len(near) else None


def plot(found, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    shown = [one for one in found if len(one.masses)]
    axes.hist(
        [one.masses for one in shown],
        bins=BINS,
        range=(LOW, HIGH),
        stacked=True,
        label=[one.path for one in shown],
    )
    axes.axvline(MASS_Z, linestyle="--", color="grey", linewidth=1)
    axes.set_xlabel("mass of opposite-sign muon pairs [GeV]")
    axes.set_ylabel("pairs / 5 GeV")
    if shown:
        axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def report(found):
    """Prints what each file holds and all of it together."""
    for one in found:
        line = f"  {one.path}: {one.events} events, {len(one.masses)} opposite-sign pairs"
        count, middle = peak(one.masses)
        if one.note:
            line += f" ({one.note})"
        elif middle is None:
            line += ", none near the Z"
        else:
            line += f", {count} of them near the Z: median {middle:.1f} GeV"
        print(line)
    masses = np.concatenate([one.masses for one in found]) if found else np.array([])
    if len(masses):
        print("\n  mass of the pairs, GeV")
        print("\n".join("  " + line for line in histogram(masses)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", help="write a picture here")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    found = [look(path) for path in arguments.files]
    report(found)
    if arguments.plot:
        plot(found, arguments.plot)
        print(f"\n  picture: {arguments.plot}")
    return 0 if any(len(one.masses) for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
