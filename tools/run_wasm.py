"""Runs a program that was compiled for WebAssembly, with the temporary files: run_wasm.py PROGRAM ARGUMENTS..."""

import sys
import tempfile

from wasmtime import Engine, ExitTrap, Linker, Module, Store, WasiConfig

engine = Engine()
linker = Linker(engine)
linker.define_wasi()
store = Store(engine)
wasi = WasiConfig()
wasi.argv = sys.argv[1:]
wasi.inherit_stdout()
wasi.inherit_stderr()
wasi.preopen_dir(tempfile.gettempdir(), tempfile.gettempdir())
store.set_wasi(wasi)
try:
    linker.instantiate(store, Module.from_file(engine, sys.argv[1])).exports(store)["_start"](store)
except ExitTrap as ended:
    sys.exit(ended.code)
