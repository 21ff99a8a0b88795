"""Traces of made-up models: modules, operators with their inputs, and the kernels that they launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STEPS = 6
ATTENTION = "aten::_flash_attention_forward"


def write_model_trace(
    path: Path,
    model: str | tuple[str, ...] = "Bert",
    *,
    size: tuple[int, int] = (64, 12),
    dtype: str = "c10::BFloat16",
    device: str = "Example GPU",
    kernels: tuple[str, str] = ("flash_fwd", "gemm"),
    faster: int = 1,
    stacks: bool = True,
) -> Path:
    """Write steps of one attention and one matrix product each, of 60 and 30 microseconds divided by `faster`.

    Args:
        model: class of the outermost module, or of several that are inside each other.
        size: width and tokens of the model: its weights are `width x width`, its attention has 4 heads.
        kernels: of attention and of the matrix product.
        stacks: whether modules are recorded.
    """
    width, tokens = size
    nested = (model,) if isinstance(model, str) else model
    events: list[dict[str, Any]] = []
    busy = 2_000.0
    for step in range(STEPS):
        start = 1_000.0 + 200 * step
        events.append(_host("user_annotation", f"ProfilerStep#{step}", start, 190))
        for depth, name in enumerate(nested if stacks else ()):
            events.append(_host("python_function", f"nn.Module: {name}_0", start + depth, 180 - 2 * depth))
        head = [1, tokens, 4, width // 4]
        inputs = (
            (ATTENTION, [head, head, head], [dtype] * 3, 60 // faster),
            ("aten::mm", [[tokens, width], [width, width]], [dtype] * 2, 30 // faster),
        )
        for place, (operator, sizes, types, length) in enumerate(inputs):
            number, at = 10 * step + place + 1, start + 20 + 40 * place
            events.append(_host("cpu_op", operator, at, 20, **{"External id": number, "Input Dims": sizes, "Input type": types}))
            events.append(_host("cuda_runtime", "cudaLaunchKernel", at + 5, 2, **{"External id": number, "correlation": number}))
            ids, shape = {"External id": number, "correlation": number}, {"grid": [8, 1, 1], "block": [64, 1, 1]}
            args = {**ids, "device": 0, "stream": 7, **shape}
            events.append(_host("kernel", kernels[place], busy, length, **args) | {"pid": 0, "tid": 7})
            busy += length
        busy = max(busy, 2_000.0 + 100 * (step + 1))
    settings = {"schemaVersion": 1, "record_shapes": 1, "with_stack": int(stacks)}
    path.write_text(json.dumps({**settings, "deviceProperties": [{"id": 0, "name": device}], "traceEvents": events}))
    return path


def _host(category: str, name: str, start: float, length: float, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}
