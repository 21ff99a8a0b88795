"""Write the pages that are made from the code: `make docs`. A house test checks that they are up to date.

Usage: python docs/generate.py [FOLDER]
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final

from cyclopts import App, Argument

import strobe
from documents import json_markdown
from protocol_page import protocol_markdown
from strobe.cli.app import app
from strobe.cli.model import ModelFlags
from structs import schema_markdown

SUBJECTS: Final = {
    "Streams": ("engine",),
    "Attention": ("attention", "bench.probe"),
    "Measuring, traces and runs": ("perf", "core.spans", "comparing"),
    "Errors": ("core.errors",),
}
"""Where the names of the package live, by the heading that they stand under."""
FURTHER: Final = (
    ("strobe.integrations.diffusers", "sparsify"),
    ("strobe.integrations.diffusers", "calibrate"),
    ("strobe.integrations.diffusers.fastwan", "FastWanPipeline"),
    ("strobe.engine.load", "load"),
    ("strobe.engine.family", "Weights"),
    ("strobe.serve.client", "watch"),
)
"""What is imported from a module of its own, because it needs an extra or few use it."""

FENCED: Final = re.compile(r"^```\n.*?^```$", re.MULTILINE | re.DOTALL)
FIRST: Final = re.compile(r"(?<=[\w)])[.;] (?=[A-Z\"`a-z])")
"""Between the first sentence of a flag's help, or its first part, and the rest."""


def api() -> str:
    """Every public name with the first sentence of its docstring; the site puts the whole docstrings below."""
    homes = {name: inspect.getmodule(getattr(strobe, name)).__name__ for name in strobe.__all__ if name != "__version__"}
    lines = ["# Python", "", "Generated from the docstrings by `make docs`; do not edit.", ""]
    for subject, rooms in SUBJECTS.items():
        own = sorted(name for name in homes if homes[name].startswith(tuple(f"strobe.{room}" for room in rooms)))
        lines += _table(subject, [(f"strobe.{name}", getattr(strobe, name)) for name in own])
        homes = {name: home for name, home in homes.items() if name not in own}
    lines += _table("Others", [(f"strobe.{name}", getattr(strobe, name)) for name in sorted(homes)])
    further = [(f"{module}.{name}", getattr(import_module(module), name)) for module, name in FURTHER]
    return "\n".join(lines + _table("From modules of their own", further))


def _table(title: str, rows: list[tuple[str, object]]) -> list[str]:
    """A heading and a line for each name; nothing without any."""
    head = [f"## {title}", ""]
    return [*head, *(f"* `{name}`: {_sentence(thing)}" for name, thing in rows), ""] if rows else []


def _sentence(thing: object) -> str:
    """The first sentence of a docstring."""
    return FIRST.split(" ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()), maxsplit=1)[0].rstrip(".")


def commands() -> str:
    """Every verb with its examples and flags, each flag described once; `strobe VERB --help` has the rest.

    Flags that go together have a name where verbs have them: those of every verb none at all, those of a group one.
    """
    verbs = dict(_verbs(app, ("strobe",)))
    flags = {name: list(map(_flag, _shown(verb))) for name, verb in verbs.items()}
    counts = Counter(each for own in flags.values() for each in own)
    everywhere = set.intersection(*map(set, flags.values()))
    names = [f"--{each.name.replace('_', '-')}" for each in fields(ModelFlags)]
    model = [each for each in flags["strobe serve"] if each[0] in names]
    sides = [each for each in flags["strobe speedup"] if each in flags["strobe extract attention"] and each not in everywhere]
    groups = {"the model": model, "two sides": sides}
    lines = ["# Command line", "", "Generated from `strobe.cli` by `make docs`; do not edit. `strobe VERB --help` says more.", ""]
    for name, verb in verbs.items():
        said = inspect.getdoc(verb.default_command) or ""
        lines += [f"## {name}", "", " ".join(said.partition("\n\n")[0].split()), "", *FENCED.findall(said)[:1], ""]
        lines += [f"* `{flag}`: {text}" for flag, text in flags[name] if counts[flag, text] == 1]
        taken = [group for group, whole in groups.items() if set(whole) <= set(flags[name])]
        told = everywhere.union(*(groups[group] for group in taken))
        also = [f"`{each[0]}`" for each in flags[name] if counts[each] > 1 and each not in told]
        also += [f"flags of {group}" for group in taken]
        lines += [f"* [also](#flags): {', '.join(also)}"] * bool(also) + [""]
    told = everywhere.union(*groups.values())
    several = sorted(each for each, times in counts.items() if times > 1 and each not in told)
    listed = [
        [f"Of {title}:", "", *(f"* `{flag}`: {text}" for flag, text in group), ""]
        for title, group in {"every verb": sorted(everywhere), **groups, "several verbs": several}.items()
    ]
    return "\n".join([*lines, "## Flags", "", *chain.from_iterable(listed)])


def _verbs(parent: App, words: tuple[str, ...]) -> Iterator[tuple[str, App]]:
    """Every verb that runs, by its words."""
    inside = [name for name in parent if name.isidentifier()]
    if not inside:
        yield " ".join(words), parent
    for name in inside:
        yield from _verbs(parent[name], (*words, name))


def _shown(verb: App) -> list[Argument]:
    """What `--help` of a verb lists."""
    return [each for each in verb.assemble_argument_collection(parse_docstring=True) if each.show and each.name != "*"]


def _flag(argument: Argument) -> tuple[str, str]:
    """The names of a flag, and the first sentence of its help with its default."""
    text = FIRST.split(" ".join((argument.parameter.help or "").split()), maxsplit=1)[0].rstrip(".")
    default = argument.field_info.default
    shown = isinstance(default, str | int | float | Path) and default not in (False, True, "") and " " not in str(default)
    no = [each for each in argument.names if each in (argument.parameter.negative or ())]
    short = [each for each in argument.names if each[:2] != "--" and each != argument.name]
    return " ".join([argument.name, *short, *no]), text + (f" [{default}]" if shown else "")


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    (folder / "api.md").write_text(api(), encoding="utf-8")
    (folder / "records.md").write_text(schema_markdown(), encoding="utf-8")
    (folder / "protocol.md").write_text(protocol_markdown(), encoding="utf-8")
    (folder / "json.md").write_text(json_markdown(), encoding="utf-8")
    (folder / "commands.md").write_text(commands(), encoding="utf-8")
