"""Pages of docs/reference list what the code has: architectures, entries of config.json, functions of attn.h, terms."""

from __future__ import annotations

import re

from support.helpers import ROOT

import pyattn
from pyattn.models import bert, decoder, gpt2, layers, llama
from pyattn.models.loading import FAMILIES


def read(name):
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


def section_of(text, heading):
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows_of(text):
    """Tables as lists of cells, without their heads."""
    return [line.strip("|").split("|") for line in re.findall(r"^\| ?`.*$(?!\n\|-)", text, re.MULTILINE)]


def code_of(text):
    return re.findall(r"`([^`]+)`", text)


def first_cells(text):
    return [name for row in rows_of(text) for name in code_of(row[0])]


MODELS = read("supported-models.md")


def test_every_architecture_has_a_row():
    assert sorted(first_cells(section_of(MODELS, "Architectures"))) == sorted(FAMILIES)


def test_every_architecture_has_entries_and_a_tolerance():
    for heading in ("Entries of config.json", "Tolerances"):
        assert set(FAMILIES) <= set(first_cells(section_of(MODELS, heading))), heading


def test_the_entries_of_config_are_those_that_are_read():
    files = (ROOT / "pyattn" / "models" / f"{name}.py" for name in ("bert", "gpt2", "layers", "llama", "mobilebert"))
    sources = "".join(path.read_text() for path in files)
    read_names = set(re.findall(r'config\.(?:count|flag|number|choice)\("(\w+)"', sources))
    read_names |= set(re.findall(r'read_heads\(config, \w+, "(\w+)"\)', sources))
    table = section_of(MODELS, "Entries of config.json")
    named = {name for row in rows_of(table) for cell in row[1:] for name in code_of(cell)}
    assert read_names <= named
    assert [name for name in named - set(FAMILIES) if f'"{name}"' not in sources] == []


def test_every_refused_entry_has_a_row():
    refused = [bert.UNSUPPORTED, bert.UNSUPPORTED_BY_ALBERT, decoder.UNSUPPORTED, gpt2.UNSUPPORTED_SCALES]
    refused += [llama.UNSUPPORTED_IN_LLAMA, llama.UNSUPPORTED_IN_MISTRAL]
    assert set(first_cells(section_of(MODELS, "Unsupported entries of config.json"))) == {
        name for entries in refused for name in entries
    }


def test_every_activation_is_named():
    line = re.search(r"^Activations: (.*?)\.$", MODELS, re.MULTILINE | re.DOTALL)[1]
    assert code_of(line) == list(layers.ACTIVATIONS)


def test_every_kind_of_rope_scaling_is_named():
    sentence = re.search(r"^RoPE scaling: (.*?)\. ", MODELS, re.MULTILINE | re.DOTALL)[1]
    documented = re.findall(r"^ *- ``(\w+)``:", pyattn.functional.rotary_frequencies.__doc__, re.MULTILINE)
    assert code_of(sentence)[3:] == documented


def test_every_function_of_the_header_has_a_row_once():
    header = (ROOT / "csrc" / "include" / "attn.h").read_text()
    functions = re.findall(r"^ATTN_API [^(]*?(attn_\w+)\(", header, re.MULTILINE)
    assert len(functions) > 30
    assert sorted(first_cells(section_of(read("c-api.md"), "Functions"))) == sorted(functions)


def test_every_type_that_the_page_names_is_in_the_header():
    header = (ROOT / "csrc" / "include" / "attn.h").read_text()
    for name in code_of(section_of(read("c-api.md"), "Types")):
        if name.lower().startswith("attn_"):
            assert re.search(rf"\b{name}\b", header), name


def test_the_first_program_is_compiled_as_it_says_itself():
    program = (ROOT / "examples" / "c" / "attention.c").read_text()
    command = re.search(r"^//     (cc .*?-o attention)$", program, re.MULTILINE | re.DOTALL)[1].replace("//", "")
    page = read("c-api.md").replace("\\\n", "")
    assert command.split() == re.search(r"^cc .*$", page, re.MULTILINE)[0].split()


def test_terms_of_the_glossary_are_in_order_and_unique():
    entries = read("glossary.md").partition("```{glossary}\n")[2].partition("```")[0].strip().split("\n\n")
    terms = [[line for line in entry.splitlines() if not line.startswith(" ")] for entry in entries]
    assert len(terms) >= 50
    assert [names[0].lower() for names in terms] == sorted(names[0].lower() for names in terms)
    every = [name.lower() for names in terms for name in names]
    assert len(set(every)) == len(every)


def test_versions_of_python_are_those_of_the_package():
    metadata = (ROOT / "pyproject.toml").read_text()
    minors = re.findall(r"Python :: 3\.(\d+)", metadata)
    numpy = re.search(r'dependencies = \["numpy>=([\d.]+)"\]', metadata)[1]
    text = f"pyattn supports Python 3.{minors[0]} to 3.{minors[-1]}, and NumPy {numpy} or later."
    assert text in read("platforms.md")
