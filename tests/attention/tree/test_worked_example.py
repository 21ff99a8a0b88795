"""The worked example of `docs/tree.md`, taken from the page and run on two processes, says what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_worked_example_says_what_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tree.md").read_text(encoding="utf-8")
    found = re.search(
        r"^```python\n(# (tree_example\.py): torchrun (.*?) \2\n.*?)^```\n\n```\n(.*?)^```\n", page, re.DOTALL | re.MULTILINE
    )
    assert found is not None, "the page has the example and, behind it, what it prints"
    source, name, flags, printed = found.groups()
    (tmp_path / name).write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0", *flags.split(), name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
