"""Helpers for all packages: arguments, types, warnings, slabs of memory. They import no other package of pyattn."""
