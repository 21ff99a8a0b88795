"""Logs: every line has one fate, every value is found where it stands; its unit is labelled, proven or asked for."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import ConfigError, DataError
from strobe.perf.logs import load_patterns, read_log, resolve_units
from strobe.perf.logs.patterns import Kind, Unit, decides, parse_duration, parse_unit, read
from strobe.perf.logs.reader import LONGEST
from strobe.perf.logs.series import Constraint, Log, Series, short
from strobe.perf.records.record import SCHEMA_VERSION, Clip, Span

DATA = Path(__file__).parents[2] / "data" / "logs"

Found = dict[tuple[str, str], list[tuple[int, str, str]]]


def found(log: Log) -> Found:
    """Line, number and unit of every value, by kind and title."""
    return {(series.kind, series.title): [(each.line, each.text, each.label) for each in series] for series in log.series}


def written(folder: Path, data: bytes | str, name: str = "a.log") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_progress_bars_are_lines_of_their_own() -> None:
    log = read_log(DATA / "tqdm.log")
    assert found(log) == {
        ("step", "step of a bare progress bar"): [(2, "0.18018", "s")],
        ("step", "DenoisingStage"): [(3, "0.1804", "seconds")],
        ("stage", "DenoisingStage"): [(4, "9.0389", "seconds"), (5, "9.0125", "seconds")],
    }
    bars = (DATA / "tqdm.log").read_bytes().count(b"%|")
    assert bars == 22 and log.counts.progress == bars - 2  # one shares its line with a stage that has finished, one ends


def test_wrapped_lines_are_put_together_and_others_are_not() -> None:
    log = read_log(DATA / "wrapped.log")
    assert found(log) == {
        ("stage", "DenoisingStage"): [(1, "7200.80759", "ms"), (5, "7100.5", "ms")],
        ("attention", "VSA"): [(3, "0.0095", "s")],
        ("attention", "Vanilla"): [(7, "13.0", "ms")],
    }
    assert (log.counts.joined, log.counts.matched, log.counts.ignored) == (4, 8, 3)


@pytest.mark.parametrize("width", range(40, 88))
def test_a_terminal_may_break_the_lines_anywhere(tmp_path: Path, width: int) -> None:
    lines = [
        f"INFO 02-17 06:17:22 [denoising.py:131] [DenoisingStage] Execution completed in {ms} ms" for ms in (7200.81, 7100.52)
    ]
    filler = "x" * 2 * width
    text = "\n".join(line[at : at + width] for line in (filler, *lines) for at in range(0, len(line), width))
    log = read_log(written(tmp_path, text + "\n"))
    (series,) = log.series
    assert (series.title, [each.text for each in series]) == ("DenoisingStage", ["7200.81", "7100.52"])
    assert log.counts.joined == 2 and log.counts.matched + log.counts.ignored == log.counts.lines


@pytest.mark.parametrize(
    "text",
    [
        "[DenoisingStage] started...\n5 seconds\n",
        "[DenoisingStage] finished in 7.20\n5 seconds later it was over\n",
        "[DenoisingStage] finished in\n[DecodingStage] 5 seconds\n",
        "[DenoisingStage] finished in\r5 seconds\n",
    ],
)
def test_lines_that_do_not_belong_together_stay_apart(tmp_path: Path, text: str) -> None:
    assert read_log(written(tmp_path, text)).series == ()
    (series,) = read_log(written(tmp_path, f"{text.splitlines()[0]} [DecodingStage] finished in 3 s\n")).series
    assert series.name == "DecodingStage"  # of two stages in one line, the one that the time stands behind


def test_what_is_no_time_is_counted_and_shown() -> None:
    log = read_log(DATA / "no_times.log")
    vsa, vanilla = log.series
    assert vsa.rejected == {"infinite": 2, "nan": 2, "negative": 1, "unreadable": 1}
    assert [(each.line, each.text) for each in vsa.examples] == [
        (1, "nan ms"), (2, "NaN ms"), (3, "inf ms"), (4, "-Infinity ms"), (5, "-0.5 ms"), (6, "1.2.3 ms"),
    ]  # fmt: skip
    assert [each.text for each in vsa] == ["0.0", "9.5"]
    assert len(vanilla) == 0 and sum(vanilla.rejected.values()) == 1 and log.counts.matched == 9


def test_lines_that_look_like_a_timing_are_shown() -> None:
    log = read_log(DATA / "similar.log")
    similar = {pattern: [each.line for each in lines] for pattern, lines in log.similar.items()}
    assert similar == {"attention": [1, 2, 3], "stage": [4], "block": [8]}
    assert log.counts.similar == 5 and log.counts.ignored == 2
    (blocks,) = log.of("frame_block")
    assert [(each.block, each.text) for each in blocks] == [(53, "519.30"), (54, "881.24")]
    assert [series.name for series in log.of("stage")] == ["Diffusion generation", "VAE decoding"]


def test_bad_bytes_lose_nothing_else() -> None:
    log = read_log(DATA / "bad_bytes.log")
    assert found(log) == {("attention", "VSA"): [(1, "9.5", "ms"), (3, "9.6", "ms"), (4, "9.8", "ms")]}
    assert log.counts.mended == 2


def test_a_line_without_end_is_read_in_part(tmp_path: Path) -> None:
    data = b">>>> VSA time: 9.5 ms " + b"x" * 3 * LONGEST + b">>>> VSA time: 9.6 ms\n>>>> VSA time: 9.7 ms\n"
    log = read_log(written(tmp_path, data))
    assert found(log) == {("attention", "VSA"): [(1, "9.5", "ms"), (2, "9.7", "ms")]}
    assert log.counts.cut == 1 and log.counts.lines == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_byte_order_mark_says_the_encoding(tmp_path: Path, encoding: str) -> None:
    log = read_log(written(tmp_path, ">>>> VSA time: 9.5 µs\n".encode(encoding)))
    assert found(log) == {("attention", "VSA"): [(1, "9.5", "µs")]}


def test_gzip_whole_in_members_and_cut(tmp_path: Path) -> None:
    lines = [f">>>> VSA time: {hashlib.sha256(bytes([n % 256, n // 256])).hexdigest()} 9.{n} ms\n" for n in range(2000)]
    plain = "".join(f">>>> {line[20:84]}\n>>>> VSA time: 9.{n} ms\n" for n, line in enumerate(lines)).encode()
    whole = read_log(written(tmp_path, plain))
    members = gzip.compress(plain[:50_000]) + gzip.compress(plain[50_000:])
    packed = read_log(written(tmp_path, members, "a.log.gz"))
    assert packed.counts == whole.counts and packed.counts.matched == 2000
    assert packed.sha256 == hashlib.sha256(members).hexdigest() and packed.size_bytes == len(members)
    cut = read_log(written(tmp_path, members[: len(members) // 2], "b.log.gz"))
    assert cut.counts.truncated and "cut short" in cut.content and 500 < cut.counts.matched < 1500
    assert [each.text for each in cut.series[0]] == [each.text for each in whole.series[0]][: cut.counts.matched]
    assert read_log(written(tmp_path, members + b"garbage", "c.log.gz")).counts.matched == 2000


def test_our_own_records(tmp_path: Path) -> None:
    span = Span(variant="turbo", clip=2, order=5, palindrome=1, name="attention", index=7, start_ns=0, value_ns=9_534_198,
                clock="cuda_event", warmup=True)  # fmt: skip
    clip = Clip(variant="turbo", clip=2, order=5, palindrome=1, phase="timed", num_spans=1)
    newer = msgspec.json.encode(span).replace(b'"v":%d' % SCHEMA_VERSION, b'"v":999')
    data = b"\n".join(
        [msgspec.json.encode(span), msgspec.json.encode(clip), newer, msgspec.json.encode(span)[:40], b'{"a": 1}', b""]
    )
    log = read_log(written(tmp_path, data))
    (series,) = log.of("attention")
    assert (series.name, series.declared) == ("turbo/attention", "ns")
    assert list(resolve_units(series).values_ns) == [9_534_198]
    assert series.samples[0][4:] == (None, 7, 2, "warm-up")
    assert (log.counts.matched, log.counts.similar, log.counts.ignored) == (1, 2, 2)


def test_names_that_change_from_line_to_line_are_refused(tmp_path: Path) -> None:
    text = "".join(f"[Request{n}Stage] finished in 1 s\n" for n in range(5000))
    with pytest.raises(DataError, match="group `name`"):
        read_log(written(tmp_path, text))


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    path = written(tmp_path, "a line\n" * 70_000)
    read_log(path, progress=lambda *arguments: told.append(arguments))
    assert len(told) == 2 and told[1][0] > 0 and {(total, what) for _, total, what in told} == {(490_000, "a.log")}


PIECES = st.sampled_from(
    [
        "[DenoisingStage] finished in ", "7.2008", " seconds", ">>>> VSA time: ", "9,53", " ms", "nan", "[rank 1] ", "\x1b[1m",
        "\r", "\r\n", "\n", "\n\n", " 50%|#####| 25/50 [00:05<00:05, 5.55it/s]",
        "Block 53 generation time: ", "- VAE decoding time: ",
        '{"record":"span","v":1', "}", "Pixel data generated successfully in ", "per step", "x" * 50, "ÿ", "\x00",
    ]
)  # fmt: skip


@given(st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=60))
def test_no_line_is_lost(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    data = "".join(pieces).encode("utf-8", "surrogatepass")
    path = tmp_path_factory.getbasetemp() / "lost.log"
    path.write_bytes(data)
    counts = read_log(path).counts
    lines = re.split("\r\n|\n|\r", data.decode("utf-8", "replace").removeprefix("\ufeff"))
    assert counts.lines == len(lines) - (lines[-1] == "")
    assert counts.matched + counts.ignored + counts.similar == counts.lines
    assert counts.progress <= counts.ignored and 2 * counts.joined <= counts.matched


UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "seconds": 10**9, "msec": 10**6}
FORMS = st.sampled_from(
    [
        ("[rank {rank}] >>>> VSA time: {value} {unit}", "VSA"),
        ("\x1b[32mINFO\x1b[0m rank{rank}: [DenoisingStage] finished in \x1b[1m{value}\x1b[0m {unit}", "DenoisingStage"),
        ("[RANK{rank}] [DecodingStage] Execution completed in {value}{unit}", "DecodingStage"),
    ]
)
VALUES = st.tuples(FORMS, st.integers(0, 7), st.integers(0, 10**9), st.integers(0, 12), st.sampled_from(sorted(UNITS)))


@given(st.lists(VALUES, max_size=20), st.sampled_from(["\n", "\r\n", "\r"]))
def test_rendered_values_come_back_to_the_nanosecond(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[tuple[str, str], int, int, int, str]], end: str
) -> None:
    expected: dict[str, list[int]] = {}
    lines = []
    for (form, name), rank, digits, places, unit in values:
        whole, fraction = divmod(digits, 10**places)
        text = f"{whole}.{fraction:0{places}d}" if places else f"{whole}"
        lines.append(form.format(rank=rank, value=text, unit=unit))
        expected.setdefault(f"{name}, rank {rank}", []).append(round(Fraction(digits * UNITS[unit], 10**places)))
    path = tmp_path_factory.getbasetemp() / "values.log"
    path.write_bytes("".join(line + end for line in lines).encode())
    log = read_log(path)
    assert {series.title: list(resolve_units(series).values_ns) for series in log.series} == expected
    assert log.counts.matched == log.counts.lines == len(lines)


@pytest.mark.parametrize(
    "prefixes",
    [
        ("(Worker_TP0 pid=990) ", "(Worker_TP1 pid=991) "),
        ("(Worker_TP0_EP0 pid=990) ", "(Worker_TP1_EP1 pid=991) "),
        ("(Worker_PP0_TP3 pid=990) ", "(Worker_PP1_TP3 pid=991) "),
        ("(FVWorkerProc-0 pid=7) ", "(FVWorkerProc-1 pid=8) "),
        ("(RayWorkerWrapper pid=70) ", "(RayWorkerWrapper pid=71, ip=10.0.0.2) "),
        ("TP0] ", "TP1] "),
        ("[2026-01-02 10:11:12 TP0] ", "[2026-01-02 10:11:12 TP1] "),
        ("[2026-01-02 10:11:12 DP0 TP0 EP0] ", "[2026-01-02 10:11:12 DP1 TP0 EP1] "),
        ("[rank 0] ", "[rank 1] "),
        ("[rank0]: ", "[rank1]: "),
        ("[default0]:", "[default1]:"),
    ],
)
def test_prefixes_of_workers_are_ranks(prefixes: tuple[str, str], tmp_path: Path) -> None:
    times = ((10.0, 11.0), (9.5, 10.5), (9.0, 10.0), (8.5, 9.5))
    lines = [
        f"{prefix}[DenoisingStage] finished in {time} seconds"
        for both in times
        for prefix, time in zip(prefixes, both, strict=True)
    ]
    log = read_log(written(tmp_path, "\n".join(lines) + "\n"))
    assert {series.rank: [sample.text for sample in series] for series in log.series} == {
        rank: [str(both[rank]) for both in times] for rank in (0, 1)
    }


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("[generate] model denoise per step: 0.15s\n[generate] model denoise per step: 0.11s\n", "step", ["0.15", "0.11"]),
        ("[generate] decode video frames: 0.0657s\n", "stage", ["0.0657"]),
        (
            "  0%|  | 0/4 [00:00<?, ?it/s]\r100%|##| 4/4 [00:01<00:00,  4.1it/s]\r100%|##| 4/4 [00:01<00:00,  4.00it/s]\n",
            "step",
            ["0.25"],
        ),
        ("100%|##| 50/50 [00:55<00:00,  1.10s/it]\nLoading: 100%|##| 7/7 [00:01<00:00, 5.1it/s]\n", "step", ["1.10"]),
        ("Engine 000: Avg generation throughput: 250.0 tokens/s, Running: 2 reqs\n", "region", ["0.004"]),
        ("Engine 000: Avg generation throughput: 0.0 tokens/s, Running: 0 reqs\n", "region", []),
    ],
)
def test_lines_of_other_programs(text: str, kind: Kind, values: list[str], tmp_path: Path) -> None:
    log = read_log(written(tmp_path, text))
    assert [sample.text for series in log.of(kind) for sample in series] == values


@pytest.mark.parametrize("indent", [None, 2])
def test_the_dump_of_a_request_is_read_whole(indent: int | None, tmp_path: Path) -> None:
    dump = {
        "request_id": "x", "total_duration_ms": 1623.5,
        "steps": [{"name": "DenoisingStage", "duration_ms": 1530.15}, {"name": "DecodingStage", "duration_ms": 49}],
        "denoise_steps_ms": [{"step": step, "duration_ms": 87.5 + step} for step in range(800)],
    }  # fmt: skip
    log = read_log(written(tmp_path, json.dumps(dump, indent=indent), "dump.json"))
    found = {(series.kind, series.name): [(sample.text, sample.label) for sample in series] for series in log.series}
    assert found["stage", "DenoisingStage"] == [("1530.15", "ms")] and found["e2e", "total"] == [("1623.5", "ms")]
    assert len(found["step", "denoising step"]) == 800


@pytest.mark.parametrize(
    ("line", "regex"),
    [
        ("step 3: forward pass 17 took (12.5 ms) x", r"'step \d+: forward pass \d+ took \({value}\s*{unit}'"),
        ("rendered at 24.5 frames/s", r"'rendered at {rate}\s*frames/s'"),
        ('{"event": "render", "duration_ms": 7.25}', "{value}"),
    ],
)
def test_a_log_that_no_pattern_reads_gets_one_that_does(line: str, regex: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"hello\n{line}\n")
    said = read_log(path).content
    assert f"line 2 reads {line!r}" in said and regex in said
    (tmp_path / "own.toml").write_text(said.partition("with this takes: ")[2].removesuffix(" (--patterns FILE.toml)"))
    assert len(read_log(path, load_patterns(tmp_path / "own.toml")).series) == 1


KERNEL = Constraint(rule="at_least", bound_ns=2_762_085, what="the 2.76 ms kernel inside it")
STAGE = Constraint(rule="at_most", bound_ns=5_754_608_690, what="the 5.75 s stage around it")


def series(folder: Path, *values: str, unit: str = "") -> Series:
    """A series of values; with `unit`, declared by the patterns file."""
    declared = f"unit = '{unit}'\n" if unit else ""
    pattern = f"[t]\nkind = 'attention'\nregex = 'took {{value}}(?: ?{{unit}})?$'\n{declared}"
    log = written(folder, "".join(f"took {value}\n" for value in values))
    (found,) = read_log(log, load_patterns(written(folder, pattern, "patterns.toml"))).series
    return found


def test_a_label_that_the_kernel_refutes_gives_way_to_the_only_unit_left(tmp_path: Path) -> None:
    resolved = resolve_units(series(tmp_path, "0.009534198 ms", "0.0095 ms", "0.0096 ms"), [KERNEL, STAGE])
    (choice,) = resolved.choices
    assert (choice.unit, choice.source, choice.proven, choice.differs) == ("s", "inferred", True, True)
    assert choice.text == ("labelled ms, but only s fits (9.53 ms): 9.53 µs would be shorter than the 2.76 ms kernel inside it")
    assert list(resolved.values_ns) == [9_534_198, 9_500_000, 9_600_000]
    assert resolved.prominent and resolved.notes == (f"t: {choice.text}",)


TRACE = Constraint(rule="at_most", bound_ns=10**9, what="the trace", calls=16)


@pytest.mark.parametrize(
    ("values", "declared", "bounds", "found", "words"),
    [
        (["0.0095 ms"], "", [], ("ms", "label", False, False), ("unproven, nothing was given that bounds it",)),
        (["9.5 ms"], "", [KERNEL], ("ms", "label", False, False), ("s would fit",)),
        (["9.5 ms"], "", [KERNEL, STAGE], ("ms", "label", True, False), ("every other unit",)),
        (["9.5"], "", [KERNEL, STAGE], ("ms", "inferred", True, False),
         ("without a unit, but only ms fits (9.50 ms): ns: ", "9.50 s would be longer than the 5.75 s stage")),
        (["0.0095 ms"], "s", [KERNEL], ("s", "declared", True, False), ("declared s",)),
        (["1250 ms", *["9.5 ms"] * 8, "0.001 ms"], "", [KERNEL, TRACE], ("ms", "label", True, False), ()),
        (["9.5"], "", [], None, ("nothing bounds them; say --unit ns, us, ms or s",)),
        (["9.5"], "", [KERNEL], None, ("ms and s would all fit", "[ns: 9.50 ns would be shorter", "say --unit")),
        (["0.0095 s"], "ms", [KERNEL], None, ("declared ms",)),
        (["0.22 ms", "0.22 ms"], "", [KERNEL, TRACE], None,
         ("no unit fits; if the values are right, the timer did not wait", "[ns: 0.220 ns", "[µs: 220 ns",
          "[ms: 220 µs would be shorter than", "[s: 16 calls of 220 ms would be longer")),
    ],
)  # fmt: skip
def test_a_unit_stands_is_inferred_or_asked_for(
    tmp_path: Path,
    values: list[str],
    declared: str,
    bounds: list[Constraint],
    found: tuple[str, str, bool, bool] | None,
    words: tuple[str, ...],
) -> None:
    own = series(tmp_path, *values, unit=declared)
    if found is None:
        with pytest.raises(DataError) as caught:
            resolve_units(own, bounds)
        said = str(caught.value)
    else:
        (choice,) = (resolved := resolve_units(own, bounds)).choices
        assert (choice.unit, choice.source, choice.proven, choice.differs) == found and not resolved.prominent
        said = choice.text
    assert all(each in said for each in words) and "\n" not in said


def test_an_override_is_used_whatever_it_contradicts(tmp_path: Path) -> None:
    resolved = resolve_units(series(tmp_path, "0.22 ms"), [KERNEL], "ms")
    (choice,) = resolved.choices
    assert (choice.unit, choice.source, choice.proven, choice.differs) == ("ms", "override", False, False)
    assert resolved.prominent and "against what is known: 220 µs would be shorter" in choice.text
    (choice,) = resolve_units(series(tmp_path, "0.0095 ms"), (), "s").choices
    assert choice.differs and list(resolve_units(series(tmp_path, "0.0095 ms"), (), "s").values_ns) == [9_500_000]


def test_each_label_of_a_mixed_file_is_proven_for_itself() -> None:
    (vsa,) = read_log(DATA / "mixed_units.log").of("attention")
    resolved = resolve_units(vsa, [KERNEL])
    assert list(resolved.values_ns) == [9_500_000, 9_510_000, 9_500_000, 9_520_000, 9_530_000, 9_540_000, 9_560_000]
    assert [(choice.label, choice.unit) for choice in resolved.choices] == [
        ("ms", "ms"), ("us", "µs"), ("s", "s"), ("ns", "ns"), ("milliseconds", "ms"),
    ]  # fmt: skip


def test_calls_must_fit_into_the_stage(tmp_path: Path) -> None:
    def bound(ns: int, calls: int) -> Constraint:
        return Constraint(rule="at_most", bound_ns=ns, what="the stage", calls=calls)

    found = series(tmp_path, "10 ms")
    assert resolve_units(found, [bound(500_000_000, 100)]).choices[0].source == "label"  # the upper half may be all there is
    with pytest.raises(DataError, match="100 calls of 10.0 ms would be longer than the stage"):
        resolve_units(found, [bound(499_999_999, 100)])


def test_a_value_that_is_no_time_in_its_unit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no time"):
        resolve_units(series(tmp_path, "1 s", "1 s", "99999999999 s"))


@given(
    st.integers(1, 10**9),
    st.integers(0, 9),
    st.sampled_from(["ns", "µs", "ms", "s"]),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
)
def test_the_choice_follows_from_exact_comparison(
    tmp_path_factory: pytest.TempPathFactory, digits: int, places: int, label: Unit, least: int, most: int
) -> None:
    value = Fraction(digits, 10**places)
    found = series(tmp_path_factory.getbasetemp(), f"{Decimal(digits).scaleb(-places):f} {label}")
    bounds = [Constraint(rule="at_least", bound_ns=least, what="a"), Constraint(rule="at_most", bound_ns=most, what="b")]
    units = {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9}
    left = [unit for unit, ns in units.items() if least <= value * ns <= most]
    if label in left or len(left) == 1:
        (choice,) = resolve_units(found, bounds).choices
        assert choice.unit == (label if label in left else left[0])
        assert choice.proven == (len(left) == 1)
    else:
        with pytest.raises(DataError):
            resolve_units(found, bounds)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("5ms", 5_000_000), ("0.05 s", 50_000_000), ("250us", 250_000), ("1.5µs", 1500), ("7 nanoseconds", 7), ("1e-3s", 10**6)],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["5", "ms", "-5ms", "5 minutes", "0.5ns", "1e-12s", "5ms or so", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 5ms"):
        parse_duration(text)


def test_units_have_many_spellings() -> None:
    assert [parse_unit(text) for text in ("ns", "usec", "μs", "Milliseconds", "SEC")] == ["ns", "µs", "µs", "ms", "s"]
    with pytest.raises(DataError, match="did you mean 'msec'"):
        parse_unit("msek")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"), (999, "999 ns"), (9_534, "9.53 µs"), (12_000_000, "12.0 ms"), (123_456_789_000, "123 s"),
        (Fraction(1, 2), "0.500 ns"),
    ],
)  # fmt: skip
def test_short_durations(ns: int | Fraction, text: str) -> None:
    assert short(ns) == text


# Numbers as logs print them.


def exactly(text: str, mark: str | None = None) -> Fraction:
    number = read(text, mark)
    assert isinstance(number, Decimal), number
    return Fraction(number)


@pytest.mark.parametrize(
    ("text", "mark", "value"),
    [
        ("9,53", None, "9.53"), ("7,200.81", None, "7200.81"), ("7.200,81", None, "7200.81"), ("1.234.567,8", None, "1234567.8"),
        ("1'234.5", None, "1234.5"), ("7,200", ".", "7200"), ("7,200", ",", "7.2"), ("7.200", None, "7.2"),
        ("7.200", ",", "7200"), ("1e-03", None, "0.001"), ("9,5e-3", None, "0.0095"), ("+5", None, "5"), ("-0.0", None, "0"),
        ("12345678901234567890.5", None, "12345678901234567890.5"),
    ],
)  # fmt: skip
def test_a_number_is_read_exactly(text: str, mark: str | None, value: str) -> None:
    assert exactly(text, mark) == Fraction(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nan", "nan"), ("-NaN", "nan"), ("inf", "infinite"), ("-Infinity", "infinite"), ("-0.5", "negative"),
        ("-7,200.5", "negative"), ("7,200", "ambiguous"), ("1.2.3", "unreadable"), ("1,23.4", "unreadable"),
        ("1e999999999", "unreadable"), ("1e" + "9" * 30, "unreadable"), ("0." + "1" * 5000, "unreadable"),
    ],
)  # fmt: skip
def test_what_is_no_time_is_named(text: str, reason: str) -> None:
    assert read(text, None) == reason


@pytest.mark.parametrize(
    ("text", "mark"),
    [("7", None), ("7,200", None), ("7.200", None), ("9,53", ","), ("9.53", "."), ("1,234,567", "."), ("nan", None)],
)
def test_a_number_shows_its_mark_or_not(text: str, mark: str | None) -> None:
    assert decides(text) == mark


@given(st.integers(0, 10**16), st.integers(0, 12), st.sampled_from([(",", "."), (".", ","), ("_", "."), ("\u202f", ",")]))
def test_grouped_numbers_come_back(digits: int, places: int, marks: tuple[str, str]) -> None:
    group, mark = marks
    text = f"{Decimal(digits).scaleb(-places):,.{places}f}".translate({ord(","): group, ord("."): mark})
    assert exactly(text, mark) == Fraction(digits, 10**places)


@given(st.floats(0, 1e12, allow_subnormal=False).filter(lambda value: value == 0 or value > 1e-15))
def test_what_python_prints_comes_back(value: float) -> None:
    assert exactly(repr(value), ".") == Fraction(Decimal(repr(value)))


# Patterns files: what is allowed in them and what an error says.


GOOD = "[mine]\nkind = 'attention'\nregex = 'took {value} {unit}'\n"


def test_a_users_patterns_come_first_and_replace_those_of_the_same_name(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD + "[attention]\nkind = 'attention'\nregex = 'attn {value} {unit}'\n", "patterns.toml")
    shipped, loaded = load_patterns(), load_patterns(file)
    assert [pattern.name for pattern in loaded[:2]] == ["mine", "attention"]
    assert sorted(pattern.name for pattern in loaded) == sorted(["mine", *(pattern.name for pattern in shipped)])
    file.write_text("defaults = false\n" + GOOD)
    assert [pattern.name for pattern in load_patterns(file)] == ["mine"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mine]\nkind = 'attention'\nregexp = '{value}'\n", "did you mean 'regex'"),
        ("default = false\n" + GOOD, "did you mean 'defaults'"),
        ("[mine]\nkind = 'atention'\nregex = '{value}'\n", "did you mean 'attention'"),
        ("[mine]\nkind = 'attention'\nregex = '(?P<value>1)(?P<rnk>2)'\n", "did you mean 'rank'"),
        ("[mine]\nkind = 'attention'\nregex = 'took'\n", "no group value"),
        ("[mine]\nkind = 'attention'\nregex = '({value}'\n", "not a regular expression"),
        ("[mine]\nkind = 'attention'\nregex = '{value}'\nunit = 'msc'\n", "unknown unit 'msc'"),
        ("[mine]\nkind = 'attention'\nregex = '{value}'\nunit = 3\n", "is not text"),
        ("[mine]\nregex = '{value}'\n", "needs kind and regex"),
        ("[mine]\nformat = 'records'\n", "did you mean 'record'"),
        ("[mine]\nformat = 'record'\nregex = '{value}'\n", "unknown key 'regex'"),
        ("[mine]\nformat = 'record'\nkinds = { e2e = 'all' }\n", "unknown kind 'all'"),
        ("[mine]\nformat = 'record'\nkinds = 'e2e'\n", "write a table"),
        ("defaults = 1\n" + GOOD, "allowed: true, false"),
        ("", "has no pattern"),
        ("[mine\n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_error_that_says_what_is_allowed(tmp_path: Path, text: str, words: str) -> None:
    file = written(tmp_path, text, "patterns.toml")
    with pytest.raises(ConfigError, match=words) as caught:
        load_patterns(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read patterns file"):
        load_patterns(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("regex", "similar", "other"),
    [
        ("step {value} done", "a step that is done", "done with this step"),
        (r"\[foo\] (?:bar|baz) latency=(?P<value>\d+)", "Foo: LATENCY is high", "foo bar"),
        ("{value}", None, "anything 12"),
        ("one {value}|two {value2}".replace("{value2}", "x"), None, "one two"),
    ],
)
def test_lines_look_similar_by_the_words_of_the_regex(tmp_path: Path, regex: str, similar: str | None, other: str) -> None:
    (pattern,) = load_patterns(written(tmp_path, f"defaults = false\n[mine]\nkind = 'step'\nregex = '{regex}'\n"))
    assert similar is None or pattern.similar.search(similar)
    assert not pattern.similar.search(other)
