#!/bin/sh
# What the build needs from the system: a C compiler, Python 3.10 or later with its headers, and venv.
# Prints nothing if all is there, else one line with the fix, and fails.
#
#   tools/check_prerequisites.sh [python]

python=${1-python3}

need() {
    echo "pyattn needs $1. Fix: $2" >&2
    exit 1
}

[ -n "$python" ] || need "Python 3.10 or later, and PYTHON is empty" "leave PYTHON= out, or make PYTHON=python3.13"

command -v "$python" >/dev/null 2>&1 ||
    need "Python 3.10 or later, and '$python' is not there" "apt install python3, or make PYTHON=<another one>"

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
case $version in
3.1[0-9] | 3.[2-9][0-9]) ;;
*) need "Python 3.10 or later, and '$python' is ${version:-not a Python that runs}" \
    "install one, and name it: make PYTHON=python3.13" ;;
esac

# The compiler that setuptools will call: $CC, else the one this Python was built with. Both may hold options.
compiler=${CC:-$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}
includes=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')

compiles() {
    echo "#include <$1>" | $compiler -I"$includes" -fsyntax-only -x c - >/dev/null 2>&1
}

compiles stdio.h || need "a C compiler, and '$compiler' does not compile a program" "apt install build-essential"
compiles Python.h || need "Python's C headers, and Python.h is missing for '$python'" "apt install python$version-dev"

"$python" -c 'import venv, ensurepip; ensurepip.version()' 2>/dev/null ||
    need "virtual environments, and '$python' has no venv with pip" "apt install python$version-venv"
