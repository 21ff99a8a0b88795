"""What tests put in the place of strobe's classes and functions has their present signatures, and so has what GPU tests call."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from gpu_suite import gpu_files
from source import name_of, parse, python_files
from stand_ins import call_faults, class_faults, patch_faults, undeclared

NO_STAND_INS = {
    "tests/attention/sparse/test_launch.py": {"Variant": "a kernel that Triton compiled"},
    "tests/attention/test_gates.py": {"Wrong": "a module of kernels"},
    "tests/bench/own/test_calls.py": {"Clock": "a clock that work moves"},
    "tests/cache/test_tiled.py": {"Played": "plays a cache"},
    "tests/integrations/diffusers/test_calls.py": {"Own": "a pipeline of somebody else"},
    "tests/engine/test_pick.py": {"Clock": "a clock that progress moves"},
    "tests/engine/test_rolling.py": {"Reference": "the stream written out anew"},
    "tests/engine/test_snapshot_files.py": {"OnGpu": "a tensor"},
    "tests/perf/analysis/critical_path/test_path.py": {"Machine": "makes a trace"},
    "tests/support/frozen.py": {"Subject": "what the oracle freezes"},
    "tests/support/stages_on_cpu.py": {"Variant": "a kernel that Triton compiled"},
    "tests/support/terminal.py": {"Result": "of a command"},
    "tests/support/tiny_pipelines.py": {"Case": "a pipeline and its arguments"},
}
"""Classes of tests that share names of methods with one of strobe by accident, and what they are."""


@cache
def trees(word: str) -> dict[str, ast.Module]:
    """The files of tests that have a word."""
    return {name_of(path): parse(path) for path in python_files("tests") if word in path.read_text("utf-8")}


def test_a_class_that_looks_like_one_of_strobe_says_so() -> None:
    """It is a subclass, or declares `@stands_in_for(...)`."""
    found = {name: dict(alike) for name, tree in trees("class ").items() if (alike := list(undeclared(tree)))}
    assert {name: set(each) for name, each in found.items()} == {name: set(each) for name, each in NO_STAND_INS.items()}, found


@pytest.mark.parametrize(("faults", "word"), [(class_faults, "class "), (patch_faults, "setattr(")])
def test_a_stand_in_has_the_signature_of_what_it_stands_in_for(faults: Callable[[ast.Module], Iterator[str]], word: str) -> None:
    found = [f"{name} {fault}" for name, tree in trees(word).items() for fault in faults(tree)]
    assert not found, "\n".join(found)


def test_what_a_test_for_a_gpu_calls_takes_these_arguments() -> None:
    found = [f"{name_of(path)} {fault}" for path in gpu_files() for fault in call_faults(parse(path))]
    assert not found, "\n".join(found)


# ------------------------------------------------------------------------------------------------- what is found, and what is not

OLD = """
class NoDecoder{bases}:
    def start(self, latents: Tensor, state: {state}) -> {returns}:
        {body}

    def close(self) -> None: ...
"""
IMPORTS = "from strobe.engine.decode import Decoded, DecoderState, FrameDecoder\n"
TUPLE = "return iter([(torch.zeros(1), latents.shape[1], state)])"


def decoder(
    bases: str = "(FrameDecoder)", state: str = "DecoderState", returns: str = "Iterator[Decoded]", body: str = TUPLE
) -> ast.Module:
    return ast.parse(IMPORTS + OLD.format(bases=bases, state=state, returns=returns, body=body))


def test_a_decoder_as_decoders_once_were_is_found_however_it_is_written() -> None:
    """One whose pieces have three values: without a base, with one, with the right annotation, with too few arguments."""
    assert dict(undeclared(decoder(bases="", returns="Any")))["NoDecoder"] == "engine/decode.py:FrameDecoder"
    (said, _) = class_faults(decoder(returns="Any"))
    assert said == "line 4: NoDecoder.start: it returns Any, what it replaces Iterator[Decoded]"
    for body in (TUPLE, "yield torch.zeros(1), latents.shape[1], state"):
        (said,) = class_faults(decoder(body=body))
        assert said == "line 4: NoDecoder.start: it returns a tuple, what it replaces Decoded: make one by its name"
    made = decoder(body="yield Decoded(torch.zeros(1), latents.shape[1], state)")
    (said,) = call_faults(made)
    assert not list(class_faults(made)) and said.endswith("missing a required argument: 'ends'")
    right = decoder(body="yield Decoded(torch.zeros(1), latents.shape[1], state, None)")
    assert not [*class_faults(right), *call_faults(right), *undeclared(right)]
    declared = decoder(bases="", returns="Any").body[-1]
    assert isinstance(declared, ast.ClassDef)
    other = ast.parse(IMPORTS + f"@stands_in_for(FrameDecoder)\n{ast.unparse(declared)}")
    assert not list(undeclared(other)) and len(list(class_faults(other))) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("def adopt(self, state: DecoderState, more: int) -> DecoderState: ...", ""),
        ("def adopt(self) -> DecoderState: ...", "it takes ['self'], what it replaces ['self', 'state']"),
        ("def adopt(self, it: DecoderState) -> DecoderState: ...", "it takes ['self', 'it'], what it replaces ['self', 'state']"),
        ("def adopt(self, *them: object) -> DecoderState: ...", ""),
        ("def adopt(self, state: DecoderState): ...", "it returns None, what it replaces DecoderState"),
        ("def warmed(self) -> None: ...", ""),
    ],
)
def test_a_method_is_held_to_the_one_that_it_replaces(line: str, said: str) -> None:
    found = list(class_faults(ast.parse(f"{IMPORTS}class Mine(FrameDecoder):\n    {line}")))
    assert [each.partition(": ")[2].partition(": ")[2] for each in found] == ([said] if said else [])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("lambda made, beside=False: made", ""),
        ("lambda *_: None", ""),
        ("lambda made: made", ""),
        ("lambda: None", "it takes 0 arguments, what it replaces 1 at least"),
        ("lambda made, beside: made", "it needs 2 arguments, what it replaces takes 1"),
        ("lambda made, *, where: made", "it needs where, which what it replaces does not take"),
        ("mine", "it takes 0 arguments, what it replaces 1 at least"),
        ("Mine", ""),
    ],
)
def test_a_function_that_is_put_in_the_place_of_another_can_be_called_as_that(value: str, said: str) -> None:
    text = f"from strobe.engine import decode\ndef mine(): ...\nmonkeypatch.setattr(decode, 'to_host', {value})\n"
    text += f"monkeypatch.setattr('strobe.engine.decode.to_host', {value})\n"
    found = [each.rpartition(": ")[2] for each in patch_faults(ast.parse(text))]
    assert found == ([said] * 2 if said else [])


def test_a_function_that_returns_other_values_is_found() -> None:
    text = "patch.setattr('strobe.engine.decode.FrameDecoder.copied', lambda self, state: (1, 2, 3))"
    (said,) = patch_faults(ast.parse(text))
    assert said.endswith("it returns 3 values, what it replaces 2")
