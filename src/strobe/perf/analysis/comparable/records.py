"""Facts of one variant from the records of our own run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from strobe.perf.analysis.comparable.checks import Comparability, compare_facts
from strobe.perf.records.record import Header, Variant

VARIED: Final = ("backend", "sparsity", "steps", "dtype")
"""Facts in which the variants of one run may differ, as they are compared for that."""


def _call_facts(sizes: Mapping[str, int]) -> dict[str, object]:
    """Return batch and tokens of one attention call; empty if the records are of something else."""
    tokens = dict.fromkeys(sizes[key] for key in ("q_tokens", "kv_tokens") if key in sizes)
    found = {"batch": sizes.get("batch"), "tokens": " queries, ".join(map(str, tokens)) + (" keys" if len(tokens) > 1 else "")}
    return {name: value for name, value in found.items() if value}


def record_facts(header: Header, variant: Variant | None) -> dict[str, str]:
    """Return the facts that a run's records hold: machine, model, workload and, if given, the variant."""
    machine, work = header.machine, header.workload
    known: dict[str, object] = {
        "date": header.date,
        "commit": header.git.commit,
        "device": machine.device_name,
        "devices": header.world_size if machine.gpu_count else None,
        "world": header.world_size,
        "sharding": f"{header.sp_degree}, {header.tp_degree}",
        "torch": machine.torch,
        "cuda": machine.cuda,
        "driver": machine.driver,
        "launch_blocking": "yes" if machine.launch_blocking else "no",
    }
    if machine.clocks.sm_mhz is not None:
        known["clocks"] = f"{machine.clocks.sm_mhz} MHz SM, {machine.clocks.memory_mhz} MHz memory"
    if header.model is not None:
        known |= {"model": header.model.name, "checkpoint": header.model.weights_sha256[:16]}
    if work is not None:
        known |= {"frames": work.frames, "resolution": f"{work.width}x{work.height}", "batch": work.batch, "seed": work.seed}
    if variant is not None:
        known |= {"backend": variant.attention_impl, "sparsity": variant.sparsity, "tokens": variant.tokens_per_block}
        known |= {"steps": variant.steps, "dtype": variant.dtype}
        known |= _call_facts(variant.sizes)
    return {name: str(value) for name, value in known.items() if value not in (None, "")}


def compare_variants(
    header: Header, reference: Variant, candidate: Variant, allow_different: Sequence[str] = ()
) -> Comparability:
    """Check the facts of two variants in the records of one run.

    Args:
        allow_different: facts that are meant to differ, beside `VARIED`.

    Raises:
        ConfigError: there is no such fact.
    """
    return compare_facts(record_facts(header, reference), record_facts(header, candidate), (*VARIED, *allow_different))
