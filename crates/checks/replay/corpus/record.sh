#!/bin/bash
# Records the corpus anew: `record.sh FOLDER`, on Debian with strace, cmake, ninja-build, texlive-latex-base,
# g++, git and python3-venv, and with PyPI and the sources of Debian in reach. What it lays down in
# FOLDER it goes on with if it is there. Takes half an hour.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
base=$(mkdir -p "$1" && cd "$1" && pwd)
mkdir -p "$base/calls" "$here/trees" "$here/traces"
cd "$base"

tree() { [ -e "$here/trees/$1.tree.gz" ] || python3 "$here/record.py" tree "$2" "$here/trees/$1.tree.gz"; }

# record NAME TREE ROOT LANES COMMAND...: once for the time of its processors, once traced.
record() {
    local name=$1 tree=$2 root=$3 lanes=$4 prefix=$base/calls/$1
    shift 4
    [ -e "$here/traces/$name.trace.gz" ] && return
    sh -c "${before:-true}"
    local seconds=$(python3 "$here/record.py" seconds "$@")
    sh -c "${before:-true}"
    rm -f "$prefix".[0-9]*
    strace -ff -ttt -y -s 4096 -o "$prefix" \
        -e trace=%file,read,pread64,getdents64,mmap -- "$@" >/dev/null 2>&1 || true
    python3 "$here/record.py" trace "$here/traces/$name.trace.gz" "$here/trees/$tree.tree.gz" \
        "$root" "$lanes" "$seconds" "$prefix"
    rm -f "$prefix".[0-9]*
}

venv() {
    [ -d "$1" ] || { python3 -m venv "$1" && "$1/bin/pip" install -q "${@:2}"; }
}

export PYTHONDONTWRITEBYTECODE=1
venv physics uproot awkward numpy fsspec aiohttp requests
venv tools requests click rich pyyaml jinja2
venv plots scipy matplotlib pandas
for one in physics tools plots; do tree $one $one; done
record import_physics physics "$base/physics" 1 \
    physics/bin/python -c "import uproot, awkward, numpy, fsspec, aiohttp, requests"
record import_tools tools "$base/tools" 1 \
    tools/bin/python -c "import requests, click, rich, yaml, jinja2, rich.table"
record import_plots plots "$base/plots" 1 \
    plots/bin/python -c "import scipy.stats, scipy.optimize, matplotlib.pyplot, pandas"
record import_other physics "$base/physics" 1 physics/bin/python -c "import requests, aiohttp"
record find_xargs physics "$base/physics" 1 \
    sh -c "find physics -name '*.py' | xargs grep -l deprecated"
mkdir -p wheels
[ -e wheels/done ] || { tools/bin/pip download -q -d wheels attrs idna packaging; touch wheels/done; }
before="tools/bin/pip uninstall -q -y attrs idna packaging >/dev/null 2>&1" \
    record pip_install tools "$base/tools" 1 \
    tools/bin/pip install -q --no-index --find-links wheels attrs packaging

# Files of ROOT's kind, as macros read them.
if [ ! -d macros ]; then
    mkdir macros
    physics/bin/python - <<'PYTHON'
import numpy, uproot
for number in range(60):
    rows = 2_000 + 500 * (number % 9)
    with uproot.recreate(f"macros/run{number:03}.root") as out:
        out["events"] = {name: numpy.random.default_rng(number).normal(size=rows)
                         for name in ("px", "py", "pz", "e", "q")}
PYTHON
fi
tree macros macros
record macros macros "$base/macros" 1 physics/bin/python -c "
import glob, uproot
for path in sorted(glob.glob('macros/*.root'))[::2]:
    with uproot.open(path) as file:
        file['events'].arrays(['px', 'e'], library='np')
"

# A C++ project with its compiler's and the system's headers below the same root.
if [ ! -d project ]; then
    mkdir -p project sources/lists/partial sources/cache/partial
    echo "deb-src http://deb.debian.org/debian bookworm main" >sources/list
    apt="apt-get -q -o Dir::Etc::sourcelist=$base/sources/list -o Dir::Etc::sourceparts=/dev/null
        -o Dir::State::lists=$base/sources/lists -o Dir::Cache=$base/sources/cache"
    $apt update && (cd sources && $apt source --download-only yaml-cpp)
    mkdir -p project/yaml project/sysroot
    tar -C project/yaml --strip-components 1 -xf sources/yaml-cpp_*.orig.tar.xz
    cp -r /usr/include project/sysroot/include
    cp -r /usr/lib/gcc/x86_64-linux-gnu/12/include project/sysroot/gcc
fi
sysroot=$base/project/sysroot
includes="-nostdinc -isystem $sysroot/include/c++/12 -isystem $sysroot/include/x86_64-linux-gnu/c++/12
    -isystem $sysroot/include/c++/12/backward -isystem $sysroot/gcc
    -isystem $sysroot/include/x86_64-linux-gnu -isystem $sysroot/include"
tree project project
configure() {
    cmake -S project/yaml -B "$base/$1" -G "$2" -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF \
        -DCMAKE_CXX_FLAGS="$(echo $includes)" >/dev/null
}
before="rm -rf $base/ninja" record cmake_configure project "$base/project" 1 \
    cmake -S project/yaml -B "$base/ninja" -G Ninja -DYAML_CPP_BUILD_TESTS=OFF \
    -DYAML_CPP_BUILD_TOOLS=OFF -DCMAKE_CXX_FLAGS="$(echo $includes)"
rm -rf ninja make && configure ninja Ninja && configure make "Unix Makefiles"
before="ninja -C $base/ninja clean" record ninja_build project "$base/project" 2 ninja -j 2 -C "$base/ninja"
before="make -C $base/make clean" record make_build project "$base/project" 8 make -j8 -C "$base/make"

# A repository of some thousand files.
if [ ! -d work ]; then
    git init -q work
    part=0
    for package in numpy scipy pandas matplotlib sympy PIL fontTools; do
        [ -d plots/lib/python3*/site-packages/$package ] || continue
        (cd plots/lib/python3*/site-packages && find $package \( -name '*.py' -o -name '*.pyi' -o -name '*.h' \) \
            | tar -cf - -T - | tar -C "$base/work" -xf -)
        git -C work add . && git -C work -c user.name=nobody -c user.email=nobody@example.org \
            commit -q -m "Take $package"
        git -C work tag "part$((part += 1))"
    done
    git -C work gc -q
fi
git -C work checkout -q master 2>/dev/null || git -C work checkout -q main
git -C work status >/dev/null
tree work work
record git_status work "$base/work" 1 git -C work status
record git_log work "$base/work" 1 git -C work log --stat
record git_grep work "$base/work" 1 git -C work grep -l "def __init__"
branch=$(git -C work branch --show-current)
before="git -C $base/work checkout -q $branch" record git_checkout work "$base/work" 1 \
    git -C work checkout -q part2
git -C work checkout -q "$branch"

cat >paper.tex <<'LATEX'
\documentclass[a4paper]{article}
\usepackage{amsmath,amssymb,graphicx,longtable,color,hyperref}
\begin{document}\section{One}\begin{equation}a=b\end{equation}\end{document}
LATEX
tree texmf /usr/share/texlive/texmf-dist
record latex texmf /usr/share/texlive/texmf-dist 1 pdflatex -interaction=batchmode paper.tex

[ -d area ] || python3 "$here/toolbox.py" make "$base/area"
tree area area
record toolbox area "$base/area" 1 \
    python3 "$here/toolbox.py" walk "$base/area" Sub3/Package1 Sub7/Package8 Sub9/Package2
record list_area area "$base/area" 1 ls -lR area
