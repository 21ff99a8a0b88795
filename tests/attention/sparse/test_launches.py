"""Lists of launches: in C where it is known what the driver is given, else one by one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from forked import needs_triton, run

SCRIPT = Path(__file__).parents[2] / "support" / "launches_in_c.py"


@needs_triton
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_driver_is_given_what_triton_gives_it(tmp_path: Path) -> None:
    done = run(SCRIPT, tmp_path, environment={"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
