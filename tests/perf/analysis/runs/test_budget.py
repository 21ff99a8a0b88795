from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.runs.breakdown import REGIONS, REST, KernelProfile, Operation, Whole


def operation(name: str, kind: str, inside: str, calls: int, *times_ns: int) -> Operation:
    return Operation(name=name, what="", kind=kind, inside=inside, calls=calls, times_ns=times_ns)


STEP = Whole(
    name="denoise_step",
    times_ns=(1000, 1001),
    operations=(
        operation("kernel", "attention kernels", "attention", 3, 100, 101),  # 301.5
        operation("qkv", "projections", "attention", 3, 10),  # 30
        operation("cross", "attention kernels", "cross_attention", 3, 20),  # 60
        operation("up", "feed-forward", "ffn", 3, 30, 31, 32),  # 93
        operation("head", "edges", REST, 1, 7),
        operation("never", "copies", "", 0, 99),
    ),
)
DECODE = Whole(name="vae_decode", times_ns=(50,), operations=(operation("vae_enter", "decoder", "", 3, 10),))
PROFILE = KernelProfile(
    step=STEP,
    fine_ns=(1100, 1101, 1104),
    regions_ns={"attention": (500, 501, 505), "cross_attention": (100, 100, 100), "ffn": (200, 201, 202)},
    decode=DECODE,
)


def test_the_budget_by_hand() -> None:
    assert STEP.by_kind() == (
        ("attention kernels", Fraction(723, 2)),
        ("projections", Fraction(30)),
        ("feed-forward", Fraction(93)),
        ("edges", Fraction(7)),
    )
    assert STEP.mean_ns == Fraction(2001, 2)
    assert STEP.isolated_ns == Fraction(983, 2)
    assert STEP.difference_ns == Fraction(1018, 2)
    assert DECODE.difference_ns == 20


def test_an_operation_neither_waits_nor_has_a_cost_unless_it_says_so() -> None:
    assert not any(each.waits or each.cost for each in STEP.operations)


def test_the_regions_by_hand() -> None:
    lines = {line.name: line for line in PROFILE.by_region()}
    assert lines["attention"].isolated_ns == Fraction(663, 2)
    assert lines["attention"].in_situ_ns == 502
    assert lines["attention"].difference_ns == 502 - Fraction(663, 2)
    assert lines[REST].in_situ_ns == Fraction(3305, 3) - 502 - 100 - 201
    assert lines[REST].isolated_ns == 7
    (timers,) = (line for line in PROFILE.by_region() if line.isolated_ns is None)
    assert timers.in_situ_ns == Fraction(2001, 2) - Fraction(3305, 3) and timers.difference_ns is None


TIMES = st.lists(st.integers(1, 10**9), min_size=1, max_size=7).map(tuple)


@given(TIMES, TIMES, st.lists(st.tuples(st.sampled_from([*REGIONS, REST]), st.integers(0, 40), TIMES), max_size=9))
def test_both_accounts_close(
    plain: tuple[int, ...], fine: tuple[int, ...], parts: list[tuple[str, int, tuple[int, ...]]]
) -> None:
    operations = tuple(
        operation(str(n), f"kind {n % 3}", inside, calls, *times) for n, (inside, calls, times) in enumerate(parts)
    )
    step = Whole(name="denoise_step", times_ns=plain, operations=operations)
    regions = {name: tuple(ns // 4 for ns in fine) for name in REGIONS}
    found = KernelProfile(step=step, fine_ns=fine, regions_ns=regions, decode=DECODE)
    mean = Fraction(sum(plain), len(plain))
    assert sum((ns for _, ns in step.by_kind()), Fraction(0)) + step.difference_ns == mean
    lines = found.by_region()
    assert sum((line.in_situ_ns or 0 for line in lines), Fraction(0)) == mean
    assert sum((line.isolated_ns or 0 for line in lines), Fraction(0)) == step.isolated_ns
