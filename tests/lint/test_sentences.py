"""Claims in sentences: formulas, changes, superlatives, causes, step counts. Clean as built; one change, one finding."""

from __future__ import annotations

from typing import Any

import pytest

SEEDS = range(4)


def passes(page: Any) -> None:
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


def chapters(page: Any) -> None:
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


def steps(page: Any) -> None:
    """Presets with their denoise steps, and what each step count measures."""
    page.say("# Presets", "## Swift (3 denoising steps)").table(
        ("Metric", "Value"), [["Block mean", "302 ms"], ["Block max", "330 ms"]]
    )
    page.say("## Rapid", "```yaml", "denoising_steps: [1000, 250]", "```").table(
        ("Metric", "Value"), [["Block mean", "215 ms"], ["Block max", "250 ms"]]
    )
    page.say("## Steps", "- 3 steps: 302 ms measured", "- 2 steps: 215 ms measured")


FORMS = [passes, chapters, steps]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("build", FORMS)
def test_what_is_consistent_is_clean(build: Any, seed: int, page: Any, clean: Any) -> None:
    made = page(seed)
    build(made)
    clean(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_formula_that_gives_something_else(seed: int, page: Any, only: Any) -> None:
    made = page(seed)
    passes(made)
    block = made.truth["block"]
    line = made.replace(f"= {block:.0f} ms", f"= {block + 12:.0f} ms")
    found = only(made)
    assert (found.rule, found.place.line) == ("formula", line)
    assert float(found.corrected.split()[0]) == pytest.approx(block, abs=0.51)


@pytest.mark.parametrize(
    ("sentence", "right"),
    [
        ("The switch costs 881.24 - 519.30 = 361.94 ms.", None),
        ("The switch costs 881.24 - 519.30 = 371.94 ms.", "361.94 ms"),
        ("That is 7200.8 / 5754.6 = 1.2513x.", None),
        ("That is 7200.8 / 5754.6 = 1.3513x.", "1.2513x"),
        ("That is (100 + 20) / 60 = 2.0x.", None),
        ("That is (100 + 20) / 60 = 2.5x.", "2.0x"),
        ("In all 30 layers × 5 passes = 150 calls.", None),
        ("In all 30 layers × 5 passes = 120 calls.", "150 calls"),
        ("A block has 3 x 4 = 12 frames, from run_01 of 2026-01-02.", None),
        ("With window=12 and sink=3 it is 480x832 at 16 fps.", None),
        ("Scale d = 1/8 and n = 4 - that is all.", None),
        ("215 / 302 = 71 %", None),
        ("215 / 302 = 81 %", "71%"),
    ],
)
def test_formulas(sentence: str, right: str | None, page: Any, only: Any, clean: Any) -> None:
    made = page(0).say(sentence)
    if right is None:
        return clean(made)
    found = only(made)
    assert (found.rule, found.place.line, found.corrected) == ("formula", 1, right)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("21.9% (749 ms → 585 ms)", None),
        ("-21.9% (749 ms -> 585 ms)", None),
        ("31.9% (749 ms → 585 ms)", "21.9%"),
        ("31.9% (749 ms -> 585 ms)", "21.9%"),
        ("+26.8% (4.1 → 5.2 FPS)", None),
        ("+36.8% (4.1 → 5.2 FPS)", "+26.8%"),
        ("about 20 % (749 ms → 585 ms)", None),
    ],
)
@pytest.mark.parametrize("table", [True, False])
def test_a_change_beside_its_arrow(text: str, right: str | None, table: bool, page: Any, only: Any, clean: Any) -> None:
    made = page(0)
    made.table(("Factor", "Result"), [["Latency", text], ["Warm-up", "30 s"]]) if table else made.say(
        f"The latency fell: {text}."
    )
    if right is None:
        return clean(made)
    found = only(made)
    assert (found.rule, found.corrected, found.place.row) == ("arrow", right, "Latency" if table else "")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("It is 2.3x faster (410 ms -> 178 ms).", None),
        ("It is 3.3x faster (410 ms -> 178 ms).", "2.3x"),
        ("It is 3.3x faster, from 410 ms to 178 ms.", "2.3x"),
        ("It went from 410 ms down to 178 ms, a speedup of 3.3x.", "2.3x"),
        ("It went from 4.1 to 5.2 FPS (1.27x).", None),
        ("It went from 4.1 to 5.2 FPS (1.37x).", "1.27x"),
        ("The time fell to 0.43x (410 ms -> 178 ms).", None),
        ("On 2x A100 it fell (410 ms -> 178 ms).", None),
        ("It is 3.3x faster; the decode takes 4 ms to 5 ms.", None),
        ("It is about 2x faster (410 ms -> 178 ms).", None),
    ],
)
def test_a_ratio_beside_what_it_is_of(text: str, right: str | None, page: Any, only: Any, clean: Any) -> None:
    made = page(0).say(text)
    if right is None:
        return clean(made)
    found = only(made)
    assert (found.rule, found.corrected) == ("arrow", right)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_ways_to_make_up_one_value(seed: int, page: Any, only: Any) -> None:
    made = page(seed)
    passes(made)
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


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_the_largest(seed: int, page: Any, only: Any) -> None:
    made = page(seed)
    chapters(made)
    made.put("down", "Mean (ms)", "22.6", table=1)
    found = only(made)
    assert (found.rule, found.place.line) == ("superlative", made.line_of("elf-attention "))
    assert found.corrected == f"down 22.6 (line {made.line_of('| down |')})"


@pytest.mark.parametrize(
    "sentence",
    [
        "Self-attention is the second largest operation.",
        "Self-attention is one of the largest operations.",
        "It is the largest of all.",
    ],
)
def test_other_superlatives_are_left_alone(sentence: str, page: Any, clean: Any) -> None:
    made = page(0)
    chapters(made)
    made.put("down", "Mean (ms)", "22.6", table=1)
    made.lines[-2] = sentence
    clean(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_value_of_another_step_count(seed: int, page: Any, only: Any) -> None:
    made = page(seed)
    steps(made)
    line = made.replace("2 steps: 215 ms", "2 steps: 302 ms")
    found = only(made)
    assert (found.rule, found.place.line) == ("value-of-another", line)
    assert found.corrected.startswith("215 ms") and "3 steps" in found.why


@pytest.mark.parametrize(("part", "wrong"), [("58.0", False), ("285.4", True)])
def test_a_cause_larger_than_its_effect(part: str, wrong: bool, page: Any, only: Any, clean: Any) -> None:
    made = page(0).say("# Switches").table(("Operation", "Mean (ms)"), [["recache_full", part], ["prompt_encode", "4.1"]])
    made.say("Recache explains the switch: PS (645 ms) against SS (585 ms), the whole delta.")
    if not wrong:
        return clean(made)
    found = only(made)
    assert (found.rule, found.corrected) == ("explains-more", "the difference is 60 ms")


def test_a_comment_takes_a_block_out_of_a_rule(page: Any, clean: Any) -> None:
    made = (
        page(0).say("<!-- strobe lint: ignore formula: rounded for the slide -->", "About 4 x 25 = 120 ms.").say("Nothing here.")
    )
    clean(made)
    made.say("But 4 x 25 = 130 ms.")
    assert [each.place.line for each in made.lint()] == [made.line_of("But")]


def test_code_is_not_prose(page: Any, clean: Any) -> None:
    clean(page(0).say("```python", "x = 4 * 25 = 130  # ms", "```", "```markdown", "| Total | 5 |", "```"))
