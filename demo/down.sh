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
if [ -d "$folder/federation" ]; then
  "$tieline" dev down --dir "$folder/federation"
fi
if [ -e "$folder/mount-made" ]; then
  # rmdir and not rm: should something still be mounted, it must not be emptied.
  rmdir "$(cat "$folder/mount")"
fi
if [ "${KEEP:-}" = 1 ]; then
  rm -rf "$folder/federation" "$folder/mount" "$folder/mount-made" "$folder/mass.png"
  echo "Gone. What was downloaded is still in $folder."
else
  rm -rf "$folder"
  echo "Gone, with all of $folder. Packages of the distribution stay installed."
fi
