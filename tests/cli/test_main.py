"""Exit codes, one-line errors, the flags every verb has, what is said at a signal and by several processes; what is refused."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import strobe as package
from sandbox import hears_ctrl_c
from source import H200, ROOT
from strobe.attention.tree import CollectiveError
from strobe.cli import app as commands
from strobe.cli import main as module
from strobe.cli.console import Output
from strobe.cli.defaults import every_verb
from strobe.cli.main import MISSING, USAGE, main
from strobe.cli.ranks import said_by_rank_0, says
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError, StrobeError
from strobe.perf.records.store import read_run
from terminal import Strobe


def test_version(strobe: Strobe) -> None:
    assert strobe("--version").out.split() == ["strobe", package.__version__]


def test_the_list_of_verbs_says_what_each_does(strobe: Strobe) -> None:
    listed = strobe("--help")
    assert listed.out == strobe().out and listed.code == 0
    for verb, words in (("generate", "Make a clip from a prompt"), ("bench", "Measure what the package ships")):
        assert any(line.split()[1:2] == [verb] and words in line for line in listed.out.splitlines()), verb
    assert all(f" {verb} " in listed.out for verb in commands.VERBS)


@pytest.mark.parametrize("verb", commands.VERBS)
def test_a_verb_is_listed_with_its_first_sentence(verb: str) -> None:
    assert commands.VERBS[verb] == " ".join(commands.app[verb].help.split("\n\n")[0].split())


def test_the_list_of_verbs_imports_none_and_a_page_no_reader_of_markdown() -> None:
    code = (
        "import sys; from strobe.cli.main import main; main(['--help']); listed = set(sys.modules); main(['lint', '--help']);"
        "sys.stderr.write(' '.join({m for m in listed if m.startswith('strobe.cli.')}) + '\\n'"
        " + str('rich.markdown' in sys.modules or 'markdown_it' in sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.splitlines()
    assert not {f"strobe.cli.{verb.replace('-', '_')}" for verb in commands.VERBS} & set(said[0].split())
    assert said[1] == "False"


@pytest.mark.parametrize("verb", [" ".join(words) for words, _ in every_verb()])
def test_help_has_an_example_and_the_common_flags(strobe: Strobe, verb: str) -> None:
    result = strobe(*verb.split(), "--help")
    assert result.code == 0
    assert f"\n strobe {verb}" in result.out, "no example"
    for flag in ("--json", "--quiet", "--debug"):
        assert flag in result.out


TRACE = str(ROOT / "tests" / "data" / "shapes_cpu" / "baseline.json.gz")
NOWHERE = [
    ("demo", "--rounds", "1", "--device", "cpu", "--out"),
    ("generate", "a red circle moving left", "--blocks", "1", "--device", "cpu", "-o"),
    ("trace", TRACE, "-o"),
    ("report", str(ROOT / "benchmarks" / "presets-h200"), "--output"),
    ("bench", "tree", "--world-size", "1", "--seq-len", "64", "-o"),
    ("profile", "attention", "--seq-q", "64", "--heads", "1", "--head-dim", "32", "--impls", "sdpa", "--device", "cpu", "-o"),
]


@pytest.mark.parametrize("arguments", NOWHERE, ids=[" ".join(words[:2]) for words in NOWHERE])
def test_a_place_that_cannot_be_written_is_a_wrong_argument(strobe: Strobe, arguments: tuple[str, ...]) -> None:
    result = strobe(*arguments, "/proc/x.mp4" if arguments[0] == "generate" else "/proc/x")
    said = result.err.splitlines()[-1]
    assert result.code == 2 and "/proc/x" in said and said.endswith("name another place"), result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ShapeError("too odd"), 2),
        (ImplUnavailableError("fa4", "no such GPU"), 3),
        (StrobeError("no space"), 3),
        (OSError(28, "No space left on device", "clip.mp4"), 3),
        (FileExistsError(17, "File exists", "report"), 2),
        (IsADirectoryError(21, "Is a directory", "out"), 2),
        (KeyboardInterrupt(), 130),
        (RuntimeError("a bug\nin two lines"), 70),
    ],
)
def test_every_way_to_end_has_its_exit_code(
    strobe: Strobe, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(type(module.app), "__call__", fail)
    plain, debug = strobe("doctor"), strobe("doctor", "--debug")
    assert plain.code == debug.code == code
    assert plain.err.count("\n") == 1 and "Traceback" not in plain.err
    assert "Traceback" in debug.err


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_error(flags: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from strobe.cli.main import main; raise SystemExit(main())", "presets", *flags]
    path = os.pathsep.join([str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=600, env=environment)
    os.close(writer)
    assert done.returncode == module.BROKEN_PIPE
    assert done.stderr == ""


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_stdout_without_a_character_a_width_or_at_all(monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    words = ["speedup", *(str(CASE / name) for name in ("fa.log", "fa.pt.trace.json.gz", "vsa.log", "vsa.pt.trace.json.gz"))]
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setattr(sys, "stdout", stdout := io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main([*words, *flags]) == 0
    stdout.seek(0)
    said = stdout.read()
    assert "\\u00b5" in said and json.loads(said) if flags else "?" in said and "saves 6.773 ms of a 12.94 ms step" in said
    monkeypatch.setattr(sys, "stdout", None)
    assert main([*words, *flags]) == 0


LACKS = ImplUnavailableError("cuda", "no GPU on this machine", ["cpu"])


@pytest.mark.parametrize(
    ("code", "error", "local_rank", "followers"),
    [
        (USAGE, ConfigError("wrong on all ranks"), "2", False),
        (MISSING, CollectiveError("rank 1 is gone, and rank 0 says so", [1]), "2", False),
        (MISSING, CollectiveError("rank 0 is gone", [0]), "2", True),
        (MISSING, StrobeError("this GPU is full"), "2", True),
        (MISSING, LACKS, "2", False),
        (MISSING, LACKS, "0", True),  # of another machine
    ],
)
def test_who_says_what(monkeypatch: pytest.MonkeyPatch, code: int, error: Exception, local_rank: str, followers: bool) -> None:
    assert says(code, error)
    monkeypatch.setenv("RANK", "8")
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert says(code, error) == followers


def test_a_rank_that_follows_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert said_by_rank_0(Output(json=True)) == Output(json=True)
    command = ["generate", "a red circle", "--seconds", "1", "--blocks", "1"]
    assert main(command) == USAGE and "give --seconds or --blocks" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert main(command) == USAGE and capsys.readouterr().err == ""
    assert said_by_rank_0(Output(json=True)) == Output(quiet=True)


COMPARE = ("compare", "quality", "turbo", "--device", "cpu", "--blocks", "5", "--no-switch", "--rounds", "50")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("sent", "code", "message", "said"),
    [(signal.SIGTERM, 143, "SIGTERM", "terminated"), (signal.SIGINT, 130, "Ctrl-C", "interrupted")],
)
def test_what_is_kept_is_said(tmp_path: Path, sent: signal.Signals, code: int, message: str, said: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "strobe", *COMPARE, "--out", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, preexec_fn=hears_ctrl_c, **pipes) as process:
        until = time.monotonic() + 300
        while not any(b'"record":"clip"' in path.read_bytes() for path in tmp_path.glob("*/records.jsonl")):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(sent)
        _, err = process.communicate(timeout=120)
    (folder,) = tmp_path.iterdir()
    run = read_run(folder)
    assert process.returncode == code, err
    assert err.splitlines()[-2:] == [f"the {len(run.clips)} finished clips are kept: strobe report {folder}", f"error: {said}"]
    assert run.end is not None
    assert (run.end.status, run.end.message) == ("interrupted", message)


CASE = ROOT / "examples" / "vsa_case"
LOGS = ROOT / "tests" / "data" / "logs"
PLACES = {
    "case": CASE, "trace": CASE / "vsa.pt.trace.json.gz", "log": LOGS / "mislabelled_seconds.log", "logs": LOGS,
    "sides": " ".join(f"{CASE}/{name}.{kind}" for name in ("fa", "vsa") for kind in ("log", "pt.trace.json.gz")),
    "run": ROOT / "benchmarks" / "presets-h200", "pair": H200 / "pair",
}  # fmt: skip
"""What the lines have in braces."""
WRONG = [
    ("generat", 'Did you mean "generate"'),
    ("doctor --devise cpu", "Did you mean --device"),
    ("generate", "say what to show"),
    ("generate 'a red circle moving left' --blocks 2.4", "--blocks 2.4: give a whole number"),
    ("profile attention --grid 4 1.5 3", "--grid 1.5: give a whole number"),
    ("presets turb", "did you mean 'turbo'"),
    ("generate 'a red circle moving left' --mode sofd", 'Did you mean "soft"'),
    ("doctor --device tpu", "allowed: auto, cpu, cuda"),
    ("report no-such-run", "no-such-run"),
    ("doctor --preset turbo --model wan-1.3b --size 481x832", "of 16 and width of 16; the nearest is 480x832"),
    ("generate 'a dog' --model wan-1.3b --random-weights --release there", "--release there: --random-weights"),
    ("generate 'a dog' --model wan-1.3b --random-weights --prompt-cache x", "--prompt-cache x: --random-"),
    ("compare quality ultr", "did you mean 'ultra'"),
    ("compare quality", "candidate"),
    ("compare quality turbo --require 'foo>1'", "unknown figure in --require 'foo'"),
    ("compare quality turbo --require 'e2f>1'", "did you mean 'e2e'"),
    ("compare quality turbo --require 'quality:e2e>1'", "unknown candidate in --require 'quality'"),
    ("compare quality turbo --rounds 0", "--rounds 0: give 1 or more"),
    ("compare quality turbo --blocks 0", "--blocks 0: give 1 or more"),
    ("compare quality turbo --require fast", "--require"),
    ("compare quality turbo --require 'e2e>=nan'", "'nan' is not a number"),
    ("compare 'sleep 0.01' 'sleep 0.02'", "begins with a program and is no preset; write strobe compare -- 'COMMAND'"),
    ("compare sleep 0.01 -- sleep 0.02", "begins with a program and is no preset; write strobe compare -- 'COMMAND'"),
    ("compare balanced --vary windw=6 --device cpu", "did you mean 'window'"),
    ("compare balanced --vary window --device cpu", "write NAME=VALUE"),
    ("compare balanced --vary window=6 window=8 --device cpu", "given twice"),
    ("compare balanced --vary window=six --device cpu", "whole number"),
    ("compare balanced --vary window=2 --device cpu", "smallest window with sink 3: 6"),
    ("compare balanced --vary steps=5 --device cpu", "give 1 to 4"),
    ("compare balanced --vary batch=0 --device cpu", "1 or more"),
    ("compare balanced --vary ring_cache=maybe --device cpu", "on or off"),
    ("compare balanced --vary positions=relativ --device cpu", "absolute, rebased"),
    ("compare balanced --vary preset=turbbo --device cpu", "did you mean 'turbo'"),
    ("compare balanced --vary window=12 --device cpu", "nothing to measure"),
    ("compare balanced --vary window=6 --grid --device cpu", "two factors or more"),
    ("compare balancd --leave-one-out --device cpu", "did you mean 'balanced'"),
    ("compare balanced turbo --vary window=6 --device cpu", "settings of one preset; 2 are named"),
    ("compare --vary window=6 --device cpu", "settings of one preset; 0 are named"),
    ("compare balanced --vary window=6 --require 'e2e>=1' --device cpu", "--require"),
    ("report . --log --require 'e2e>=1'", "without --log"),
    ("report {pair} {run} -o page", "report it without other runs"),
    ("report absent --log", "nothing was measured at absent"),
    ("profile stream --blocks 4 --device cpu --top 0 -o .", "--top"),
    ("profile stream --blocks 4 --device cpu --wait -1 -o .", "0 or more"),
    ("profile stream --blocks 4 --device cpu --active 0 -o .", "--active 0: give 1 or more"),
    ("profile stream --blocks 4 --device cpu --warmup 0 -o .", "smallest: 1"),
    ("profile stream --blocks 4 --device cpu --rounds 0 -o .", "--rounds 0: give 1 or more"),
    ("profile attention --seq-q 40 --device cpu --impls sdpa sdpa", "several different"),
    ("profile attention --seq-q 40 --device cpu --impls sparse:cpu", "--grid"),
    ("profile attention --seq-q 40 --device cpu --iterations 0", "1 round and 1 call"),
    ("profile attention --seq-q 40 --device cpu --active -1", "1 round and 1 call"),
    ("profile attention --seq-q 40 --device cpu --seq-kv 0", "kv_tokens of an attention call: got 0; give 1 or more"),
    ("profile attention --seq-q 40 --device cpu --kv-heads 0", "num_kv_heads of an attention call: got 0"),
    ("profile attention --seq-q 40 --device cpu --sparsity 1", "sparsity: got 1.0; give a share from 0 (dense) to below 1"),
    ("profile attention --seq-q 40 --device cpu --seq-kv 70 --grid 2 5 4", "40 tokens; got 40 of q and 70 of k"),
    ("profile kernels --device cpu -o page.txt", "allowed: .html, .md, .json"),
    ("profile kernels --device cpu --iterations 0", "--iterations 0: give 1 or more"),
    ("profile dit", "name one of --model and --pipe"),
    ("profile dit --model wan-2b", "unknown model 'wan-2b'"),
    ("profile dit --model wan-1.3b --attention dense flash", "unknown attention 'flash'"),
    ("profile dit --model wan-1.3b --sparsity 90", "--sparsity 90: give shares between 0 and 1"),
    ("profile dit --model wan-1.3b --attention dense", "one variant alone compares nothing"),
    ("profile dit --model wan-1.3b --tiny --frames 80", "80 frames: this model takes"),
    ("profile dit --model wan-1.3b --compile yes", "unknown --compile 'yes'"),
    ("profile dit --model wan-1.3b --tiny --size 100x100", "heights divisible by 16"),
    ("profile dit --model wan-1.3b --tiny --weights w", "--tiny draws its weights"),
    ("profile dit --model wan-1.3b --steps 2", "--steps 2: give 3 or more"),
    ("profile dit --model wan-1.3b --tiny --regions attn", "unknown region 'attn'"),
    ("bench attention --grid publishd", "did you mean 'published'"),
    ("bench attention --grid 2 4", "or three sizes T H W"),
    ("bench attention --shapes wan", "unknown shape 'wan'"),
    ("bench attention --grid quick --blocks 32", "allowed: 64, 128, 256"),
    ("bench attention --grid quick --topk 0", "expected 1 or more"),
    ("bench attention --grid quick --tile flat", "unknown tile"),
    ("bench attention --grid quick --seconds-per-cell 0", "more than 0 seconds"),
    ("bench attention --grid quick --heads 0", "expected 1 or more"),
    ("bench attention --captured no.safetensors", "no.safetensors does not exist"),
    ("bench attention --captured no.safetensors --grid quick", "its calls are what is measured; leave out --grid"),
    ("bench tree --world-size 0", "world_size: got 0"),
    ("bench tree --strategies rng", "did you mean 'ring'"),
    ("bench tree --kv-heads 3", "a divisor of heads 8"),
    ("bench tree --world-size 1 2 --delay 2 20", "no such rank; give 0 to 1"),
    ("bench tree --world-size 1 3000", "world_size: got 3000, this machine holds "),
    ("bench tree --iterations 0", "one iteration"),
    ("bench tree --delay 0 -1.0", "a delay of 0 or more"),
    ("bench tree --render", "no cells at"),
    ("bench tree --seq-len 0", "seq_len: got 0"),
    ("generate 'a red cicle moving left' --blocks 2 --device cpu", "circle"),
    ("generate '(a red circle moving left:1) (a blue circle:1)'", "the prompt 'a blue circle' gives no direction"),
    ("generate 'a red circle moving left' --switch 'block=9:a blue square moving up' --blocks 2", "would never take effect"),
    ("generate 'a red circle moving left' --seconds 0 --device cpu", "--seconds 0: give more than 0"),
    ("generate 'a red circle moving left' --blocks -3 --device cpu", "--blocks -3: give 1 or more"),
    ("generate 'a red circle moving left' --seconds 1 --blocks 2 --device cpu", "--blocks, not both"),
    ("generate 'a red circle moving left' --model shape --blocks 2 --device cpu", "shapes"),
    ("doctor --device cpu --model wan-1.3b", "give --preset too"),
    ("serve --buffer -1", "--buffer -1: give 0.05 to 10"),
    ("serve --streams 0", "--streams 0: give 1 to 10000"),
    ("serve --suspend 0", "--suspend 0: give 0.5 to 86400"),
    ("serve --resume 1e9", "--resume 1e+09: give 1 to 604800"),
    ("serve --keep-every -1", "--keep-every -1: give 0 to 100000"),
    ("serve --port 70000", "--port 70000: give 1 to 65535, or 0 for any that is free"),
    ("serve --host 0.0.0.0", "--host 0.0.0.0 can be reached by others: give --token, or listen on 127.0.0.1"),
    ("serve --host 0.0.0.0 --token xxxxxxxxxxxxxxxx", "give --tls-cert and --tls-key, put a proxy with TLS in front"),
    ("serve --tls-cert cert.pem", "give both --tls-cert and --tls-key, or neither"),
    ("serve --tls-cert no.pem --tls-key no.pem", "--tls-cert no.pem: there is no file of that name"),
    ("serve --host nowhere.invalid --token xxxxxxxxxxxxxxxx --insecure-http", "give an address of this machine to --host"),
    ("serve --host 192.0.2.1 --token xxxxxxxxxxxxxxxx --insecure-http", "address; give an address of this machine to --host"),
    ("serve --tls-cert mine.txt --tls-key mine.txt --port 0", "; give a pair in PEM"),
    ("serve --token 'a-long-secret-wörd'", "--token: give letters, digits and signs of ASCII"),
    ("serve --token short", "--token: one of 5 characters can be guessed; give at least 16"),
    ("speedup", "--baseline-log"),
    ("compare baseline balanced --allow-different tokns", "did you mean 'tokens'"),
    ("speedup {sides} --focal-baseline flush", "flush"),
    ("speedup {sides} --allow-different model sparsty", "did you mean 'sparsity'?); allowed: commit, model, checkpoint"),
    ("speedup {sides} --require 'block>1'", "block"),
    ("speedup {sides} --between 9s..1s", "no value lies between"),
    ("speedup {sides} --between 9s", "write SHORTEST..LONGEST"),
    ("speedup {sides} --section a b c", "one for both sides, or two"),
    ("speedup {sides} --fact candidate:frames", "NAME=VALUE"),
    ("speedup {sides} --names '' sparse", "no attention timer 'sparse'"),
    ("speedup {sides} --calls-per-stage 0", "--calls-per-stage 0: a stage has 1 or more"),
    ("speedup {sides} --baseline-log {case}/fa.log", "a log is given by a flag too; give both logs as files"),
    ("extract attention --candidate-log {case}/vsa.log --calls-per-stage 0", "--calls-per-stage 0: a stage has 1 or more"),
    ("speedup --baseline-log {case}/fa.log", "--baseline-log is of one: give --candidate-log too"),
    ("speedup --candidate-trace {trace}", "--candidate-trace is of one: give --baseline-trace too"),
    ("speedup --baseline-log {case}/fa.log --candidate-trace {trace}", "give --candidate-log or --baseline-trace too"),
    ("speedup {trace} {trace} --calls-per-stage 4", "--calls-per-stage: needs a log: --baseline-log FILE and"),
    ("speedup {case}/fa.log", "fa.log is the only log: add the other side's; the baseline's comes first"),
    ("speedup {case}/fa.log gone.log", "not a file: gone.log"),
    ("speedup {trace} {trace} {trace}", "these are 3 traces; give two, the baseline's first"),
    ("speedup {run}", "presets-h200; give two logs or two traces; strobe report DIR compares a run"),
    ("report {run} -o page --allow-different tokns", "did you mean 'tokens'"),
    ("bench serve --require 'fast>1'", "allowed: on_time, play_ratio, stalls, refused, failed"),
    ("bench serve --sessions 1 --require 'load-2:on_time>0.9'", "unknown candidate in --require 'load-2'"),
    ("profile stream --blocks 4 --device cpu --breakdown --no-trace -o .", "--no-trace"),
    ("lint", "name at least one file"),
    ("lint none.md", "cannot be read"),
    ("lint mine.txt --model wan", "unknown model"),
    ("doctor --preset quality --model wan", "unknown model 'wan'"),
    ("doctor --preset quality --samples 0", "give 1 or more"),
    ("doctor --preset quality --size 64x64", "has a frame size of its own"),
    ("generate 'a red circle moving left' --switch 'block=1: a red circle moving left' --mode shot", "this model has no shots"),
    ("compare -- true", "'true' needs a candidate to compare it with; write strobe compare PRESET PRESET"),
    ("compare", "nothing to compare; write"),
    ("compare -- true --", "command 2 is empty"),
    ("compare -- true -- '  '", "command 2 is empty"),
    ('compare -- true -- "echo \'a"', "cannot be read: no closing quotation"),
    ("compare --names a a -- true -- true", "give 2 different names"),
    ("compare --names a -- true -- true", "give 2 different names"),
    ("compare --names a ' ' -- true -- true", "give 2 different names"),
    ("compare --blocks 3 --seed 1 -- true -- true", "--blocks, --seed: for presets"),
    ("compare --allow-different tokens -- true -- true", "--allow-different: for presets"),
    ("compare --prepare true baseline turbo", "--prepare: for programs, each behind a --"),
    ("compare --require 'step>=1' -- true -- true", "unknown figure in --require 'step'; allowed: e2e"),
    ("compare --require 'x:e2e>=1' --names a b -- true -- true", "unknown candidate in --require 'x'"),
    ("compare --commits a b -- true", "run this inside a clone of the repository"),
    ("compare --commits a -- true", "a comparison needs two or more, got a"),
    ("compare --commits a b --names a a -- true", "give 2 different names"),
    ("compare --commits a b -- ' '", "give the command that is measured"),
    ('compare --commits a b -- "python \'bench"', "cannot be read"),
    ('compare --commits a b --install "pip \'x" -- true', "cannot be read"),
    ("compare --commits a b --require 'c:e2e>=1' -- true", "unknown candidate in --require 'c'"),
    ("compare --install true -- true -- true", "--install: for commits"),
    ("compare --warmup=-1 -- true -- true", "0 runs of warm-up or more"),
    ("serve --port 0 --model wan1.3b", "no model or folder 'wan1.3b' (did you mean 'wan-1.3b'?)"),
    ("serve --port 0 --preset turbi", "turbi"),
    ("serve --port 0 --model wan-1.3b", "wan-1.3b comes without weights: give --weights with their folder, or --random-weights"),
    ("serve --port 0 --model krea", "krea comes without weights: give --weights"),
    ("serve --port 0 --weights .", "model 'shapes' has weights and a size of its own"),
    ("serve --port 0 --model wan-1.3b --random-weights --weights .", "give weights or ask for random ones, not both"),
    ("serve --keep /proc/streams", "--keep /proc/streams: No such file or directory; give a folder that can be written"),
    ("extract stages", "name at least one log"),
    ("extract stages no-such.log", "cannot read log no-such.log"),
    ("extract stages {log} --unit mins", "unknown unit 'mins'"),
    ("extract attention", "name a log"),
    ("extract attention --baseline-log {log} --between 5..", "not a duration"),
    ("extract attention --baseline-log {log} --between 5ms..1ms", "no value lies between"),
    ("extract attention --baseline-log {log} --focal-baseline flash", "needs a trace"),
    ("extract attention --baseline-log {log} --baseline-trace {logs}", "proves nothing alone"),
    ("extract kernels --focal flash", "name at least one trace"),
    ("extract kernels {logs}", "--focal"),
    ("extract kernels {trace} --focal nothing -o kernels.md", "has a name with 'nothing'"),
    ("trace", "name at least one trace"),
    ("trace .", "."),
    ("trace mine.txt", "mine.txt"),
    ("trace {trace} --top 0", "--top 0: give 1 or more"),
    ("trace {trace} --window 5..", "the time '5' of the window needs a unit"),
    ("trace {trace} --format md --json", "--format md --json: one can be printed; -o FOLDER writes several"),
    ("accept --blocks 2 --device cpu", "2 frame blocks are too few to compare streaming with one pass; give 3 or more"),
    ("accept --preset turbp --device cpu", "unknown preset 'turbp' (did you mean 'turbo'?)"),
    ("accept --prompt 'a green star moving up fast on a forest background'", "the other prompt is the same as the first"),
    ("generate 'a red circle moving left' --start a.mp4 --follow b.mp4", "give --start or --follow, not both"),
    ("generate 'a red circle moving left' --strength 0.5", "--strength 0.5: it goes with --follow CLIP"),
    ("generate 'a red circle moving left' --follow no.mp4", "cannot read the clip no.mp4: no such file; give a video"),
    ("generate 'a red circle moving left' --follow no.mp4 --strength 2", "--strength 2: give more than 0, up to 1"),
    ("generate 'a red circle moving left' --image mine.txt --device cpu", "cannot read the picture"),
    ("generate 'a red circle moving left' --ulysses 2", "--ulysses 2: this process runs alone and shares nothing; start it by"),
    ("generate --replay none.json", "cannot read the recipe none.json"),
]
MODELS = [
    ("--model wan-1.3b", "wan-1.3b comes without weights: give --weights"),
    ("--model wan-1.3b --weights . --random-weights", "not both"),
    ("--model wan-1.3b --random-weights --size 480", "--size 480: write height x width"),
    ("--model wan-1.3b --random-weights --size 481x832", "of 16 and width of 16; the nearest is 480x832"),
    ("--model wan-1.3b --lora style.pt=much", "--lora style.pt=much: write the file, or the file and a strength"),
    ("--recipe longlive", "model 'shapes' has weights and a size of its own"),
    ("--model wan-1.3b --random-weights --recipe longlife", "did you mean 'longlive'?"),
    ("--timesteps '1000;500'", "--timesteps 1000;500: write falling numbers with commas"),
    ("--window 4 --sink 3", "window 4 with sink 3 has no room for a frame block of 3"),
    ("--model wan-1.3", "did you mean 'wan-1.3b'?"),
    ("--random-weights", "model 'shapes' has weights and a size of its own"),
]
"""Of a model, for a clip and for a comparison."""
LACKING = [
    ("profile dit --model wan-1.3b --tiny --compile on off", "nothing is compiled on cpu"),
    ("profile dit --model wan-1.3b --weights w --device cpu", "w holds no WanTransformer3DModel"),
    ("compare baseline quality --model wan-1.3b --weights nowhere", "no file or folder 'nowhere'"),
    ("compare baseline quality --model .", "holds no shapes.safetensors"),
    ("accept --preset ultra --device cpu", "no FP8 matrix units"),
    ("profile stream turbo --compile --device cpu -o .", "knob 'compile' cannot run: on cpu it is used on CUDA only"),
    ("compare baseline ultra --device cpu -o .", "cpu has no FP8 matrix units"),
    ("profile stream ultra --device cpu -o .", "--simulate"),
    ("compare balanced --vary preset=turbo,ultra --device cpu -o .", "preset 'ultra' cannot run: "),
    ("compare balanced --vary linear_format=fp8 --device cpu -o .", "preset 'linear_format-fp8' cannot run: "),
    ("serve --model wan-1.3b --weights nothere.pt", "--weights nothere.pt: there is no file or folder of that name"),
    ("serve --model wan-1.3b --random-weights --lora a.safetensors=0.5", "--lora a.safetensors: there is no file"),
]
PROMPTS = [
    ("a circle moving left", 'for example "a red circle moving left"'),
    ("a red circle, a blue square and a green star moving left", 'for example "a red circle and a blue square moving left"'),
]
"""Of the first and of a later one."""
DRAWN = ("generate '{}'", "generate 'a red circle moving left' --switch 'block=1:{}'")
VERBS = ("generate 'a red circle moving left' -o fox.mp4", "compare baseline quality")


@pytest.mark.parametrize(
    ("line", "said", "code"),
    [
        *((*each, USAGE) for each in WRONG),
        *((f"{verb} {more} --device cpu", said, USAGE) for more, said in MODELS for verb in VERBS),
        *((f"{asked.format(prompt)} --blocks 2 --device cpu", said, USAGE) for prompt, said in PROMPTS for asked in DRAWN),
        *((*each, MISSING) for each in LACKING),
    ],
)
def test_it_is_one_line_and_nothing_is_left(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").touch()
    result = strobe(*shlex.split(line.format(**PLACES)))
    assert (result.code, result.out) == (code, "") and said in result.err
    assert result.err.startswith("error: ") and result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
