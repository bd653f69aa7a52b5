#!/usr/bin/env bash
# Builds the sdist, out of that the wheel, and looks at what the wheel installs in an environment of its own, as
# `pip install .` does. Fails where the wheel has 2 MB or more, lacks what it should hold, or holds what it should not.
#
# Takes .venv as `make package` leaves it, and NumPy and setuptools from there: nothing is downloaded.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
work=$root/build/package

rm -rf "$work"
"$root/tools/copy_tree.sh" "$work/tree"
cd "$work/tree"
find . -name '.?*' -prune -o -type f -printf '%P\n' | sort >../repository
"$python" setup.py --quiet sdist --dist-dir ..

cd "$work"
tar -tzf pyattn-*.tar.gz | sed 's|^[^/]*/||' | sort >sdist
if comm -23 repository sdist | grep .; then
    echo "FAILED: the sdist lacks these files; MANIFEST.in says what it holds, unless they are none of the repository" >&2
    exit 1
fi

"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir . pyattn-*.tar.gz
echo "the wheel: $(stat -c %s pyattn-*.whl) bytes"
PYTHONPATH=$root/tools "$python" - pyattn-*.whl <<'END'
import pathlib, sys
import wheels

sys.exit("\n".join(f"FAILED: {problem}" for problem in wheels.wrong_with(pathlib.Path(sys.argv[1]))) or None)
END

# A new environment, in which only NumPy is borrowed.
"$python" -m venv venv
borrowed=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
ln -s "$borrowed"/numpy{,.libs,-*} venv/lib/python*/site-packages/
venv/bin/python -m pip install --quiet --no-index pyattn-*.whl
venv/bin/python - <<'END'
import os, sys
import pyattn

site = os.path.dirname(os.path.dirname(pyattn.__file__))
assert site.startswith(sys.prefix), f"{pyattn.__file__} is not what the wheel installed"
assert pyattn.get_include() == os.path.join(site, "pyattn", "include"), pyattn.get_include()
assert os.listdir(pyattn.get_include()) == ["attn.h"], os.listdir(pyattn.get_include())
pyattn.models.examples.student()  # reads a file of data
END
venv/bin/python -m pyattn explain -o explain.html  # reads scripts and styles
echo '#include "attn.h"' | cc -I"$(echo venv/lib/python*/site-packages/pyattn/include)" -fsyntax-only -x c -
venv/bin/python -m pyattn compare
