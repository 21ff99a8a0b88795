"""Units, percentiles, levels of time and where figures come from. Clean as built; one change, one finding."""

from __future__ import annotations

from typing import Any

import pytest

SEEDS = range(3)


def levels(page: Any) -> None:
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


@pytest.mark.parametrize("seed", SEEDS)
def test_levels_are_clean(seed: int, page: Any, clean: Any) -> None:
    clean(page(seed, levels))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_label_that_the_text_calls_wrong(seed: int, page: Any, only: Any) -> None:
    made = page(seed, levels)
    line = len(made.lines) + 1
    made.say(
        (
            "Logs print `ms` but the values behave as seconds.",
            "Values labelled ms are really seconds.",
            "They were printed with an `ms` label while the values behaved like seconds.",
        )[made.form]
    )
    found = only(made)
    assert (found.rule, found.place.line) == ("label-admitted", line)
    assert "1000" in found.corrected


@pytest.mark.parametrize(
    "sentence", ["We print ms.", "The unit is ms, and the values are in ms.", "Logs print seconds; that is what they are."]
)
def test_a_label_that_is_right(sentence: str, page: Any, clean: Any) -> None:
    made = page(0, levels)
    made.say(sentence)
    clean(made)


# ------------------------------------------------------------------------------------------------------------------ units


@pytest.mark.parametrize(
    ("head", "cell", "caption", "missing"),
    [
        ("Latency", "12.5 ms", "", False),
        ("Latency (ms)", "12.5", "", False),
        ("latency_ms", "12.5", "", False),
        ("Latency [µs]", "12.5", "", False),
        ("Latency", "12.5", "Latencies of all presets in ms.", False),
        ("Latency", "12.5", "", True),
        ("Run time", "3", "", True),
        ("Peak memory", "35.6", "", True),
        ("Peak memory (GB)", "35.6", "", False),
        ("Time steps", "4", "", False),
        ("Accuracy", "0.93", "", False),
    ],
)
def test_a_figure_has_a_unit(head: str, cell: str, caption: str, missing: bool, page: Any, only: Any, clean: Any) -> None:
    made = (
        page(0)
        .say("# Runs")
        .table(("Preset", head, "Accuracy %"), [["a", cell, "93.1"], ["b", cell.replace("5", "7"), "92.2"]], caption)
    )
    if not missing:
        return clean(made)
    found = only(made)
    assert (found.rule, found.place.row, found.place.column) == ("no-unit", "a", head)
    assert found.corrected.startswith(f"{head} (")


@pytest.mark.parametrize(("line", "missing"), [("vsa time: 9.5", True), ("vsa time: 9.5 ms", False), ("time steps: 4", False)])
@pytest.mark.parametrize("printed", [True, False])
def test_a_printed_time_has_a_unit(line: str, missing: bool, printed: bool, page: Any, only: Any, clean: Any) -> None:
    made = page(0)
    made.say("```", line, "blocks: 3", "```") if printed else made.say(f"- {line}", "- blocks: 3")
    if not missing:
        return clean(made)
    found = only(made)
    assert (found.rule, found.place.line, found.place.row) == ("no-unit", made.line_of(line), line.partition(":")[0])


# ------------------------------------------------------------------------------------------------------------- percentiles


@pytest.mark.parametrize(
    ("stated", "n"),
    [
        ("Measured over 100 iterations after 600 warm-up iterations.", 100),
        ("Each row: n = 33.", 33),
        ("Each row has 2,000 timed samples.", None),
        ("Measured over 459 runs.", None),
        ("Nothing is said.", None),
    ],
)
@pytest.mark.parametrize("head", ["P99 (ms)", "p99 (ms)", "99th percentile (ms)"])
def test_a_percentile_of_stated_samples(stated: str, n: int | None, head: str, page: Any, only: Any, clean: Any) -> None:
    made = page(0).say("# Latency", stated)
    made.table(("Preset", "Mean (ms)", head), [["a", "10.1", "12.3"], ["b", "11.1", "13.3"]])
    if n is None:
        return clean(made)
    found = only(made)
    assert (found.rule, found.place.row, found.place.column, found.corrected) == ("percentile-samples", "a", head, f"max of {n}")
    assert [place.row for place in found.also] == ["b"]


def test_a_percentile_with_a_count_of_its_own(page: Any, only: Any) -> None:
    made = page(0).say("# Kernels", "Over 10 iterations.")
    made.table(
        ("Kernel", "Calls", "Mean (µs)", "P99 (µs)"),
        [["a", "480", "9.1", "9.9"], ["b", "300", "8.1", "8.9"], ["c", "100", "7.1", "-"]],
    )
    found = only(made)
    assert (found.rule, found.place.row, found.corrected) == ("percentile-samples", "b", "max of 300")


def test_a_flag_of_a_command_states_samples(page: Any, only: Any) -> None:
    made = page(0).say("# Log", "## Kernels", "```sh", "profile --iterations 100 -o out.md", "```")
    made.table(("Kernel", "P99 (ms)"), [["a", "9.9"], ["b", "8.9"]])
    assert only(made).corrected == "max of 100"


def test_frames_are_counted_in_blocks(page: Any, only: Any) -> None:
    made = (
        page(0)
        .say("# Log", "## Test environment")
        .table(("Setting", "Value"), [["Benchmark mode", "quick (100 frames)"], ["GPU", "one"]])
    )
    rows = [[name, f"{mean} ms", f"{3000 / mean:.2f}"] for name, mean in (("a", 735.6), ("b", 575.1), ("c", 431.2))]
    made.say("## Results").table(("Preset", "Mean", "FPS"), rows)
    made.say("## Tail").table(("Preset", "P99"), [["a", "747.6 ms"], ["b", "584.6 ms"]])
    found = only(made)
    assert (found.rule, found.corrected) == ("percentile-samples", "max of 33")
    assert "100 frames" in found.why
