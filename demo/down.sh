#!/usr/bin/env bash
# `make demo-down`: ends the demo and removes every trace of it. KEEP=1 keeps what was downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${TARGET:-$PWD/target}
folder=$target/demo
tieline=${PROGRAM:-$target/release/tieline}

if [ ! -d "$folder" ]; then
  echo "There is no demo in $folder."
  exit
fi
# Left by a chapter that was interrupted.
for place in "$folder"/cvmfs/*; do
  if mountpoint -q "$place"; then "$tieline" umount "$place"; fi
done
for machine in "$folder"/machines/*; do
  if [ -d "$machine" ]; then
    "$tieline" vm stop --force --machines "$folder/machines" "${machine##*/}" 2>/dev/null || true
  fi
done
if [ -d "$folder/federation" ]; then
  "$tieline" dev down --dir "$folder/federation"
fi
if [ -e "$folder/mount-made" ]; then
  # rmdir and not rm: should something still be mounted, it must not be emptied.
  rmdir "$(cat "$folder/mount")"
fi
if [ "${KEEP:-}" = 1 ]; then
  for made in federation mount mount-made mass.png conditions keys cvmfs machines job.sh copy.root ann.cc; do
    rm -rf "${folder:?}/$made"
  done
  echo "Gone. What was downloaded is still in $folder."
else
  rm -rf "$folder"
  echo "Gone, with all of $folder. Packages of the distribution stay installed."
fi
