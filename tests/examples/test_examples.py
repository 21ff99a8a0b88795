"""Every example runs, at a tiny size, as a user would start it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--max-restarts=0", "--nproc-per-node=2")
COMMANDS = {
    "custom_profiling.py": ("--seq-len", "64", "--calls", "2"),
    "diffusers_fastwan.py": ("--size", "64x96", "--frames", "13", "--device", "cpu"),
    "diffusers_hunyuan.py": ("--size", "64x96", "--frames", "9", "--device", "cpu"),
    "diffusers_ltx2.py": ("--size", "128x160", "--frames", "17", "--device", "cpu"),
    "diffusers_wan.py": ("--size", "64x96", "--frames", "9", "--device", "cpu"),
    "live_prompts.py": ("--blocks", "6", "--every", "2"),
    "tree_decode.py": ("--world-size", "2", "--seq-len", "31"),
    "vsa_calls.py": ("--grid", "5x6x7", "--heads", "2", "--head-dim", "16", "--rounds", "2", "--device", "cpu"),
}  # fmt: skip
SAYS = {
    "custom_profiling.py": "my_attention",
    "diffusers_fastwan.py": "frames after the timesteps 1000, 757, 522",
    "diffusers_hunyuan.py": "recall: ",
    "diffusers_ltx2.py": "recall: ",
    "diffusers_wan.py": "restored: True",
    "live_prompts.py": '"prompts_from_block": [',
    "tree_decode.py": "2 ranks and one process are the same: largest error ",
    "vsa_calls.py": "time of the operator / time of the foreign call: ",
}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--size", "96"), "argument --size: got 96, expected height and width in multiples of 16, such as 96x160"),
        (("--size", "96x100"), "argument --size: got 96x100, expected"),
        (("--device", "cuda:99"), "argument --device: cuda:99 cannot be used: "),
    ],
)
def test_a_wrong_argument_of_the_wan_example_is_one_line(
    given: tuple[str, str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["diffusers_wan.py", *given])
    with pytest.raises(SystemExit, match="^2$"):
        runpy.run_path(str(EXAMPLES / "diffusers_wan.py"), run_name="__main__")
    assert says in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.few("vsa_calls.py")
@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs(example: str, tmp_path: Path) -> None:
    launcher = TORCHRUN if example == "custom_profiling.py" else ()
    command = [sys.executable, *launcher, str(EXAMPLES / example), *COMMANDS[example]]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert SAYS[example] in done.stdout + done.stderr
    if example == "custom_profiling.py":
        summaries = [line for line in done.stdout.splitlines() if line.startswith("  Total ")]
        shares = [float(line.rpartition("(")[2].rstrip("%)")) for line in summaries if line.endswith("%)")]
        assert len(shares) == 5 and abs(sum(shares) - 200) < 0.5, "leaves alone, once free-running and once serialised"
    elif example not in ("live_prompts.py", "tree_decode.py", "vsa_calls.py") and not example.startswith("diffusers_"):
        assert list(tmp_path.rglob("report.html")), "what it measured is on a page"
