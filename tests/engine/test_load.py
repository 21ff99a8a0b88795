"""Models by name or folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from strobe.core.errors import ConfigError, WeightsError
from strobe.engine.load import load
from strobe.models.shapes import weights


def test_checkpoints_beside_the_weights_do_not_change_the_hash(tmp_path: Path) -> None:
    path = weights.save(weights.build(), tmp_path)
    first = load(tmp_path)
    (tmp_path / "student.safetensors").write_bytes(b"a state of the training")
    assert load(str(tmp_path)).weights_hash == first.weights_hash
    assert first.weights_hash == hashlib.sha256(path.name.encode() + path.read_bytes()).hexdigest()
    weights.save(weights.build(), tmp_path)
    assert load(tmp_path).weights_hash != first.weights_hash


def test_models_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'shapes'"):
        load("shape")
    with pytest.raises(WeightsError, match=r"holds no shapes\.safetensors"):
        load(tmp_path)
