"""Budgets, kernel tables and printed output: sums, shares, what is counted twice. Clean as built; one change, one finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SEEDS = range(6)
PARTS = ("Attention", "Feed-forward", "Norms", "Cache", "Decoder", "Scheduling")


def budget(page: Any) -> None:
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


def tree(page: Any) -> None:
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


def kernels(page: Any) -> None:
    """Calls, mean and sum of kernels, with a row for the rest."""
    rows, total = [], 0.0
    for number_of, name in enumerate(("gemm", "flash_fwd", "norm", "rope", "silu")):
        calls, mean = 30 * (number_of + 1), page.rng.uniform(2, 90)
        total += calls * mean / 1000
        rows.append([f"`{name}`", str(calls), f"{mean:.3f}", f"{calls * mean / 1000:.4f}"])
        page.truth |= {f"{name} sum": calls * mean / 1000}
    page.say("# Kernels").table(("Kernel", "Calls", "Mean (µs)", "Sum (ms)"), [*rows, ["**Total**", "450", "", f"{total:.4f}"]])


def printed(page: Any) -> None:
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


FORMS = [budget, tree, kernels, printed]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("build", FORMS)
def test_what_adds_up_is_clean(build: Callable[[Any], None], seed: int, page: Any, clean: Any) -> None:
    clean(page(seed, build))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("off", [-9.0, 12.5])
def test_a_total_that_is_no_sum(seed: int, off: float, page: Any, only: Any) -> None:
    made = page(seed, kernels)
    total = sum(value for name, value in made.truth.items() if name.endswith("sum"))
    line = made.replace(f"{total:.4f}", f"{total + off:.4f}", on="Total")
    found = only(made)
    assert (found.rule, found.place.line, found.place.row, found.place.column) == ("total-sum", line, "Total", "Sum (ms)")
    assert made.number(found.corrected) == pytest.approx(total, rel=1e-3)
    assert ("unattributed" in found.why) == (off > 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_children_counted_with_their_parent(seed: int, page: Any, only: Any) -> None:
    made = page(seed, tree)
    twice = made.truth["total"] * 2
    line = made.replace(f"| {made.truth['total']:.2f} |", f"| {twice:.2f} |", on="Total")
    found = only(made)
    assert (found.rule, found.place.line, found.place.row) == ("total-sum", line, "Total")
    assert made.number(found.corrected) == pytest.approx(made.truth["total"], abs=0.01)
    assert "is counted with the rows it is made of" in found.why


@pytest.mark.parametrize("seed", SEEDS)
def test_a_printed_total_of_a_group(seed: int, page: Any, only: Any) -> None:
    made = page(seed, printed)
    compute, transfer = made.truth["COMPUTE"], made.truth["TRANSFER"]
    made.replace(f"{compute:8.3f} ms", f"{2 * compute + transfer:8.3f} ms", on="Total Compute")
    line = made.line_of("Total Compute")
    made.replace(f"{made.truth['whole']:8.3f} ms", f"{2 * (compute + transfer):8.3f} ms", on="Total Time")
    found = only(made)
    assert (found.rule, found.place.line, found.place.row) == ("total-sum", line, "Total Compute")
    assert made.number(found.corrected) == pytest.approx(compute, abs=0.01)
    assert "a parent was counted with its children" in found.why
    assert f"{100 * compute / (compute + transfer):.2f} %" in found.corrected


@pytest.mark.parametrize("seed", SEEDS)
def test_a_printed_total_of_totals(seed: int, page: Any, only: Any) -> None:
    made = page(seed, printed)
    whole = made.truth["whole"]
    line = made.replace(f"{whole:8.3f} ms", f"{whole - 3:8.3f} ms", on="Total Time")
    found = only(made)
    assert (found.rule, found.place.line, found.place.row) == ("total-sum", line, "Total Time")
    assert made.number(found.corrected) == pytest.approx(whole, abs=0.01)


@pytest.mark.parametrize(
    "reason", ["The streams overlap.", "Rows are nested: attention contains its kernels.", "Only the top 5 kernels are shown."]
)
def test_a_reason_for_a_total_that_is_no_sum(reason: str, page: Any, clean: Any) -> None:
    made = page(0, kernels)
    total = sum(value for name, value in made.truth.items() if name.endswith("sum"))
    made.replace(f"{total:.4f}", f"{total + 5:.4f}", on="Total")
    made.say(reason)
    clean(made)


def test_columns_of_the_whole_without_a_part_do_not_add_up(page: Any, clean: Any) -> None:
    made = page(0).say("# Steps of a kernel")
    rows = [
        ["load", "2.3540 $\\pm$ 0.0032"],
        ["compute", "1.6491 $\\pm$ 0.0118"],
        ["store", "2.5471 $\\pm$ 0.0035"],
        ["Total", "2.5566 $\\pm$ 0.0056"],
    ]
    clean(made.table(("Step", "Excluding this step (ms)"), rows))
