"""Builds pyattn._core: the C core, its kernels and the binding, as one extension. The rest is in pyproject.toml.

Environment: PYATTN_WERROR=1 makes compiler warnings errors, as CI does. PYATTN_SANITIZE=address (or 1) builds with
AddressSanitizer and UndefinedBehaviorSanitizer, PYATTN_SANITIZE=thread with ThreadSanitizer.
"""

import json
import os
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOMS = ("core", "kernels", "system")
SANITIZERS = {"": "", "1": "address,undefined", "address": "address,undefined", "thread": "thread"}

version = runpy.run_path("pyattn/_version.py")["__version__"]
sanitize = SANITIZERS[os.environ.get("PYATTN_SANITIZE", "")]

# No flag here depends on the instruction set: csrc/kernels/target.h chooses it file by file. Contraction is off because
# every fused multiply-add is written as one, so that all compilers give the same bits. gcc makes vectors of loops that
# compare floats only with -fno-trapping-math, clang's default; the caller's floating-point flags are kept anyway. -g0
# undoes the -g that most interpreters hand on, and which makes up most of the file. Functions begin a cache line: a
# small call took up to 6 % longer after a change elsewhere had moved them.
compile_args = ["-std=gnu11", "-ffp-contract=off", "-fno-trapping-math", "-fvisibility=hidden", "-pthread"]
compile_args += ["-Wall", "-Wextra"]
link_args = ["-pthread"]
if sanitize:  # -fno-wrapv undoes another flag that is handed on, and that would hide overflows
    compile_args += ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv"]
    compile_args += [f"-fsanitize={sanitize}", "-fno-sanitize-recover=undefined"]
    link_args += [f"-fsanitize={sanitize}"]
else:
    compile_args += ["-O3", "-falign-functions=64", "-g0"]
    compile_args += ["-Wframe-larger-than=8192"]  # a caller's thread may have a stack of 64 KB
if os.environ.get("PYATTN_WERROR") == "1":
    compile_args += ["-Werror"]


class ParallelBuildExt(build_ext):
    """Compiles one file per processor at a time; setuptools itself only builds whole extensions in parallel."""

    def build_extensions(self):
        if self.compiler.compiler_type == "msvc":
            fix = 'set CC to "python-zig cc" (pip install ziglang) and add build_ext --compiler=mingw32'
            raise SystemExit(f"Microsoft's compiler does not know GNU C, in which pyattn is written: {fix}")
        compile_files = self.compiler.compile

        def compile_in_parallel(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_files([source], **options), sources)
                return [name for names in objects for name in names]

        self.compiler.compile = compile_in_parallel
        super().build_extensions()


class WheelWithSbom(bdist_wheel):
    """Adds to the wheel's metadata a list of what it is made of (PEP 770), as CycloneDX writes one."""

    def egg2dist(self, egginfo_path, distinfo_path):
        super().egg2dist(egginfo_path, distinfo_path)
        folder = Path(distinfo_path, "sboms")
        folder.mkdir()
        ours = {"type": "library", "bom-ref": "pyattn", "name": "pyattn", "version": version}
        ours |= {"purl": f"pkg:pypi/pyattn@{version}", "licenses": [{"expression": "MIT"}]}
        headers = {"type": "library", "bom-ref": "numpy", "name": "numpy", "version": np.__version__}
        headers |= {"purl": f"pkg:pypi/numpy@{np.__version__}", "licenses": [{"license": {"id": "BSD-3-Clause"}}]}
        headers |= {"scope": "excluded", "description": "Its C headers are compiled in."}
        sbom = {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": ours},
            "components": [headers],
            "dependencies": [{"ref": "pyattn", "dependsOn": ["numpy"]}, {"ref": "numpy"}],
        }
        (folder / "pyattn.cdx.json").write_bytes(json.dumps(sbom, indent=2).encode() + b"\n")


core = Extension(
    "pyattn._core",
    sources=sorted(str(path) for room in (*ROOMS, "python") for path in Path("csrc", room).glob("*.c")),
    depends=sorted(str(path) for path in Path("csrc").rglob("*.h")),  # else an edited header rebuilds nothing
    include_dirs=["csrc/include", *(f"csrc/{room}" for room in ROOMS), np.get_include()],
    define_macros=[("PYATTN_VERSION", f'"{version}"')],
    extra_compile_args=compile_args,
    extra_link_args=link_args,
    libraries=["m"],
)

setup(
    version=version,
    # attn.h stays where C programs look for it and is installed as pyattn/include/attn.h, for pyattn.get_include().
    packages=[*find_packages(include=["pyattn", "pyattn.*"]), "pyattn.include"],
    package_dir={"pyattn.include": "csrc/include"},
    package_data={
        "pyattn.include": ["attn.h"],
        "pyattn.models": ["student.safetensors"],
        "pyattn.plot": ["*.css", "*.js"],
        "pyattn.tracing.render": ["*.css", "*.js"],
    },
    ext_modules=[core],
    cmdclass={"bdist_wheel": WheelWithSbom, "build_ext": ParallelBuildExt},
    # A directory per kind of build: one with sanitizers must not pass for one without.
    options={"build": {"build_base": f"build/{sanitize.split(',')[0] or 'plain'}"}},
)
