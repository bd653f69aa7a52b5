#!/bin/sh
# Copies the repository's folder into a new one, without what is made there: what is built in the copy leaves the
# repository alone.
#
#   tools/copy_tree.sh FOLDER
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
rm -rf "$1"
mkdir -p "$1"
tar -C "$root" --exclude=.git --exclude='./.venv*' --exclude='./.*_cache' --exclude=./build --exclude=./dist \
    --exclude=./tests/c/build --exclude='*.so' --exclude='*.egg-info' --exclude=__pycache__ -cf - . |
    tar -C "$1" -xf -
