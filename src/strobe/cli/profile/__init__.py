"""`strobe profile`: one run or one operator, measured and traced."""

from typing import Final

from cyclopts import App

VERBS: Final = ("stream", "attention", "kernels", "dit")

profile = App(
    name="profile",
    help="Measure and trace one run or one operator: times, trace, roofline, what calls what.",
    help_epilogue="Next: strobe report writes the page of what was measured, strobe trace that of a trace.\n",
)
for verb in VERBS:
    profile.command(f"strobe.cli.profile.{verb}:{verb}", name=verb)  # imported when it is run or described

__all__ = ["profile"]
