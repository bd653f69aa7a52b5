"""The folders of the code: who includes and imports whom, who starts threads, who allocates."""

from __future__ import annotations

import ast
import functools
import re
import sys

from support.helpers import ROOT, for_each, run_python

ROOMS = ("include", "core", "kernels", "python", "system")
C_FILES = sorted(path for room in ROOMS for path in (ROOT / "csrc" / room).glob("*.[ch]"))
PYTHON_FILES = sorted((ROOT / "pyattn").rglob("*.py"))
HOME = {path.name: path.parent.name for path in C_FILES}  # of a header; names are unique, tested below

# Room: the rooms whose headers it may include. Of kernels, core sees kernels.h alone.
C_ARROWS = {
    "include": set(),
    "core": {"include", "core", "kernels", "system"},
    "kernels": {"kernels"},
    "python": {"include", "core", "python", "system"},
    "system": {"system"},
}
# Headers that only these may include.
RESERVED = {
    r"Python\.h|numpy/.*": lambda path: path.parent.name == "python",
    r"immintrin\.h|arm_neon\.h": lambda path: path.parent.name == "kernels",
    r"[a-z]mmintrin\.h": lambda path: path.name == "float_state.h",
    r"(pthread|threads|semaphore|windows|process|sched|signal|time|unistd)\.h": lambda path: (
        path.parent.name == "system"
    ),
}
# Words that only these may use.
WORDS = {
    r"pthread_\w+|thrd_\w+|sem_wait": lambda path: path.parent.name == "system",
    r"attn_start_thread|attn_try_lock": lambda path: path.name == "parallel.c" or path.parent.name == "system",
    r"malloc|calloc|realloc|free|aligned_alloc|posix_memalign|alloca|strdup|mmap": lambda path: path.name == "arena.c",
    r"Py\w*_\w+|NPY_\w+|npy_\w+": lambda path: path.parent.name == "python",
    r"attn_status|attn_fail|attn_arena\w*|attn_job": lambda path: path.parent.name != "kernels",
    r"exit|abort|assert|printf|fprintf|setenv|system": lambda path: False,
}
# Folders and files of pyattn, from the lowest floor to the highest: each may import what lies on floors below its own.
FLOORS = (
    {"_core", "_version"},
    {"_util"},
    {"masks", "reference", "runtime", "io"},
    {"functional", "tracing"},
    {"cache", "plot"},
    {"nn"},
    {"generation", "optim"},
    {"models"},
    {"interop"},
    {"testing"},
    {""},
    {"__main__"},
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}
# The one arrow up, inside a function: a mask draws itself.
UPWARD = {"masks": {"plot"}}
# What the extension imports, while it runs: its slow paths and the type of its results.
IMPORTED_BY_C = {
    "pyattn._util.halves",
    "pyattn._util.names",
    "pyattn._util.random",
    "pyattn._util.warnings",
    "pyattn.functional",
    "pyattn.functional._many_axes",
    "pyattn.masks._lowering",
}
# File: what it needs besides NumPy, and imports inside functions.
OPTIONAL = {
    "testing/calling.py": {"torch"},
    "testing/gradient_sides.py": {"torch"},
    "testing/sides.py": {"torch"},
    "generation/callbacks.py": {"tqdm"},
    "interop/bertviz.py": {"torch"},
    "_util/halves.py": {"ml_dtypes", "torch"},
    "interop/command.py": {"transformers"},
    "interop/transformers.py": {"torch", "transformers"},
    "masks/_mask.py": {"matplotlib"},  # for type checkers
    "models/sentences.py": {"tokenizers"},
}
# Room: what its files need besides NumPy; `import pyattn.plot` itself imports none of them.
OPTIONAL_ROOMS = {
    "interop/dask": {"dask"},
    "interop/torch": {"torch"},
    "plot": {"matplotlib", "PIL"},
}


def text_of(path):
    """A C file without comments and string literals; lines keep their numbers."""

    def emptied(match):
        return '""' if match[0].startswith('"') else "\n" * match[0].count("\n")

    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", emptied, path.read_text(), flags=re.DOTALL)


def includes(path):
    return re.findall(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", path.read_text(), re.MULTILINE)


def id_of(path):
    return str(path.relative_to(ROOT))


every_c_file = for_each("path", C_FILES)
every_python_file = for_each("path", PYTHON_FILES)


def test_there_is_something_to_look_at():
    assert {path.parent.name for path in C_FILES} == set(ROOMS)
    assert len(HOME) == len(C_FILES), "two files of one name"
    assert len(PYTHON_FILES) > 5


# C


@every_c_file
def test_headers_are_included_along_the_arrows(path):
    room = path.parent.name
    for header in includes(path):
        if header in HOME:
            assert HOME[header] in C_ARROWS[room], f"{room} includes {header} of {HOME[header]}"
            assert room != "core" or HOME[header] != "kernels" or header == "kernels.h"
        for pattern, allowed in RESERVED.items():
            if re.fullmatch(pattern, header):
                assert allowed(path), f"{header} in {path.name}"
                break


@every_c_file
def test_the_public_header_and_the_core_know_the_c_library_alone(path):
    if path.parent.name not in ("include", "core"):
        return
    others = {header for header in includes(path) if header not in HOME}
    processor = {"cpuid.h", "xmmintrin.h"}
    library = {f"std{name}.h" for name in ("arg", "bool", "def", "int", "io", "lib")}
    library |= {"errno.h", "fenv.h", "float.h", "limits.h", "math.h", "string.h"}
    assert others <= library | (processor if path.parent.name == "core" else set())


@every_c_file
def test_words_are_used_where_they_belong(path):
    text = text_of(path)
    for pattern, allowed in WORDS.items():
        if not allowed(path):
            found = re.findall(rf"(?<![\w.>])(?:{pattern})(?=\s*\()", text)
            assert not found, f"{path.name} uses {', '.join(found)}"


@every_c_file
def test_other_files_see_prefixed_names_alone(path):
    """A function that is not static, and is not a method of Python's, begins with attn_ or, in the binding, pyattn_."""
    own = "pyattn_|PyInit_" if path.parent.name == "python" else "attn_"
    for name, declaration, _ in functions_of(path):
        assert re.match(r"\s*(static|ATTN_SEPARATE|ATTN_TEMPLATE)\b", declaration) or re.match(own, name), name


def functions_of(path):
    """(name, declaration, number of lines) of each function whose opening brace stands alone."""
    pattern = r"^(?P<head>[A-Za-z_][^;{}#]*?(?P<name>K\(\w+\)|\w+)\([^;{}#]*\))\s*\n\{\n(?P<body>.*?)^\}"
    for match in re.finditer(pattern, text_of(path), re.DOTALL | re.MULTILINE):
        yield match["name"], match["head"], match[0].count("\n") + 1


def test_functions_are_found():
    names = {name for path in C_FILES for name, _, _ in functions_of(path)}
    assert {"attn_parallel_for", "attn_arena_take", "attention", "K(softmax_row)"} <= names


# Python


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path, inside_functions=True):
    """The modules of pyattn that a file imports, "" for the package itself, and the top-level names of all others."""
    ours, others = set(), set()
    for node in ast.walk(tree_of(path)) if inside_functions else tree_of(path).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            submodules = node.module == "pyattn"
            names = [f"pyattn.{alias.name}" for alias in node.names] if submodules else [node.module]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            names = [found[1] for found in [re.match(r"f?'(pyattn(\.\w+)*)", ast.unparse(node.args[0]))] if found]
        for name in names:
            top, _, rest = name.partition(".")
            (ours if top == "pyattn" else others).add(rest.partition(".")[0] if top == "pyattn" else top)
    return ours, others


def module_of(path):
    parts = path.relative_to(ROOT / "pyattn").with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def files_imported_by(path):
    """Files of pyattn that a file imports; `from folder import name` is the file that is there, else the folder's."""
    for node in ast.walk(tree_of(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            while parts[0] == "pyattn" and len(parts) > 1:
                target = ROOT.joinpath(*parts)
                found = next(
                    (file for file in (target.with_suffix(".py"), target / "__init__.py") if file.is_file()), None
                )
                if found:
                    yield found
                    break
                parts.pop()


def test_arrows_run_down():
    for path in PYTHON_FILES:
        own = module_of(path)
        assert own in FLOOR_OF, f"say in FLOORS where {own} lives"
        for other in imports_of(path)[0] - {own} - UPWARD.get(own, set()):
            assert FLOOR_OF[other] < FLOOR_OF[own], f"{path} imports {other}, which is not below it"
    for own, others in UPWARD.items():
        used = set().union(*(imports_of(path)[0] for path in PYTHON_FILES if module_of(path) == own))
        assert others <= used, "an exception that nothing needs"


def test_the_extension_imports_these_modules():
    called = [re.findall(r'(?:ImportModule|imported)\("(pyattn[^"]*)"', path.read_text()) for path in C_FILES]
    assert {name for names in called for name in names} == IMPORTED_BY_C


def test_no_file_imports_the_face():
    """`from pyattn import x` runs the whole package's __init__, which imports what is above."""
    for path in PYTHON_FILES:
        for node in ast.walk(tree_of(path)):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "pyattn"), path


def test_imports_have_no_circle():
    """Function bodies and type-checking blocks included."""
    below = {path: set(files_imported_by(path)) - {path} for path in PYTHON_FILES}
    while leaves := [path for path, others in below.items() if not others & below.keys()]:
        for path in leaves:
            del below[path]
    assert not below, sorted(map(id_of, below))


@every_python_file
def test_numpy_is_the_only_dependency(path):
    file = path.relative_to(ROOT / "pyattn").as_posix()
    usual = {"numpy", *sys.stdlib_module_names, *OPTIONAL_ROOMS.get(file.rpartition("/")[0], ())}
    assert imports_of(path)[1] <= usual | OPTIONAL.get(file, set())
    assert imports_of(path, inside_functions=False)[1] <= usual


SLOW = {"importlib.resources", "numpy.random", "tempfile", "zipfile"}  # each takes longer than all of pyattn's modules
IMPORT = """
import os, sys, threading
import numpy
before, tasks = set(sys.modules), os.listdir("/proc/self/task") if os.path.exists("/proc/self/task") else []
import pyattn
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
print(*sorted(name for name in sys.modules if name.startswith("pyattn.")))
print(*sorted(set(sys.modules) - before))
assert threading.active_count() == 1
assert not tasks or len(os.listdir("/proc/self/task")) == len(tasks), "a thread"
pyattn.attention([[1.0]], [[1.0]], [[1.0]])
assert not tasks or len(os.listdir("/proc/self/task")) == len(tasks), "a thread for a call that needs none"
"""


def test_importing_pyattn_imports_numpy_alone_and_starts_nothing():
    foreign, ours, new = run_python(IMPORT).stdout.splitlines()
    assert set(foreign.split()) <= {"numpy", "pyattn"}
    lazy = {
        f"pyattn.{name}"
        for name in (
            "io",
            "reference",
            "tracing",
            "cache",
            "plot",
            "nn",
            "optim",
            "generation",
            "interop",
            "models",
            "testing",
            "__main__",
        )
    }
    assert not lazy & set(ours.split())
    assert not SLOW & set(new.split())


LAZY = """
import sys, pyattn
assert "tracing" in dir(pyattn) and "attention" in dir(pyattn)
assert not hasattr(pyattn, "missing") and "pyattn.tracing" not in sys.modules
assert pyattn.tracing is sys.modules["pyattn.tracing"] is vars(pyattn)["tracing"]
try:
    pyattn.atention
except AttributeError as error:
    assert "atention" in str(error)
"""


def test_submodules_are_imported_on_first_use():
    run_python(LAZY)
