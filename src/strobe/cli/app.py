"""The command line `strobe VERB ...`: its verbs, in the groups of `strobe --help`, and the layout of its pages."""

from __future__ import annotations

import re
import shlex
from typing import Any, Final, get_args, get_origin

from cyclopts import App, Group, Parameter
from cyclopts.help import DefaultFormatter, HelpPanel, InlineText
from rich.console import Console, ConsoleOptions, RenderableType
from rich.console import Group as Lines
from rich.padding import Padding
from rich.text import Text

import strobe

_FENCE: Final = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
_CODE: Final = re.compile(r"(`+)(.+?)\1")
_MARKS: Final = re.compile(r"  #( (slow|gpus?|network|needs-files))+$", re.M)
"""What the project's tests need to know of an example."""
_LIST: Final = re.compile(r"\n(?=[*-] )")


def prose(text: str) -> Text:
    """Paragraphs whose lines the terminal breaks anew, with code in a style of its own instead of backticks."""
    shown = Text()
    paragraphs = [_LIST.split(each.strip()) for each in re.split(r"\n\s*\n", text.strip())]
    joined = "\n\n".join("\n".join(" ".join(line.split()) for line in lines) for lines in paragraphs)
    for index, part in enumerate(_CODE.split(joined)):
        if index % 3 != 1:  # the backticks themselves
            shown.append(part, "bold cyan" if index % 3 == 2 else "")
    return shown


def document(text: str) -> RenderableType:
    """A docstring: paragraphs, and blocks of code between fences, which keep their lines."""
    parts: list[RenderableType] = []
    for index, part in enumerate(_FENCE.split(text)):
        if index % 2:
            parts += [Padding(Text(_MARKS.sub("", part.rstrip()), style="cyan"), (0, 0, 0, 1), expand=False), Text()]
        elif part.strip():
            parts += [prose(part), Text()]
    return Lines(*parts)


def _plain(read: InlineText) -> str:
    """Return what the command line read as plain text."""
    return read.primary_renderable.plain if isinstance(read.primary_renderable, Text) else ""


class HelpPage(DefaultFormatter):
    """Pages of `--help` from docstrings that were read as plain text."""

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        if isinstance(description, InlineText):
            console.print(document(_plain(description)), soft_wrap=False)

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print a box of flags or verbs."""
        for entry in panel.entries:
            if isinstance(entry.description, InlineText):
                entry.description.primary_renderable = prose(_plain(entry.description))
        super().__call__(console, options, panel)


HELP: Final = ("--help", "-h")
VERBS: Final = {
    "speedup": "Show how much faster a candidate is at every level, and where the rest of the kernel's speedup is lost.",
    "trace": "Analyse profiler traces: kernels, busy and idle time, launches, gaps, steps, regions, communication.",
    "compare": "Measure presets, programs or commits against each other: interleaved, every sample kept, then the report.",
    "report": "Write report.html, report.md and report.json of one or several runs.",
    "profile": "Measure and trace one run or one operator: times, trace, roofline, what calls what.",
    "lint": "Find claims that cannot be true: in a README, a benchmark table, a report or printed output.",
    "quality": "Compare clips with a reference: PSNR, SSIM, MS-SSIM, FLIP, flicker, drift, jumps between frame blocks, and more.",
    "extract": "Take figures out of text logs and traces: rounds of a stage, attention timers, focal kernels.",
    "demo": "Make a clip with two prompt switches, compare four presets on it, write the report: minutes on two idle cores.",
    "generate": "Make a clip from a prompt, steered by prompt switches.",
    "presets": "Show the settings of the presets side by side, and what is off on this machine.",
    "serve": "Show streams in a browser, and steer them there: prompts, presets, branches, recordings.",
    "doctor": "Show what this machine has, which attention implementation would run, and why the others would not.",
    "accept": "Check a model with its weights against facts that need no official code.",
    "bench": "Measure what the package ships.",
}
"""The verbs and their first sentences, which `strobe --help` lists without importing a verb; a test compares them."""
GROUPS: Final = {
    "Explain": ("speedup", "trace", "compare", "report", "profile", "lint", "quality", "extract"),
    "Make": ("demo", "generate", "presets"),
    "Serve": ("serve",),
    "Maintain": ("doctor", "accept", "bench"),
}
"""The boxes of `strobe --help`, in order, and the verbs in each."""
NEXT: Final = {
    "speedup": "-o page writes the page; strobe trace looks into one side.",
    "trace": "strobe speedup compares two traces.",
    "compare": "strobe report RUN_DIR makes the page again, and --require makes it a gate.",
    "report": "Open report.html; --require makes it a gate.",
    "lint": "docs/lint.md says what each rule looks for.",
    "quality": "strobe compare measures speed and quality together.",
    "demo": "Open runs/*/report.html, then steer the model yourself: strobe serve.",
    "generate": "strobe compare baseline turbo shows what a preset gains, strobe serve steers a stream while it plays.",
    "presets": "strobe compare PRESET PRESET measures two of them.",
    "serve": "strobe bench serve loads the server with viewers.",
    "doctor": "strobe doctor --gate records on a GPU which implementations are right there.",
    "accept": "strobe compare quality PRESET measures what a preset of the model gains.",
}
"""What a user does after a verb: the last line of its page. A verb that has verbs says it itself."""


def _words(hint: Any, value: str, *, delimiter: str | None = None) -> list[str]:
    """Split a variable of the environment as a shell splits words, where its flag takes a list."""
    return shlex.split(value) if _is_list(hint) else [value]


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is tuple or any(map(_is_list, get_args(hint)))


def command_line(*, lists: bool = False) -> App:
    """The command line, whose verbs are imported when they are run or described.

    Args:
        lists: the one that only lists the verbs.
    """
    app = App(
        name="strobe",
        help="Makes video diffusion fast and proves it: prompts in, frames out, and a report that says where every millisecond "
        "went.",
        help_epilogue=(
            "Start with 'strobe demo'. Exit codes: 0 ok, 1 a gate or check failed, 2 usage, 3 something missing on this machine, "
            "70 a bug (--debug shows the traceback), 130 interrupted, 143 terminated."
        ),
        help_format="plaintext",
        help_formatter=HelpPage(),
        version=lambda: f"strobe {strobe.__version__}",
        version_flags=["--version"],
        help_flags=HELP,
        group_commands=Group("Flags", sort_key=9) if lists else None,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(
            negative="", consume_multiple=True, env_var_split=_words, show_default=lambda value: value if value else None
        ),
    )
    for place, (title, verbs) in enumerate(GROUPS.items()):
        group = Group(title, sort_key=place)
        for at, verb in enumerate(verbs):
            options: dict[str, Any] = {"help_epilogue": f"Next: {NEXT[verb]}\n"} if verb in NEXT else {}
            if lists:
                options |= {"help": VERBS[verb], "group": group, "sort_key": at}
            app.command(f"strobe.cli.{verb}:{verb}", name=verb, **options)
    app.register_install_completion_command(help="Let the shell complete words.")
    return app


app = command_line()
