"""What each rule finds, on pages built from true values: clean as built; one change, one finding. Every rule is in the manual."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from strobe.core.costs import WAN_1_3B, device_peaks
from strobe.core.errors import ConfigError
from strobe.lint.document import Claim, LintOptions, options_of, read_markdown
from strobe.lint.rules import RULES, WARNINGS, chosen_rules, findings


@dataclass
class Page:
    """A Markdown document under construction. What it holds is drawn from `rng`; `form` turns between ways to write the same."""

    seed: int
    lines: list[str] = field(default_factory=list)
    truth: dict[str, float] = field(default_factory=dict)
    options: LintOptions = field(default_factory=LintOptions)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    @property
    def form(self) -> int:
        """0, 1 or 2."""
        return self.seed % 3

    def say(self, *lines: str) -> Page:
        """Paragraphs or list items, then an empty line."""
        self.lines += [*lines, ""]
        return self

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Page:
        """A table; with a caption it is bold above it."""
        if caption:
            self.lines += [f"**{caption}**", ""]
        ruler = [("---", "---:", ":---:")[self.form] for _ in header]
        self.lines += ["| " + " | ".join(cells) + " |" for cells in (header, ruler, *rows)]
        self.lines.append("")
        return self

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def line_of(self, snippet: str, on: str = "") -> int:
        """The one line that holds a text (and `on`), counted from 1."""
        found = [number for number, line in enumerate(self.lines, 1) if snippet in line and on in line]
        assert len(found) == 1, (snippet, on, found, self.text)
        return found[0]

    def replace(self, old: str, new: str, *, on: str = "") -> int:
        """Change a text in the one line that holds it (and `on`); return the line."""
        line = self.line_of(old, on)
        self.lines[line - 1] = self.lines[line - 1].replace(old, new, 1)
        return line

    def put(self, row: str, column: str, new: str, *, table: int = 0) -> int:
        """Change a cell of the table-th table by row label and column head; return the line."""
        rulers = [at for at, line in enumerate(self.lines) if line.startswith("|") and set(line) <= set("| :-")]
        columns = [part.strip() for part in self.lines[rulers[table] - 1].strip("|").split("|")]
        for number in range(rulers[table] + 1, len(self.lines)):
            cells = [part.strip() for part in self.lines[number].strip("|").split("|")]
            if cells[0] == row:
                cells[columns.index(column)] = new
                self.lines[number] = "| " + " | ".join(cells) + " |"
                return number + 1
        raise AssertionError((row, column, self.text))

    def lint(self) -> tuple[Claim, ...]:
        """What the linter says of it."""
        return findings(read_markdown(self.text), self.options)

    def only(self, rule: str, line: int = 0, *, row: str = "", column: str = "", near: object = None, why: str = "") -> Claim:
        """The one finding: of this rule, at this place as far as it is given, corrected to this number, for this reason."""
        found = self.lint()
        assert len(found) == 1, "\n".join(map(str, found)) + "\n" + self.text
        (claim,), place = found, found[0].place
        assert (claim.rule, place.line, place.row, place.column) == (
            rule, line or place.line, row or place.row, column or place.column,
        )  # fmt: skip
        assert near is None or float(re.match(r"[-+]?[\d.]+", claim.corrected)[0]) == near, claim
        assert why in claim.why, claim
        return claim

    def clean(self) -> None:
        """It has no finding."""
        found = self.lint()
        assert not found, "\n".join(map(str, found)) + "\n" + self.text


@pytest.fixture(params=range(6))
def seed(request: pytest.FixtureRequest) -> int:
    """Six draws, two of each form."""
    return request.param


def page(seed: int, *builds: Callable[[Page], None]) -> Page:
    """A new page, with what some functions put on it."""
    made = Page(seed=seed)
    for build in builds:
        build(made)
    return made


NAMES = ("Baseline", "Fast", "Faster", "Fastest", "Frugal")


def presets(page: Page) -> None:
    """Means, maxima, FPS from the mean, memory, and a change that says of which statistic it is."""
    frames = page.truth["frames"] = page.rng.choice([1, 3, 4, 12])
    batch_unit = ("ms", "s", "ms")[page.form]
    scale, digits = (1000, 1) if batch_unit == "ms" else (1, 4)
    rows = []
    for number, name in enumerate(NAMES):
        mean = round(page.rng.uniform(0.3, 0.9) / (1 + number / 2), 4)
        slow = round(mean * page.rng.uniform(1.06, 1.2), 4)
        page.truth[f"mean {name}"], page.truth[f"max {name}"] = mean, slow
        first = page.truth["max Baseline"]
        change = "-" if name == "Baseline" else f"{100 * (slow / first - 1):+.1f}%"
        shown = [f"{value * scale:.{digits}f} {batch_unit}" for value in (mean, slow)]
        memory = page.rng.uniform(30, 45)
        page.truth[f"memory {name}"] = memory
        label = f"**{name}**" if page.form == 1 and number == 2 else name
        rows.append([label, *shown, f"{frames / mean:.2f}", f"{memory:.2f} GB", change])
    page.say("# Presets", "One NVIDIA H100 80GB HBM3.").say("## Results")
    page.table(("Preset", "Mean", "Max", "FPS", "Peak memory", "Max vs Baseline"), rows)


def experiments(page: Page) -> None:
    """A table for each candidate with metrics as rows, and a summary of all."""
    page.say("# Experiments", "## Each against the baseline")
    mean, slow = 500.0 + 30 * page.rng.random(), 560.0 + 30 * page.rng.random()
    base = {"Step mean": mean, "Step max": slow, "FPS": 3000 / mean, "Memory": 33.0 + page.rng.random()}
    units = {"Step mean": " ms", "Step max": " ms", "FPS": "", "Memory": " GB"}
    summary = [["Baseline", *(f"{value:.2f}{units[name]}" for name, value in base.items())]]
    for candidate in NAMES[1:4]:
        own = {name: value * page.rng.uniform(0.5, 0.95) for name, value in base.items()}
        own["Step max"] = own["Step mean"] * page.rng.uniform(1.08, 1.3)
        own["FPS"] = 3000 / own["Step mean"]
        page.say(f"### {candidate} preset")
        sides = {name: [f"{side[name]:.2f}{units[name]}" for side in (base, own)] for name in base}
        rows = [[name, *sides[name], f"{100 * (own[name] / base[name] - 1):+.1f}%"] for name in base]
        page.table(("Metric", "Baseline", candidate, "Change"), rows)
        summary.append([candidate, *(f"{value:.2f}{units[name]}" for name, value in own.items())])
        page.truth |= {f"{candidate} {name}": value for name, value in own.items()}
    page.truth |= {f"Baseline {name}": value for name, value in base.items()}
    page.say("## Summary").table(("Preset", *base), summary)


def serving(page: Page) -> None:
    """Batch, latency and throughput: images per second are batch / latency."""
    latencies = {batch: 20.0 * batch**0.8 * page.rng.uniform(0.95, 1.05) for batch in (1, 2, 4, 8, 16)}
    rows = [[f"{batch}", f"{latency:.2f}", f"{1000 * batch / latency:.2f}"] for batch, latency in latencies.items()]
    page.say("# Serving").table(("Batch", "Latency (ms)", "Throughput (images/s)"), rows)


def quality(page: Page) -> None:
    """Quality against a named reference, and differences in sentences."""
    page.say("# Quality", "PSNR and SSIM against the frames of the `reference` preset in float32, same seed.")
    rows = []
    for number, name in enumerate(("Baseline", *NAMES[1:4])):
        psnr, ssim = 34.0 - 1.3 * number + 0.3 * page.rng.random(), 0.95 - 0.02 * number + 0.003 * page.rng.random()
        page.truth |= {f"psnr {name}": round(psnr, 1), f"ssim {name}": round(ssim, 3)}
        rows.append([name, f"{psnr:.1f}", f"{ssim:.3f}"])
    page.table(("Preset", "PSNR (dB)", "SSIM"), rows)
    for name in NAMES[1:4]:
        delta = page.truth[f"psnr {name}"] - page.truth["psnr Baseline"]
        structure = page.truth[f"ssim {name}"] - page.truth["ssim Baseline"]
        page.say(f"{name} loses a little. PSNR: {delta:+.1f} dB, SSIM: {structure:+.3f}")


@pytest.mark.parametrize(("of", "factor"), [("max", 1.0), ("mean", 1.3)])
def test_fps_from_another_statistic_or_from_nothing(seed: int, of: str, factor: float) -> None:
    made = page(seed, presets)
    frames = made.truth["frames"]
    line = made.put("Fastest", "FPS", f"{factor * frames / made.truth[f'{of} Fastest']:.2f}")
    right = pytest.approx(frames / made.truth["mean Fastest"], rel=1e-3)
    found = made.only("fps-latency", line, row="Fastest", column="FPS", near=right)
    assert ("that of Max: the column changes its statistic" in found.why) == (of == "max")


@pytest.mark.parametrize(("seed", "stated"), [(0, "Mean vs Baseline"), (1, "vs Baseline"), (2, "Change")])
def test_a_change_column_names_its_statistic(seed: int, stated: str) -> None:
    made = page(seed, presets)
    line = made.replace("Max vs Baseline", stated)
    assert made.only("statistic-unnamed", line, column=stated).corrected == "name the statistic: Max"


@pytest.mark.parametrize(
    ("build", "sides", "row", "column", "table"),
    [
        (presets, ("max Frugal", "max Baseline", "mean Frugal", "mean Baseline"), "Frugal", "Max vs Baseline", 0),
        (experiments, ("Faster Memory", "Baseline Memory") * 2, "Memory", "Change", 1),
    ],
    ids=["of another statistic", "of one metric"],
)
def test_a_wrong_change(
    seed: int, build: Callable[[Page], None], sides: tuple[str, ...], row: str, column: str, table: int
) -> None:
    made = page(seed, build)
    own, base, *others = (made.truth[side] for side in sides)
    right, wrong = (100 * (one / other - 1) for one, other in ((own, base), others))
    line = made.put(row, column, f"{wrong if abs(right - wrong) > 0.6 else right - 7:+.1f}%", table=table)
    made.only("change-column", line, row=row, column=column, near=pytest.approx(right, abs=0.06))


@pytest.mark.parametrize(("metric", "digits", "off"), [("psnr", 1, -0.9), ("ssim", 3, 0.011)])
def test_a_difference_contradicts_the_table(seed: int, metric: str, digits: int, off: float) -> None:
    made = page(seed, quality)
    delta = made.truth[f"{metric} Faster"] - made.truth[f"{metric} Baseline"]
    line = made.replace(
        f"{metric.upper()}: {delta:+.{digits}f}", f"{metric.upper()}: {delta + off:+.{digits}f}", on="Faster loses"
    )
    made.only("delta-disagrees", line, near=pytest.approx(delta, abs=1e-6))


@pytest.mark.parametrize(("value", "wrong"), [("33.1", True), ("inf", False), ("∞", False)])
def test_a_reference_against_itself(value: str, wrong: bool) -> None:
    made = page(0).say("# Quality", "PSNR against the reference row.")
    made.table(("Preset", "PSNR (dB)", "Notes"), [["Full", value, "Reference"], ["Half", "30.2", "good"], ["Third", "29.0", ""]])
    if not wrong:
        return made.clean()
    assert made.only("quality-reference", row="Full").corrected.endswith("infinite")


def test_a_quality_without_a_reference() -> None:
    made = page(0, quality)
    made.clean()
    line = made.replace("against the frames of the `reference` preset in float32, same seed", "of all presets")
    assert made.only("quality-reference", row="Baseline").place.line > line


@pytest.mark.parametrize(
    "wording",
    ["Use Frugal on GPUs with < {0} GB.", "Frugal: for cards with less than {0} GB of VRAM.", "Frugal fits on a {0} GB GPU."],
)
def test_what_does_not_fit(seed: int, wording: str) -> None:
    made = page(seed, presets)
    peak = made.truth["memory Frugal"]
    made.say("## Advice", wording.format(int(peak) + 2))
    made.clean()
    line = made.replace(f"{int(peak) + 2} GB", f"{int(peak) - 6} GB")
    assert made.only("memory-fit", line).corrected == f"needs {peak:.2f} GB"


PARTS = ("Attention", "Feed-forward", "Norms", "Cache", "Decoder", "Scheduling")


def budget(page: Page) -> None:
    """Parts with shares and a total; units in the head, in the cells, or in seconds."""
    times = [round(page.rng.uniform(5, 60), 1) for _ in PARTS]
    total = round(sum(times), 1)
    page.truth |= {"total": total} | dict(zip(PARTS, times, strict=True))
    head = ("Time (ms)", "Time", "Time (ms)")[page.form]
    unit = " ms" if page.form == 1 else ""
    rows = [
        [f"**{part}**" if page.form == 2 else part, f"{time:.1f}{unit}", f"{100 * time / total:.1f}%"]
        for part, time in zip(PARTS, times, strict=True)
    ]
    page.say("# Profile", "## Time budget of a step")
    page.table(("Component", head, "% of step"), [*rows, ["**Total**", f"{total:.1f}{unit}", "100%"]])


def tree(page: Page) -> None:
    """Rows that are made of the rows set in under them; the total counts the upper level."""
    leaves = {name: page.rng.uniform(1, 9) for name in ("qkv", "kernel", "output", "up", "down")}
    leaves = {name: round(value, 2) for name, value in leaves.items()}
    attention, feed = leaves["qkv"] + leaves["kernel"] + leaves["output"], leaves["up"] + leaves["down"]
    page.truth |= {"attention": attention, "total": attention + feed, "twice": attention + 2 * feed}
    mark = ("&nbsp;&nbsp;", "└ ", "&emsp;")[page.form]
    page.say("# Layer").table(
        ("Part", "Mean (ms)"),
        [
            ["attention", f"{attention:.2f}"],
            *([f"{mark}{name}", f"{leaves[name]:.2f}"] for name in ("qkv", "kernel", "output")),
            ["feed-forward", f"{feed:.2f}"],
            *([f"{mark}{name}", f"{leaves[name]:.2f}"] for name in ("up", "down")),
            ["Total", f"{attention + feed:.2f}"],
        ],
    )


def kernels(page: Page) -> None:
    """Calls, mean and sum of kernels, with a row for the rest."""
    rows, total = [], 0.0
    for number_of, name in enumerate(("gemm", "flash_fwd", "norm", "rope", "silu")):
        calls, mean = 30 * (number_of + 1), page.rng.uniform(2, 90)
        total += calls * mean / 1000
        rows.append([f"`{name}`", str(calls), f"{mean:.3f}", f"{calls * mean / 1000:.4f}"])
    page.truth |= {"total": total}
    page.say("# Kernels").table(("Kernel", "Calls", "Mean (µs)", "Sum (ms)"), [*rows, ["**Total**", "450", "", f"{total:.4f}"]])


def printed(page: Page) -> None:
    """Printed output of a profiler: groups of timers, each with mean, spread and total, and a summary."""
    rounds, groups = 5, {"COMPUTE": ("load", "matmul", "finish"), "TRANSFER": ("send", "receive")}
    lines, sums = ["[Rank 0] Timers (all times in ms):", "=" * 40], {}
    for group, names in groups.items():
        lines.append(f"{group}:")
        means = [round(page.rng.uniform(0.5, 9), 3) for _ in names]
        sums[group] = rounds * sum(means)
        lines += [
            f"  {name:<12}: {mean:8.3f} ± {mean / 9:6.3f} (total: {rounds * mean:8.3f})"
            for name, mean in zip(names, means, strict=True)
        ]
        lines.append("")
    whole = sum(sums.values())
    page.truth |= {"whole": whole} | sums
    lines += [
        "SUMMARY:",
        *(f"  Total {group.title()}: {value:8.3f} ms ({100 * value / whole:.1f}%)" for group, value in sums.items()),
    ]
    page.say("# Output", "```", *lines, f"  Total Time: {whole:8.3f} ms", "```")


@pytest.mark.parametrize("off", [-9.0, 12.5])
def test_a_total_that_is_no_sum(seed: int, off: float) -> None:
    made = page(seed, kernels)
    total = made.truth["total"]
    line = made.replace(f"{total:.4f}", f"{total + off:.4f}", on="Total")
    found = made.only("total-sum", line, row="Total", column="Sum (ms)", near=pytest.approx(total, rel=1e-3))
    assert ("unattributed" in found.why) == (off > 0)


@pytest.mark.parametrize(
    ("build", "whole", "form", "factor", "row"),
    [(tree, "total", "| {:.2f} |", 2, "Total"), (printed, "whole", "{:8.3f} ms", 0.9, "Total Time")],
    ids=["children counted with their parent", "a printed total of totals"],
)
def test_a_total_of_totals(seed: int, build: Callable[[Page], None], whole: str, form: str, factor: float, row: str) -> None:
    made = page(seed, build)
    total = made.truth[whole]
    line = made.replace(form.format(total), form.format(factor * total), on=row)
    made.only("total-sum", line, row=row, near=pytest.approx(total, abs=0.01))


def test_a_printed_total_of_a_group(seed: int) -> None:
    made = page(seed, printed)
    compute, transfer = made.truth["COMPUTE"], made.truth["TRANSFER"]
    line = made.replace(f"{compute:8.3f} ms", f"{2 * compute + transfer:8.3f} ms", on="Total Compute")
    made.replace(f"{made.truth['whole']:8.3f} ms", f"{2 * (compute + transfer):8.3f} ms", on="Total Time")
    why = "a parent was counted with its children"
    found = made.only("total-sum", line, row="Total Compute", near=pytest.approx(compute, abs=0.01), why=why)
    assert f"{100 * compute / (compute + transfer):.2f} %" in found.corrected


@pytest.mark.parametrize(
    "reason", ["The streams overlap.", "Rows are nested: attention contains its kernels.", "Only the top 5 kernels are shown."]
)
def test_a_reason_for_a_total_that_is_no_sum(reason: str) -> None:
    made = page(0, kernels)
    total = made.truth["total"]
    made.replace(f"{total:.4f}", f"{total + 5:.4f}", on="Total")
    made.say(reason)
    made.clean()


def test_columns_of_the_whole_without_a_part_do_not_add_up() -> None:
    made = page(0).say("# Steps of a kernel")
    rows = [
        ["load", "2.3540 $\\pm$ 0.0032"],
        ["compute", "1.6491 $\\pm$ 0.0118"],
        ["store", "2.5471 $\\pm$ 0.0035"],
        ["Total", "2.5566 $\\pm$ 0.0056"],
    ]
    made.table(("Step", "Excluding this step (ms)"), rows).clean()


def passes(page: Page) -> None:
    """A step budget, and block times made up of passes and a decode in one way only."""
    step, decode = page.rng.randint(100, 140) + 0.5, page.rng.randint(30, 50)
    page.truth |= {"step": step, "decode": decode, "block": 4 * step + decode}
    block = 4 * step + decode
    page.say("# Blocks").table(
        ("Preset", "Mean", "Max"),
        [["Plain", f"{block:.1f} ms", f"{block * 1.1:.1f} ms"], ["Quick", f"{block / 2:.1f} ms", f"{block / 1.8:.1f} ms"]],
    )
    times = ("×", "x", "*")[page.form]
    page.say(f"A block is 4 {times} {step:.1f} + {decode} = {block:.0f} ms ({block:.1f} ms measured).")


def chapters(page: Page) -> None:
    """Two tables of operations, and the largest of them named."""
    page.say("# Profile", "## Attention")
    page.table(("Operation", "Mean (ms)"), [["self_attention", "18.4"], ["projection", "12.1"]])
    page.say("## Feed-forward").table(("Operation", "Mean (ms)"), [["up", "14.2"], ["down", "15.9"]])
    page.say(
        "## Insight",
        (
            "Self-attention is the largest single operation.",
            "So self-attention is the slowest operation.",
            "Self-attention remains the most expensive operation.",
        )[page.form],
    )


def steps(page: Page) -> None:
    """Presets with their denoise steps, and what each step count measures."""
    page.say("# Presets", "## Swift (3 denoising steps)").table(
        ("Metric", "Value"), [["Block mean", "302 ms"], ["Block max", "330 ms"]]
    )
    page.say("## Rapid (2 steps)").table(("Metric", "Value"), [["Block mean", "215 ms"], ["Block max", "250 ms"]])
    page.say("## Steps", "- 3 steps: 302 ms measured", "- 2 steps: 215 ms measured")


def test_two_ways_to_make_up_one_value(seed: int) -> None:
    made = page(seed, passes)
    block, step = made.truth["block"], made.truth["block"] / 4
    made.say(
        f"Then again, 4 x {step:.1f} = {4 * step:.0f} ms matches the Plain mean.",
        f"And {4} x {step:.1f} + 45 = {4 * step + 45:.0f} ms.",
    )
    line = made.replace(f"+ 45 = {block + 45:.0f} ms.", f"+ 45 = {block + 45:.0f} ms in theory ({block:.0f} ms measured).")
    found = [each for each in made.lint() if each.rule == "two-decompositions" and each.place.line == line]
    assert found and all(each.rule == "two-decompositions" for each in made.lint())
    assert made.line_of("matches the Plain mean") in {place.line for each in found for place in each.also}
    assert "leaves no room" in found[0].corrected


def test_what_is_not_the_largest_and_other_superlatives_that_are_left_alone(seed: int) -> None:
    made = page(seed, chapters)
    made.put("down", "Mean (ms)", "22.6", table=1)
    found = made.only("superlative", made.line_of("elf-attention "))
    assert found.corrected == f"down 22.6 (line {made.line_of('| down |')})"
    made.lines[-2] = (
        "Self-attention is the second largest operation. It is one of the largest operations, not the largest of all."
    )
    made.clean()


def test_a_value_of_another_step_count(seed: int) -> None:
    made = page(seed, steps)
    line = made.replace("2 steps: 215 ms", "2 steps: 302 ms")
    assert made.only("value-of-another", line, why="3 denoising steps").corrected.startswith("215 ms")


def test_code_is_not_prose() -> None:
    page(0).say("```python", "x = 4 * 25 = 130  # ms", "```", "```markdown", "| Total | 5 |", "```").clean()


def test_a_comment_takes_a_block_out_of_a_rule() -> None:
    made = page(0).say("# Memory").table(("Preset", "Peak memory"), [["Frugal", "32.4 GB"], ["Plain", "35.6 GB"]])
    made.say("<!-- strobe lint: ignore memory-fit: with offloading -->", "Frugal fits on a 24 GB GPU.").say("Nothing here.")
    made.clean()
    made.say("And Frugal fits on a 16 GB GPU.")
    assert [each.place.line for each in made.lint()] == [made.line_of("And")]


def levels(page: Page) -> None:
    """Stage, attention and kernel of two variants, with the calls between them."""
    kernel, other = page.rng.uniform(9, 10), page.rng.uniform(2, 3)
    attention = (kernel + page.rng.uniform(2, 4), other + page.rng.uniform(5, 6))
    page.truth |= {"attention": attention[1], "kernel": other, "dense": kernel}
    page.say("# Example", "One stage makes 384 attention calls.")
    page.say(
        "- Denoising stage averages:",
        f"  - FA: `{384 * attention[0] + 900:.5f} ms`",
        f"  - VSA: `{384 * attention[1] + 900:.5f} ms`",
    )
    page.say("- Attention averages (steady-state):", f"  - FA: `{attention[0]:.6f} ms`", f"  - VSA: `{attention[1]:.6f} ms`")
    page.say(
        "- Trace kernel averages:", f"  - FA flash kernel: `{kernel:.6f} ms`", f"  - VSA `_attn_fwd_sparse`: `{other:.6f} ms`"
    )


def test_a_time_that_is_a_copy(seed: int) -> None:
    made = page(seed, levels)
    line = made.replace(f"{made.truth['attention']:.6f}", f"{made.truth['dense'] * 1.00002:.6f}")
    assert made.only("coincidence", made.line_of("flash kernel")).also[0].line == line


def test_a_label_that_the_text_calls_wrong(seed: int) -> None:
    made = page(seed, levels)
    line = len(made.lines) + 1
    made.say(
        (
            "Logs print `ms` but the values behave as seconds.",
            "Values labelled ms are really seconds.",
            "They were printed with an `ms` label while the values behaved like seconds.",
        )[made.form]
    )
    assert "1000" in made.only("label-admitted", line).corrected


def test_a_label_that_is_right() -> None:
    page(0, levels).say(
        "We print ms. The unit is ms, and the values are in ms. Logs print seconds; that is what they are."
    ).clean()


@pytest.mark.parametrize("head", ["P99 (ms)", "p99 (ms)", "99th percentile (ms)"])
@pytest.mark.parametrize(
    ("stated", "few"),
    [
        ("Measured over 100 iterations after 600 warm-ups.", True),
        ("Each row: n = 33, behind 1,000 iterations of warm-up.", True),
        ("Measured over 33 frame blocks.", True),
        ("| Setting | Value |\n|---|---|\n| mode | quick (100 frames) |", True),
        ("Over 33 runs; each row has 2,000 timed samples.", False),
        ("Measured over 459 runs.", False),
        ("Nothing is said.", False),
    ],
)
def test_a_percentile_of_stated_samples(stated: str, few: bool, head: str) -> None:
    made = page(0).say("# Latency", stated)
    made.table(("Preset", "Mean (ms)", head), [["a", "10.1", "12.3"], ["b", "11.1", "13.3"]])
    if not few:
        return made.clean()
    found = made.only("percentile-samples", row="a", column=head, why="needs 459 samples")
    assert [place.row for place in found.also] == ["b"]


def test_a_percentile_with_counts_of_its_own() -> None:
    """They count before what is stated elsewhere, and so does the most that is stated before others."""
    made = page(0).say("# Kernels", "Over 1,000 iterations, 33 frame blocks.")
    made.table(("Kernel", "Calls", "P99 (µs)"), [["a", "480", "9.9"], ["b", "300", "8.9"]])
    assert made.only("percentile-samples", row="b", why="n 300 (line 7); p99 needs 459 samples").corrected == "max of 300"


TOKENS = WAN_1_3B.tokens_per_frame(480, 832)
SHAPED = LintOptions(model=WAN_1_3B, tokens_per_frame=TOKENS, window=12, device=device_peaks("H100 80GB HBM3"))
DIM, FFN, LAYERS, TEXT = 1536, 8960, 30, 512


def self_attention(window: int) -> int:
    """FLOPs of one self-attention call, by hand: two products of S x K x dim."""
    return 4 * (3 * TOKENS) * (window * TOKENS) * DIM


def whole_pass(window: int) -> float:
    """FLOPs of one pass, by hand, without the small embedding and head."""
    rows = 3 * TOKENS
    linears = 8 * rows * DIM**2 + 4 * rows * DIM**2 + 4 * rows * DIM * FFN
    return LAYERS * (linears + self_attention(window) + 4 * rows * TEXT * DIM)


def windows(page: Page) -> None:
    """A window ablation whose times follow the FLOPs."""
    page.options = SHAPED
    per_flop = 575.0 / whole_pass(12)
    rows = [[f"{window} frames", f"{per_flop * whole_pass(window):.1f} ms"] for window in (6, 8, 10, 12)]
    page.say("# Ablation: window size").table(("Window size", "Mean"), rows)


def layers(page: Page) -> None:
    """Times of the parts of a layer, below the peak."""
    page.options = SHAPED
    page.say("# Latency", "A layer takes:")
    time = self_attention(12) / 600e12
    page.say(f"- Self attention: ~{time * 1e6:.0f} us", "- Cross attention: ~41 us", "- Self attention KV cache roll: ~30 us")


def two_windows(page: Page, small: int, large: int, share_saved: float) -> Page:
    """Two windows, of which the smaller one saves a share of the FLOPs that it removes."""
    removed = 1 - whole_pass(small) / whole_pass(large)
    page.options = SHAPED
    times = ((small, 100_000 * (1 - share_saved * removed)), (large, 100_000))
    page.say("# Ablation: window size")
    return page.table(("Window size", "Mean"), [[f"{window} frames", f"{time:.1f} ms"] for window, time in times])


@pytest.mark.parametrize(("share_saved", "free"), [(0.0, True), (0.24, True), (0.26, False), (1.0, False)])
def test_a_window_costs_nothing_if_it_saves_less_than_a_quarter_of_its_flops(share_saved: float, free: bool) -> None:
    found = two_windows(page(0), 6, 12, share_saved).lint()
    assert [(each.rule, each.place.row) for each in found] == [("window-free", "6 frames")] * free
    if found:
        removed = 1 - whole_pass(6) / whole_pass(12)
        assert float(found[0].corrected.split()[1]) == pytest.approx(100_000 * (1 - removed), rel=2e-3)
        assert f"{100 * removed:.0f} %" in found[0].why


def test_a_window_that_removes_less_than_a_tenth_of_the_flops_may_cost_nothing() -> None:
    removed = {small: 1 - whole_pass(small) / whole_pass(30) for small in range(20, 30)}
    below = max((share, small) for small, share in removed.items() if share < 0.1)
    above = min((share, small) for small, share in removed.items() if share >= 0.1)
    assert below[0] > 1 / 15 and above[0] < 1 / 7
    assert not two_windows(page(0), below[1], 30, 0.0).lint()
    assert [each.rule for each in two_windows(page(0), above[1], 30, 0.0).lint()] == ["window-free"]


@pytest.mark.parametrize("without", ["model", "tokens_per_frame"])
def test_without_a_model_a_window_may_cost_nothing(without: str) -> None:
    made = two_windows(page(0), 6, 12, 0.0)
    made.options = replace(SHAPED, **{without: None})
    made.clean()


def test_attention_faster_than_the_device(seed: int) -> None:
    made = page(seed, layers)
    time = self_attention(12) / 600e12
    line = made.replace(f"~{time * 1e6:.0f} us", "~800 us for the first layer and ~220 us for later layers")
    found = made.only("below-floor", line, why=f"{self_attention(12) / 1e9:.4g} GFLOP")
    assert found.said == "Self attention: ~220 us"
    assert found.corrected == f"at least {self_attention(12) / 989.4e12 * 1e6:.1f} µs"
    made.options = replace(SHAPED, device=None)
    made.clean()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("h100", "H100 SXM"), ("H100 PCIe", "H100 PCIe"), ("A100 80GB", "A100 80GB SXM"),
        ("a100", "A100 40GB"), ("RTX 4090", "RTX 4090"),
    ],
)  # fmt: skip
def test_the_device_of_a_text(text: str, name: str) -> None:
    found = options_of(model="wan-1.3b", size=(480, 832), window=12, device=text).device
    assert found is not None and found.name == name


FORMS = [
    presets, experiments, serving, quality, budget, tree, kernels, printed, passes, chapters, steps, levels, windows, layers,
]  # fmt: skip


@pytest.mark.parametrize("build", FORMS)
def test_what_is_consistent_is_clean(build: Callable[[Page], None], seed: int) -> None:
    page(seed, build).clean()


def test_every_rule_has_a_line_in_the_manual() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "lint.md").read_text(encoding="utf-8")
    for rule in RULES:
        (line,) = [line for line in manual.splitlines() if line.startswith(f"| `{rule}` |")]
        assert ("| warning |" in line) == (rule in WARNINGS) and ("--model" in line) == (rule in ("below-floor", "window-free"))


def test_rules_are_left_out_by_id() -> None:
    assert set(RULES) - set(chosen_rules(["total-sum", "memory-fit"])) == {"total-sum", "memory-fit"}
    with pytest.raises(ConfigError, match="unknown rule 'total-sun'"):
        chosen_rules(["total-sun"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "wan-1.3"}, "did you mean 'wan-1.3b'"),
        *(({"device": name}, f"unknown device '{name}'") for name in ("V100", "H100 and A100", "H10", "")),
        ({"size": (480, 832)}, "without --model"),
        ({"window": 12}, "without --model and --size and --device"),
        ({"model": "wan-1.3b", "size": (480, 832), "device": "h100"}, "without --window:"),
        ({"model": "wan-1.3b", "window": -1}, "positive"),
    ],
)
def test_what_was_measured_is_checked(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        options_of(**({"model": None, "size": None, "window": None, "device": None} | given))  # type: ignore[arg-type]


def test_a_size_is_tokens() -> None:
    assert options_of(model="wan-1.3b", size=(480, 832), window=12, device="h100") == SHAPED and TOKENS == 30 * 52
