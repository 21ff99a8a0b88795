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
    page.say("## Rapid (2 steps)").table(("Metric", "Value"), [["Block mean", "215 ms"], ["Block max", "250 ms"]])
    page.say("## Steps", "- 3 steps: 302 ms measured", "- 2 steps: 215 ms measured")


FORMS = [passes, chapters, steps]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("build", FORMS)
def test_what_is_consistent_is_clean(build: Any, seed: int, page: Any, clean: Any) -> None:
    clean(page(seed, build))


@pytest.mark.parametrize("seed", SEEDS)
def test_two_ways_to_make_up_one_value(seed: int, page: Any, only: Any) -> None:
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


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_the_largest(seed: int, page: Any, only: Any) -> None:
    made = page(seed, chapters)
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
    made = page(0, chapters)
    made.put("down", "Mean (ms)", "22.6", table=1)
    made.lines[-2] = sentence
    clean(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_value_of_another_step_count(seed: int, page: Any, only: Any) -> None:
    made = page(seed, steps)
    line = made.replace("2 steps: 215 ms", "2 steps: 302 ms")
    found = only(made)
    assert (found.rule, found.place.line) == ("value-of-another", line)
    assert found.corrected.startswith("215 ms") and "3 denoising steps" in found.why


def test_code_is_not_prose(page: Any, clean: Any) -> None:
    clean(page(0).say("```python", "x = 4 * 25 = 130  # ms", "```", "```markdown", "| Total | 5 |", "```"))


def test_a_comment_takes_a_block_out_of_a_rule(page: Any, clean: Any) -> None:
    made = page(0).say("# Memory").table(("Preset", "Peak memory"), [["Frugal", "32.4 GB"], ["Plain", "35.6 GB"]])
    clean(
        made.say("<!-- strobe lint: ignore memory-fit: with offloading -->", "Frugal fits on a 24 GB GPU.").say("Nothing here.")
    )
    made.say("And Frugal fits on a 16 GB GPU.")
    assert [each.place.line for each in made.lint()] == [made.line_of("And")]
