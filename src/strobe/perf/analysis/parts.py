"""Parts that the time of a run or of a trace is spent on, and what belongs to each: our regions, and kernels by their names."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, Self

from strobe.core import spans


class Part(StrEnum):
    """Parts that time is spent on, as the answer names them, and what each holds."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        part = str.__new__(cls, value)
        part._value_, part.meaning = value, meaning
        return part

    ATTENTION_KERNEL = "attention kernel", "self-attention itself; of video-sparse attention its fine stage"
    ATTENTION_AROUND = "attention around its kernel", "queries, keys and values, RoPE, the cache, selection, output projection"
    CROSS_ATTENTION = "cross-attention", "attention to the prompt with its projections"
    FEED_FORWARD = "feed-forward", "both matrices and the activation between them"
    NORMS = "norms and glue", "norms, modulation, residuals, embedding, output head, fresh noise mixed in"
    PASS = "transformer pass, not told apart", "kernels of graphs that nothing tells apart"
    FOCAL = "focal kernel", "the kernel that was named as the one the change is about"
    SECTION = "section around the focal kernel", "other kernels inside the section that was asked for"
    OTHER_ATTENTION = "attention kernels", "kernels of attention by their names, but for the focal one"
    MATRIX = "matrix products", "matrix products and convolutions by the names of their kernels"
    OTHER_KERNELS = "other kernels", "norms, elementwise operations, reductions and all else"
    COPIES = "copies", "memory copies and fills"
    COMMUNICATION = "communication between devices", "messages between devices that share a stream"
    WAITING = "GPU waiting for the host", "no kernel runs, because the host has launched none yet, or a launch is on its way"
    GAPS = (
        "gaps between kernels",
        "no kernel runs although the next one is launched: graph nodes, streams that wait for each other",
    )
    DECODING = "decoding", "latents to pixels, and waiting for it"
    REST = "noise and prompts", "noise drawn, prompts read, cache opened for a frame block"
    ENDS = "start and end of the clip", "from the call to the first frame block, and from the last one to the end"
    UNNAMED = "unexplained", "in no region, launched before the trace, not traced, or traced beyond what the untraced run took"

    @property
    def work(self) -> str:
        """What such kernels compute: `attention`, `matrix products`, `other kernels`."""
        return self.value if self is Part.OTHER_KERNELS else self.removesuffix(" kernels")


OF_REGION: Final[dict[str, Part]] = {
    spans.ATTENTION_KERNEL: Part.ATTENTION_KERNEL,
    spans.MODULATED_NORM: Part.NORMS,
    spans.GATED_RESIDUAL: Part.NORMS,
    spans.CROSS_NORM: Part.NORMS,
    spans.CROSS_RESIDUAL: Part.NORMS,
    spans.PATCH_EMBEDDING: Part.NORMS,
    spans.CONDITIONS: Part.NORMS,
    spans.HEAD: Part.NORMS,
    spans.RENOISE: Part.NORMS,
    spans.ATTENTION: Part.ATTENTION_AROUND,
    spans.CROSS_ATTENTION: Part.CROSS_ATTENTION,
    spans.FFN: Part.FEED_FORWARD,
}
"""Part of a region wherever it lies, inner regions first; of regions inside each other the innermost decides."""
OF_STAGE: Final[dict[str, Part]] = {
    **dict.fromkeys((spans.DENOISE_STEP, spans.COMMIT, spans.RECACHE), Part.NORMS),
    **dict.fromkeys((spans.VAE_DECODE, spans.DECODE_WAIT), Part.DECODING),
    **dict.fromkeys((spans.DRAW, spans.TEXT, spans.TEXT_KV, spans.KV_OPEN, spans.KV_SINK), Part.REST),
}
"""Part of a frame block's outermost region, for what lies in no region of `OF_REGION`."""
OF_KERNELS: Final = {
    Part.OTHER_ATTENTION: re.compile(r"flash|fmha|attn|attention|attend|sdpa", re.IGNORECASE),
    Part.MATRIX: re.compile(
        r"gemm|gemv|nvjet|cijk_|matmul|splitk|(?<![a-z])(?:add|badd|b)?mm(?![a-z])"
        r"|conv(?:ol|\dd|_|$)|(?<![a-z])(?:fprop|dgrad|wgrad)(?![a-z])|winograd",
        re.IGNORECASE,
    ),
    Part.OTHER_KERNELS: re.compile(""),
}
"""Part of a kernel that no region tells apart: the first whose pattern is in its name."""
NO_LARGEST: Final = frozenset({Part.PASS, Part.WAITING, Part.REST, Part.ENDS, Part.UNNAMED})
"""Parts that an answer does not name as the largest one: waiting for the host is told apart, the others say nothing."""
TOGETHER: Final[dict[tuple[Part, Part], str]] = {
    (Part.FOCAL, Part.SECTION): "the focal kernel and the section around it",
    (Part.ATTENTION_KERNEL, Part.ATTENTION_AROUND): "attention and the work around its kernel",
}
"""Parts of one thing, which count together where no part of it is the largest of all."""
BY_THE_CLOCK: Final = frozenset({Part.ATTENTION_KERNEL, Part.OTHER_ATTENTION, Part.FEED_FORWARD, Part.MATRIX})
"""Parts of large matrix products, whose time is taken to go with the SM clock; the others also wait for memory or the host."""
NAMELESS: Final = frozenset({Part.UNNAMED, Part.PASS})
"""Parts that do not count as explained."""
