"""`strobe profile`: one run or one operator, measured and traced."""

from cyclopts import App

from strobe.cli.profile.attention import attention
from strobe.cli.profile.dit import dit
from strobe.cli.profile.kernels import kernels
from strobe.cli.profile.stream import stream

profile = App(name="profile", help="Measure and trace one run or one operator: times, trace, roofline, what calls what.")
profile.command(stream)
profile.command(attention)
profile.command(kernels)
profile.command(dit)

__all__ = ["profile"]
