"""Weights on the hub, as a model takes them."""

from __future__ import annotations

import json
from pathlib import Path

from fake_hub import MAIN, OLD, Hub, serving

DIT, VAE, TEXT = "diffusion_pytorch_model.safetensors", "Wan2.1_VAE.pth", "models_t5_umt5-xxl-enc-bf16.pth"
FILES = {DIT: b"1", VAE: b"2", TEXT: b"3", "tokenizer/words.json": b"4", "vae/diffusion_pytorch_model.safetensors": b"5"}
CODE = """
import json
from strobe.engine.family import Weights, fetched
found = []
for given in (
    Weights(path="hf:owner/wan", loras=(("hf:owner/style@v1/style.safetensors", 0.5),)),
    Weights(path="hf:owner/tuned", release="hf:owner/wan@v1", vae="hf:owner/wan/vae/diffusion_pytorch_model.safetensors"),
):
    local, sources = fetched(given)
    found.append([sources, local.path.name, local.loras[0][0].read_text() if local.loras else local.release.name, local.vae])
print(json.dumps(found))
"""


def test_each_part_may_be_on_the_hub_and_only_what_it_needs_is_fetched(tmp_path: Path) -> None:
    hub = Hub(
        repositories={"owner/wan": FILES, "owner/tuned": {DIT: b"6", VAE: b"7"}, "owner/style": {"style.safetensors": b"8"}}
    )
    with serving(hub):
        first, second = json.loads(hub.run(CODE, tmp_path))
    assert first == [[f"hf:owner/wan@{MAIN}", f"hf:owner/style@{OLD}/style.safetensors"], MAIN, "8", None]
    vae = f"hf:owner/wan@{MAIN}/vae/{DIT}"
    assert second[:3] == [[f"hf:owner/wan@{OLD}", f"hf:owner/tuned@{MAIN}", vae], MAIN, OLD]
    assert Path(second[3]).read_bytes() == b"5"
    assert f"{MAIN}/{DIT}" in hub.fetched and VAE in str(hub.fetched)
    assert sum(name.endswith(VAE) for name in hub.fetched) == 1, "the tuned model's own is not needed beside a release"
