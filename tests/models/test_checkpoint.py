"""Weight files are read strictly, and large ones are hashed once."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import forked
from fake_hub import MAIN, OLD, Hub, serving
from strobe.core import libraries
from strobe.core.errors import ConfigError, ImplUnavailableError, WeightsError
from strobe.models import checkpoint as digest
from strobe.models import hub as module
from strobe.models.checkpoint import NAME, on_meta, read_file, read_shapes, sha256_of
from strobe.models.hub import fetch, is_address
from strobe.models.shapes.weights import FILE, FOLDER


def test_modules_on_the_meta_device_draw_nothing() -> None:
    drawn = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            drawn.extend([func] * ("uniform_" in str(func) or "normal_" in str(func)))
            return func(*args, **(kwargs or {}))

    def built() -> list[Tensor]:
        return [*nn.Sequential(nn.Linear(3, 5), nn.Conv2d(2, 4, 3), nn.Embedding(7, 2), nn.LayerNorm(5)).parameters()]

    with Seen():
        with torch.device("meta"):
            plain = built()
        assert drawn and not drawn.clear()
        with on_meta():
            bare = built()
    assert not drawn and {each.device.type for each in bare} == {"meta"}
    assert [each.shape for each in bare] == [each.shape for each in plain]
    assert built()[0].any()  # and weights are drawn again after it


def test_a_file_that_begins_like_an_archive_is_none(tmp_path: Path) -> None:
    """A header of that length: the first two of its eight bytes read PK."""
    path, size = tmp_path / "model.safetensors", 0x4B50
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(size)
    path.write_bytes(size.to_bytes(8, "little") + header + b"\0\0\x80\x3f")
    assert path.read_bytes().startswith(b"PK") and read_shapes(path)["x"].shape == (1,) and read_file(path)["x"].item() == 1.0


@pytest.mark.parametrize(
    "header",
    [
        b'{"\xff\xfe": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [9223372036854775808, 2], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 4]}}',
        b"[" * 5000,
    ],
)
def test_a_header_that_cannot_be(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    with pytest.raises(WeightsError, match="is damaged"):
        read_shapes(path)


def test_a_page_that_was_saved_as_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"<!DOCTYPE html><html>Not found</html>")
    with pytest.raises(WeightsError, match=r"is no weight file: it begins with b'<!DOCTYPE ht'; fetch it again"):
        read_file(path)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were really read."""
    found: list[Path] = []
    real = digest._read
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digest, "SMALL_BYTES", 4)
    monkeypatch.setattr(digest, "_read", lambda file: found.append(Path(file.name)) or real(file))
    return found


def test_once_and_again_after_a_change(tmp_path: Path, reads: list[Path]) -> None:
    file, other = tmp_path / "a.pt", tmp_path / "b.pt"
    for path in (file, other):
        path.write_bytes(b"weights")
    expected = hashlib.sha256(b"weights").digest()
    assert [sha256_of(file), sha256_of(file), sha256_of(other), sha256_of(tmp_path / "." / "a.pt")] == [expected] * 4
    assert reads == [file, other]
    stat = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if it had not been written
    assert sha256_of(file) == hashlib.sha256(b"WEIGHTS").digest() and reads == [file, other, file]
    os.replace(other, file)
    assert sha256_of(file) == expected and len(reads) == 4


def test_small_files_are_not_remembered(tmp_path: Path, reads: list[Path]) -> None:
    file = tmp_path / "a.pt"
    file.write_bytes(b"abc")
    assert sha256_of(file) == sha256_of(file) == hashlib.sha256(b"abc").digest()
    assert len(reads) == 2 and not (tmp_path / "cache").exists()


def test_a_damaged_list_and_a_folder_that_cannot_be_written(tmp_path: Path, reads: list[Path]) -> None:
    file, kept = tmp_path / "a.pt", tmp_path / "cache" / "strobe" / NAME
    file.write_bytes(b"weights")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"{")
    assert sha256_of(file) == sha256_of(file) and len(reads) == 1
    kept.unlink()
    kept.mkdir()
    assert sha256_of(file) == hashlib.sha256(b"weights").digest() and len(reads) == 2


WAN = {
    "README.md": b"#",
    "config.json": b"{}", "diffusion_pytorch_model.safetensors": b"dit", "Wan2.1_VAE.pth": b"vae",
    "models_t5_umt5-xxl-enc-bf16.pth": b"t5", "google/umt5-xxl/spiece.model": b"words", "pickled.pt": b"pickle",
    "examples/clip.mp4": b"clip", "models/base.pt": b"base", "models/lora.pt": b"lora",
    "big/model.safetensors.index.json": b"[]", "big/model-00001-of-00002.safetensors": b"1",
    "big/model-00002-of-00002.safetensors": b"2", "big/other.safetensors": b"3",
}  # fmt: skip
CALLS = """
import json
from strobe.core.errors import StrobeError
from strobe.models.hub import RELEASE, TRANSFORMER, fetch
found = []
for address, patterns, ignored in json.loads(ASKED):
    try:
        path, source = fetch(address, patterns, ignored)
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        found.append([source, str(path), {str(each.relative_to(path.parent)): each.read_text() for each in files}])
    except StrobeError as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {"owner/wan": WAN, "owner/shapes": {FILE: (FOLDER / FILE).read_bytes(), "training.pt": b"state"}, "owner/gated": WAN}
    with serving(Hub(repositories=files, gated=("owner/gated",))) as running:
        yield running


def calls(hub: Hub, home: Path, *asked: tuple[str, tuple[str, ...], tuple[str, ...]], **variables: str) -> list[list[str]]:
    code = CALLS.replace("ASKED", repr(json.dumps(asked)))
    found: list[list[str]] = json.loads(hub.run(code, home, **variables))
    return found


def test_only_what_is_needed_is_fetched_and_the_commit_is_told(hub: Hub, tmp_path: Path) -> None:
    whole = (*module.TRANSFORMER, *module.RELEASE)
    index = "model.safetensors.index.json"
    told = [  # what is asked for, its source, and the name of the file or folder
        (("hf:owner/wan", whole, ()), f"hf:owner/wan@{MAIN}", MAIN),
        (("hf:owner/wan@v1", module.TRANSFORMER, ("big/*",)), f"hf:owner/wan@{OLD}", OLD),
        (("hf:owner/wan/pickled.pt", whole, ()), f"hf:owner/wan@{MAIN}/pickled.pt", "pickled.pt"),
        (("hf:owner/wan@main/models/*.pt", whole, ()), f"hf:owner/wan@{MAIN}/models/*.pt", "models"),
        (("hf:owner/wan/models/b*.pt", whole, ()), f"hf:owner/wan@{MAIN}/models/b*.pt", "base.pt"),
        (("hf:owner/wan/big/", whole, ()), f"hf:owner/wan@{MAIN}/big", "big"),
        ((f"hf:owner/wan@v1/big/{index}", whole, ()), f"hf:owner/wan@{OLD}/big/{index}", index),
    ]
    found = calls(hub, tmp_path, *(asked for asked, _, _ in told))
    assert [(each[0], Path(each[1]).name) for each in found] == [(source, name) for _, source, name in told]
    assert all(Path(each[1]).is_relative_to(tmp_path / "hub") for each in found), "the hub's own cache"
    assert found[3][2] == {"models/base.pt": "base", "models/lora.pt": "lora"}
    needless = {"README.md", "examples/clip.mp4"}
    assert sorted(name.partition("/")[2] for name in hub.fetched) == sorted({*WAN} - needless), "each once"
    assert {*found[1][2]} == {f"{OLD}/config.json", f"{OLD}/diffusion_pytorch_model.safetensors"}


def test_without_network_the_cache_is_enough_and_nothing_half_is_taken(hub: Hub, tmp_path: Path) -> None:
    asked = ("hf:owner/wan/models/*.pt", module.TRANSFORMER, ())
    (before,) = calls(hub, tmp_path, asked)
    gone = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert calls(hub, tmp_path, asked, **gone) == [before]
    assert calls(hub, tmp_path, asked, HF_HUB_OFFLINE="1") == [before]
    more, none = calls(hub, tmp_path, *((f"hf:owner/{name}", module.TRANSFORMER, ()) for name in ("wan", "shapes")), **gone)
    for name, (kind, said) in (("wan", more), ("shapes", none)):
        assert kind == "WeightsError" and said.startswith(f"hf:owner/{name}: the hub cannot be reached (")
        assert said.endswith(") and its cache has no whole copy; go online, or give a folder") and "\n" not in said


def test_what_is_not_there_is_said(hub: Hub, tmp_path: Path) -> None:
    names = ["nobody/nothing", "owner/wan@v9", "owner/gated", "owner/wan/examples", "owner/wan/picled.pt"]
    found = calls(hub, tmp_path, *((f"hf:{name}", module.TRANSFORMER, ()) for name in names))
    assert {kind for kind, _ in found} == {"WeightsError"} and not hub.fetched
    missing, revision, gated, folder, file = (said for _, said in found)
    why = "there is no repository nobody/nothing, or it is private; check the name, or `hf auth login` or set HF_TOKEN"
    assert missing == f"hf:nobody/nothing: {why}"
    assert revision == "hf:owner/wan@v9: owner/wan has no branch, tag or commit 'v9'; without one it is main"
    assert gated == "hf:owner/gated: owner/gated is gated; accept its terms on its page, then `hf auth login` or set HF_TOKEN"
    assert folder == "hf:owner/wan/examples: it has no *.safetensors or *.json; name a file of it: examples/clip.mp4"
    assert file.startswith("hf:owner/wan/picled.pt: it has nothing at picled.pt (did you mean 'pickled.pt'?); name a file of")


def test_an_address_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_address("hf:a/b") and is_address(Path("hf:a/b@main/c")) and not is_address("a/b") and not is_address(None)
    for wrong in ("hf:", "hf:alone", "hf:a/b@", "hf:a b/c"):
        with pytest.raises(ConfigError, match="write hf:owner/name, hf:owner/name@revision or"):
            fetch(wrong, ())
    monkeypatch.setattr(libraries, "_TRIED", {})
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImplUnavailableError, match=r"it fetches hf:a/b, and huggingface_hub .*; pip install .*\[hub\]"):
        fetch("hf:a/b", ())


def test_a_model_from_the_hub_makes_frames_and_says_which_commit(hub: Hub, tmp_path: Path) -> None:
    command = ["generate", "a red circle moving left", "--blocks", "1", "--device", "cpu", "--json", "--model"]
    here = hub.environment(tmp_path)
    done = forked.strobe(*command, "hf:owner/shapes@v1", "-o", tmp_path / "clip.mp4", environment=here)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == f"hf:owner/shapes@{OLD}" and hub.fetched == [f"{OLD}/{FILE}"]
    done = forked.strobe(*command, "hf:no/such", environment=here)
    assert done.returncode == 3 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: hf:no/such: there is no repository no/such")
