"""Tables of presets: FPS, changes, percentiles, quality, memory. Clean as built; one change, one finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SEEDS = range(6)


NAMES = ("Baseline", "Fast", "Faster", "Fastest", "Frugal")


def presets(page: Any) -> None:
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
        rows.append(
            [
                f"**{name}**" if page.form == 1 and number == 2 else name,
                *shown,
                f"{frames / mean:.2f}",
                f"{memory:.2f} GB",
                change,
            ]
        )
    page.say("# Presets", "One NVIDIA H100 80GB HBM3.").say("## Results")
    page.table(("Preset", "Mean", "Max", "FPS", "Peak memory", "Max vs Baseline"), rows)


def experiments(page: Any) -> None:
    """A table for each candidate with metrics as rows, and a summary of all."""
    page.say("# Experiments", "## Each against the baseline")
    base = {
        "Step mean": 500.0 + 30 * page.rng.random(),
        "Step max": 560.0 + 30 * page.rng.random(),
        "FPS": 0.0,
        "Memory": 33.0 + page.rng.random(),
    }
    base["FPS"] = 3000 / base["Step mean"]
    units = {"Step mean": " ms", "Step max": " ms", "FPS": "", "Memory": " GB"}
    summary = [["Baseline", *(f"{value:.2f}{units[name]}" for name, value in base.items())]]
    for candidate in NAMES[1:4]:
        own = {name: value * page.rng.uniform(0.5, 0.95) for name, value in base.items()}
        own["Step max"] = own["Step mean"] * page.rng.uniform(1.08, 1.3)
        own["FPS"] = 3000 / own["Step mean"]
        page.say(f"### {candidate} preset")
        rows = [
            [
                name,
                f"{base[name]:.2f}{units[name]}",
                f"{own[name]:.2f}{units[name]}",
                f"{100 * (own[name] / base[name] - 1):+.1f}%",
            ]
            for name in base
        ]
        page.table(("Metric", "Baseline", candidate, "Change"), rows)
        summary.append([candidate, *(f"{value:.2f}{units[name]}" for name, value in own.items())])
        page.truth |= {f"{candidate} {name}": value for name, value in own.items()}
    page.truth |= {f"Baseline {name}": value for name, value in base.items()}
    page.say("## Summary").table(("Preset", *base), summary)


def serving(page: Any) -> None:
    """Batch, latency and throughput: images per second are batch / latency."""
    rows = []
    for batch in (1, 2, 4, 8, 16):
        latency = 20.0 * batch**0.8 * page.rng.uniform(0.95, 1.05)
        page.truth[f"latency {batch}"] = latency
        rows.append([str(batch), f"{latency:.2f}", f"{1000 * batch / latency:.2f}"])
    page.say("# Serving").table(("Batch", "Latency (ms)", "Throughput (images/s)"), rows)


def quality(page: Any) -> None:
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


FORMS = [presets, experiments, serving, quality]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("build", FORMS)
def test_what_is_consistent_is_clean(build: Callable[[Any], None], seed: int, page: Any, clean: Any) -> None:
    clean(page(seed, build))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("of", "factor"), [("max", 1.0), ("mean", 1.3)])
def test_fps_from_another_statistic_or_from_nothing(seed: int, of: str, factor: float, page: Any, only: Any) -> None:
    made = page(seed, presets)
    frames = made.truth["frames"]
    line = made.put("Fastest", "FPS", f"{factor * frames / made.truth[f'{of} Fastest']:.2f}")
    found = only(made)
    assert (found.rule, found.place.line, found.place.row, found.place.column) == ("fps-latency", line, "Fastest", "FPS")
    assert made.number(found.corrected) == pytest.approx(frames / made.truth["mean Fastest"], rel=1e-3)
    assert ("that of Max: the column changes its statistic" in found.why) == (of == "max")


@pytest.mark.parametrize(
    ("seed", "stated"),
    list(enumerate(("Mean vs Baseline", "vs Baseline", "Change"))),
)
def test_a_change_column_names_its_statistic(seed: int, stated: str, page: Any, only: Any) -> None:
    made = page(seed, presets)
    line = made.replace("Max vs Baseline", stated)
    found = only(made)
    assert (found.rule, found.place.line, found.place.column) == ("statistic-unnamed", line, stated)
    assert found.corrected == "name the statistic: Max"


@pytest.mark.parametrize("seed", SEEDS)
def test_one_row_of_a_change_column_is_of_another_statistic(seed: int, page: Any, only: Any) -> None:
    made = page(seed, presets)
    truth = made.truth
    right, wrong = (100 * (truth[f"{kind} Frugal"] / truth[f"{kind} Baseline"] - 1) for kind in ("max", "mean"))
    if abs(right - wrong) < 0.6:
        wrong = right - 7
    line = made.put("Frugal", "Max vs Baseline", f"{wrong:+.1f}%")
    found = only(made)
    assert (found.rule, found.place.line, found.place.row) == ("change-column", line, "Frugal")
    assert made.number(found.corrected) == pytest.approx(right, abs=0.06)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_change_of_one_metric(seed: int, page: Any, only: Any) -> None:
    made = page(seed, experiments)
    truth = made.truth
    right = 100 * (truth["Faster Memory"] / truth["Baseline Memory"] - 1)
    line = made.put("Memory", "Change", f"{right + 3:+.1f}%", table=1)
    found = only(made)
    assert (found.rule, found.place.line, found.place.row, found.place.column) == ("change-column", line, "Memory", "Change")
    assert made.number(found.corrected) == pytest.approx(right, abs=0.06)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("metric", "digits", "off"), [("psnr", 1, -0.9), ("ssim", 3, 0.011)])
def test_a_difference_contradicts_the_table(seed: int, metric: str, digits: int, off: float, page: Any, only: Any) -> None:
    made = page(seed, quality)
    delta = made.truth[f"{metric} Faster"] - made.truth[f"{metric} Baseline"]
    line = made.replace(
        f"{metric.upper()}: {delta:+.{digits}f}", f"{metric.upper()}: {delta + off:+.{digits}f}", on="Faster loses"
    )
    found = only(made)
    assert (found.rule, found.place.line) == ("delta-disagrees", line)
    assert made.number(found.corrected) == pytest.approx(delta, abs=1e-6)


@pytest.mark.parametrize(("value", "wrong"), [("33.1", True), ("inf", False), ("∞", False)])
def test_a_reference_against_itself(value: str, wrong: bool, page: Any, only: Any, clean: Any) -> None:
    made = page(0).say("# Quality", "PSNR against the reference row.")
    made.table(("Preset", "PSNR (dB)", "Notes"), [["Full", value, "Reference"], ["Half", "30.2", "good"], ["Third", "29.0", ""]])
    if not wrong:
        return clean(made)
    found = only(made)
    assert (found.rule, found.place.row) == ("quality-reference", "Full")
    assert found.corrected.endswith("infinite")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "wording",
    ["Use Frugal on GPUs with < {0} GB.", "Frugal: for cards with less than {0} GB of VRAM.", "Frugal fits on a {0} GB GPU."],
)
def test_what_does_not_fit(seed: int, wording: str, page: Any, only: Any, clean: Any) -> None:
    made = page(seed, presets)
    peak = made.truth["memory Frugal"]
    made.say("## Advice", wording.format(int(peak) + 2))
    clean(made)
    line = made.replace(f"{int(peak) + 2} GB", f"{int(peak) - 6} GB")
    found = only(made)
    assert (found.rule, found.place.line) == ("memory-fit", line)
    assert found.corrected == f"needs {peak:.2f} GB"
