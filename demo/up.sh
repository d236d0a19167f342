#!/usr/bin/env bash
# `make demo`: a whole federation on this machine, with real CMS events in it.
#
# Settings, by environment or `make demo NAME=value`: MOUNT (where the file system appears), FILES (ROOT files
# of your own instead of the published ones), IMAGE=1 (also a virtual client), YES=1 (do not ask). Its own
# test also sets PROGRAM and PYTHON, to use what is built and installed already.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${TARGET:-$PWD/target}
folder=$target/demo
cargo=${CARGO:-cargo}
tieline=${PROGRAM:-$target/release/tieline}
coffea=2023.12.0 # the version whose source distribution the events are taken from

mount=${MOUNT:-/extenci}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

missing_packages() {
  command -v dpkg-query >/dev/null || return 0
  local package image=()
  [ "${IMAGE:-}" != 1 ] || image=(mmdebstrap binutils e2fsprogs dosfstools mtools gdisk syslinux syslinux-common
    systemd-boot-efi qemu-system-x86 qemu-utils seabios)
  for package in gcc libc6-dev fuse3 python3 python3-venv \
    krb5-kdc krb5-admin-server krb5-user openssl curl xrootd-client xrootd-plugins python3-xrootd "${image[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

announce() {
  local events="the source distribution of coffea $coffea, for the CMS events in its tests"
  [ -z "${FILES:-}" ] || events="nothing else: the events are your FILES"
  local remains="removes all of this."
  [ -z "$packages" ] || remains="removes all of this but the packages."
  cat <<TEXT
This shows Tieline on this one machine, in five chapters: one file system over two sites,
uf and fnal, with real CMS events analysed over it; conditions data published by one and
mounted by the other; the events by root:// and https://; a pool as a plain directory and
a tape behind it; and a virtual client (with IMAGE=1). A Kerberos realm of its own,
EXTENCI.ORG, proves who everybody is. Everything listens on loopback only.

  mount          $mount
  folder         $folder (servers' data, the KDC's, events, keys, logs, Python environment)
  ports          free ones on 127.0.0.1, chosen by the system; \`dev status\` lists them
  packages       ${packages:-nothing to install}
  from PyPI      uproot, awkward, numpy, matplotlib, into the folder above;
                 $events
  build          cargo, in release, if not built yet (some minutes the first time)

\`make demo-down\` ends it and $remains
TEXT
  if [ "${YES:-}" = 1 ]; then return; fi
  local answer
  read -r -p $'\nGo on? [y/N] ' answer || answer=n
  case "$answer" in [yY]*) ;; *) echo "Nothing was changed."; exit 1 ;; esac
}

install_packages() {
  [ -n "$packages" ] || return 0
  say "Installing $packages"
  env DEBIAN_FRONTEND=noninteractive apt-get update -q
  # shellcheck disable=SC2086  # a list of names
  env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends $packages
}

python_environment() {
  [ -e "$folder/python/ready-1" ] && return
  say "Making the Python environment"
  rm -rf "$folder/python"
  python3 -m venv "$folder/python"
  # The cache stays inside the folder, so that demo-down leaves nothing in the home directory.
  PIP_CACHE_DIR=$folder/pip-cache PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$folder/python/bin/pip" install uproot awkward numpy matplotlib
  touch "$folder/python/ready-1"
}

# The CMS events that coffea's authors publish with its tests (BSD 3-Clause).
published_events() {
  local events=$folder/events
  if [ ! -e "$events/ready-1" ]; then
    say "Fetching CMS events from PyPI"
    rm -rf "$events" && mkdir -p "$events"
    PIP_CACHE_DIR=$folder/pip-cache PIP_DISABLE_PIP_VERSION_CHECK=1 \
      "$folder/python/bin/pip" download --no-deps --no-binary coffea --dest "$events" \
      "coffea==$coffea"
    local name
    for name in nano_dimuon nano_dy pfnano treemaker; do
      tar -xzf "$events/coffea-$coffea.tar.gz" -C "$events" --strip-components 3 \
        "coffea-$coffea/tests/samples/$name.root"
    done
    rm "$events/coffea-$coffea.tar.gz"
    touch "$events/ready-1"
  fi
  files=("$events"/*.root)
}

federation() {
  local status
  if status=$("$tieline" dev status --json --dir "$folder/federation" 2>/dev/null); then
    if ! grep -q '"state": "down"' <<<"$status"; then
      mount=$(cat "$folder/mount")
      say "The federation is up already, at $mount"
      return
    fi
    # The machine was switched off, or something was killed: begin anew.
    "$tieline" dev down --dir "$folder/federation"
  fi
  say "Starting the federation"
  rm -rf "$folder/federation"
  if [ ! -d "$mount" ]; then
    mkdir -p "$mount"
    touch "$folder/mount-made"
  fi
  echo "$mount" >"$folder/mount"
  "$tieline" dev up --kerberos --doors --dir "$folder/federation" --mount "$mount"
}

# What nobody but root can do for the demo.
only_root() {
  local there=$mount
  until [ -e "$there" ]; do there=$(dirname "$there"); done
  [ -z "$packages" ] || echo "install $packages"
  [ "${IMAGE:-}" != 1 ] || echo "make an image (IMAGE=1)"
  [ -w "$there" ] || echo "make $mount (or say MOUNT=\$HOME/extenci)"
}

packages=$(missing_packages | xargs)
if [ "$(id -u)" != 0 ]; then
  needs=$(only_root)
  if [ -n "$needs" ]; then
    printf 'make demo: only root can\n%s\n' "$needs" >&2
    echo "Nothing was changed. As root: sudo -E env PATH=\"\$PATH\" make demo" >&2
    exit 1
  fi
fi
announce
install_packages
mkdir -p "$folder"
if [ -z "${PROGRAM:-}" ]; then
  say "Building"
  "$cargo" build --release --package tieline
fi
if [ -z "${PYTHON:-}" ]; then
  python_environment
  PYTHON=$folder/python/bin/python
fi
if [ -n "${FILES:-}" ]; then
  read -r -a files <<<"$FILES"
else
  published_events
fi
federation
# matplotlib would keep a cache in the home directory.
MPLCONFIGDIR=$folder/matplotlib exec "$PYTHON" -B demo/show.py \
  --tieline "$tieline" --folder "$folder" --mount "$mount" "${files[@]}"
