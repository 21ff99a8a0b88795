"""FLOPs and bytes of a shape, and peak rates of devices. Plain ints, no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from strobe.core.errors import ConfigError, ShapeError
from strobe.core.shapes import LatentShape, VaeStride

DTYPE_BYTES: Final[dict[str, int]] = {
    "float64": 8,
    "float32": 4,
    "tfloat32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
    "int8": 1,
}
"""Bytes of an element by canonical name. `tfloat32` is float32 in memory, multiplied in TF32."""

_SPELLINGS: Final = (
    (r"float64|fp64|f64|double", "float64"),
    (r"tfloat32|tf32", "tfloat32"),
    (r"float32|fp32|f32|float", "float32"),
    (r"bfloat16|bf16", "bfloat16"),
    (r"float16|fp16|f16|half", "float16"),
    (r"float8\w*|fp8\w*|f8\w*", "float8"),
    (r"int8|i8|signed char|char", "int8"),
)


def parse_dtype(name: str) -> str | None:
    """Return the canonical name of a dtype, a key of `DTYPE_BYTES`; None if the spelling is unknown.

    Spellings are those of torch (`torch.bfloat16`), of traces (`c10::BFloat16`) and of people (`bf16`).
    """
    word = re.sub(r"^(torch\.|c10::)", "", name.strip(), flags=re.IGNORECASE)
    return next((dtype for pattern, dtype in _SPELLINGS if re.fullmatch(pattern, word, re.IGNORECASE)), None)


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element."""
    known = parse_dtype(dtype)
    if known is None:
        raise ConfigError(f"unknown dtype {dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[known]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """FLOPs and bytes of an operation; costs add, and multiply with a number of calls.

    Args:
        flops: floating-point operations of matrix products and convolutions.
        read_bytes: bytes that must be read at least.
        write_bytes: bytes that must be written at least.
    """

    flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            flops=self.flops + other.flops,
            read_bytes=self.read_bytes + other.read_bytes,
            write_bytes=self.write_bytes + other.write_bytes,
        )

    def __mul__(self, calls: int) -> Cost:
        return Cost(flops=self.flops * calls, read_bytes=self.read_bytes * calls, write_bytes=self.write_bytes * calls)

    __rmul__ = __mul__


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 0:
            raise ShapeError(f"{name}: got {size}, a size is 0 or more")


# ----------------------------------------------------------------------------------------------------------- operations


def matmul(m: int, k: int, n: int, *, dtype: str, batch: int = 1) -> Cost:
    """Compute the cost of `batch` products `[m, k] @ [k, n]`: `2 m k n` FLOPs each."""
    _check(m=m, k=k, n=n, batch=batch)
    size = element_bytes(dtype)
    return Cost(flops=2 * batch * m * k * n, read_bytes=batch * (m * k + k * n) * size, write_bytes=batch * m * n * size)


def linear(tokens: int, in_features: int, out_features: int, *, dtype: str, bias: bool = True) -> Cost:
    """Compute the cost of `x [tokens, in] @ W [in, out] (+ b)`: `2 tokens in out` FLOPs."""
    cost = matmul(tokens, in_features, out_features, dtype=dtype)
    return cost + Cost(read_bytes=out_features * element_bytes(dtype) if bias else 0)


def elementwise(elements: int, *, dtype: str, inputs: int = 1, outputs: int = 1) -> Cost:
    """Compute the cost of a fused pass over `elements`: `inputs` tensors read, `outputs` written, no FLOPs of matrix products."""
    _check(elements=elements, inputs=inputs, outputs=outputs)
    size = element_bytes(dtype)
    return Cost(read_bytes=inputs * elements * size, write_bytes=outputs * elements * size)


def norm(tokens: int, dim: int, *, dtype: str) -> Cost:
    """Compute the cost of a norm over the last axis with its affine part fused: every element read and written once."""
    return elementwise(tokens * dim, dtype=dtype) + Cost(read_bytes=2 * dim * element_bytes(dtype))


def conv(
    positions: int, in_channels: int, out_channels: int, *, taps: int, dtype: str, inputs: int | None = None, bias: bool = True
) -> Cost:
    """Compute the cost of a convolution with `taps` weights per channel pair (27 for 3x3x3): `2 positions in out taps` FLOPs.

    Args:
        positions: of the output.
        inputs: positions of the input; default: as many.
        bias: whether one number per output channel is added.
    """
    _check(positions=positions, in_channels=in_channels, out_channels=out_channels, taps=taps)
    size = element_bytes(dtype)
    given = positions if inputs is None else inputs
    weights = in_channels * out_channels * taps + (out_channels if bias else 0)
    return Cost(
        flops=2 * positions * in_channels * out_channels * taps,
        read_bytes=(given * in_channels + weights) * size,
        write_bytes=positions * out_channels * size,
    )


# ------------------------------------------------------------------------------------------------------------ attention


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """One attention call over `[B, S, H, D]`.

    Args:
        q_tokens, kv_tokens: length of the queries, of the keys and values.
        num_kv_heads: heads of keys and values; default: as many as of the queries.
    """

    q_tokens: int
    kv_tokens: int
    num_heads: int
    head_dim: int
    batch: int = 1
    num_kv_heads: int | None = None

    @property
    def pairs(self) -> int:
        """Number of (query token, key token) pairs of a dense call, over all heads and samples."""
        return self.batch * self.num_heads * self.q_tokens * self.kv_tokens


def attention(shape: AttentionShape, *, dtype: str, pairs: int | None = None) -> Cost:
    """Compute the cost of fused attention: `4 D` FLOPs for every pair of query and key token that meet (two products of `2 D`).

    Args:
        pairs: pairs computed, over all heads and samples. None: dense, all of them. Bytes are those of the dense call: a sparse
            one reads no more, and which keys nobody selected is not known from the count.

    Raises:
        ShapeError: more pairs than a dense call has.
    """
    dense = shape.pairs
    computed = dense if pairs is None else pairs
    if not 0 <= computed <= dense:
        raise ShapeError(f"pairs: got {computed}, a dense call of this shape has {dense}")
    size = element_bytes(dtype)
    kv_heads = shape.num_heads if shape.num_kv_heads is None else shape.num_kv_heads
    queries = shape.batch * shape.q_tokens * shape.num_heads * shape.head_dim
    keys = shape.batch * shape.kv_tokens * kv_heads * shape.head_dim
    return Cost(flops=4 * shape.head_dim * computed, read_bytes=(queries + 2 * keys) * size, write_bytes=queries * size)


def attention_backward(shape: AttentionShape, *, dtype: str, pairs: int | None = None) -> Cost:
    """Compute the cost of attention's gradients: `10 D` FLOPs per pair that meets (scores again, and four gradients, `2 D` each).

    Bytes: queries, keys, values, the output and its gradient are read, three gradients are written.
    """
    forward = attention(shape, dtype=dtype, pairs=pairs)
    queries = forward.write_bytes
    return Cost(flops=forward.flops // 2 * 5, read_bytes=forward.read_bytes + 2 * queries, write_bytes=forward.read_bytes)


def kv_write(tokens: int, num_heads: int, head_dim: int, *, dtype: str) -> Cost:
    """Compute the cost of writing new keys and values to a cache: both are read once and written once."""
    return elementwise(2 * tokens * num_heads * head_dim, dtype=dtype)


def kv_read(tokens: int, num_heads: int, head_dim: int, *, dtype: str) -> Cost:
    """Compute the cost of reading the keys and values of a window once, as the attention kernel does."""
    return Cost(read_bytes=2 * tokens * num_heads * head_dim * element_bytes(dtype))


_TERA: Final = 10**12
_GIGA: Final = 10**9
_MEGA: Final = 2**20
_H100: Final = "NVIDIA H100"
_HALVED: Final = "sparse figures halved"
_BLACKWELL: Final = "NVIDIA Blackwell architecture brief and HGX B200 datasheet, the larger where they differ"
_AMD: Final = "AMD Instinct MI300X data sheet, matrix; cache: Infinity Cache"
_MI300X: Final = ("Instinct MI300X", "Instinct MI300X VF", "Instinct MI300X OAM")


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePeaks:
    """Peak rates of one device.

    Args:
        reported_as: names under which torch, drivers and traces report it, with or without the maker's prefix.
        bandwidth_bytes_per_s: of the device memory, bytes/s.
        cache_bytes: last-level cache; what fits into it may be read faster than from the memory.
        flops_per_s: dense matrix peak by canonical dtype, FLOP/s, accumulated in float32 where the device has that choice;
            `float32` is without tensor cores; a dtype that the device does not have is absent.
        clock_mhz: SM clock at which the matrix peaks hold: peak / (SMs x FLOPs of an SM in a cycle), MHz; None: not known.
    """

    name: str
    reported_as: tuple[str, ...]
    bandwidth_bytes_per_s: int
    cache_bytes: int
    flops_per_s: dict[str, int]
    source: str
    clock_mhz: int | None = None

    def peak_flops_per_s(self, dtype: str) -> int | None:
        """Return the peak of a dtype in any spelling, FLOP/s; None if the device (or this table) has none."""
        known = parse_dtype(dtype)
        return None if known is None else self.flops_per_s.get(known)


_NAMES: Final = ("bfloat16", "float16", "tfloat32", "float32", "float8")
_A100: Final = (312, 156, 19.5)
# Name, other names, GB/s of the memory, MiB of cache, peaks in TFLOP/s (of both 16-bit types, tfloat32, float32, float8), source.
_TABLE: Final[tuple[tuple[str, tuple[str, ...], int, int, tuple[float, ...], str], ...]] = (
    ("H100 SXM", ("H100 80GB HBM3",), 3352, 50, (989.4, 494.7, 66.9, 1978.9), f"{_H100} Tensor Core GPU Architecture, H100 SXM5"),
    ("H100 PCIe", ("H100 PCIe",), 2039, 50, (756, 378, 51.2, 1513), f"{_H100} Tensor Core GPU Architecture, H100 PCIe"),
    ("H100 NVL", ("H100 NVL",), 3900, 50, (835.5, 417.5, 60, 1671), f"{_H100} datasheet, H100 NVL; {_HALVED}"),
    ("H200 SXM", ("H200",), 4800, 50, (989.5, 494.5, 67, 1979), f"NVIDIA H200 datasheet, H200 SXM; {_HALVED}"),
    ("H200 NVL", ("H200 NVL",), 4800, 50, (835.5, 417.5, 60, 1670.5), f"NVIDIA H200 datasheet, H200 NVL; {_HALVED}"),
    ("A100 40GB", ("A100-SXM4-40GB", "A100-PCIE-40GB"), 1555, 40, _A100, "NVIDIA A100 datasheet, 40 GB"),
    ("A100 80GB SXM", ("A100-SXM4-80GB",), 2039, 40, _A100, "NVIDIA A100 datasheet, 80 GB SXM"),
    ("A100 80GB PCIe", ("A100 80GB PCIe",), 1935, 40, _A100, "NVIDIA A100 datasheet, 80 GB PCIe"),
    ("B200", ("B200",), 8000, 126, (2250, 1125, 80, 4500), f"{_BLACKWELL}; {_HALVED}"),
    ("L40S", ("L40S",), 864, 96, (362.05, 183, 91.6, 733), "NVIDIA L40S datasheet"),
    ("RTX 4090", ("GeForce RTX 4090",), 1008, 72, (165.2, 82.6, 82.6, 330.3), "NVIDIA Ada GPU Architecture, appendix A"),
    ("MI300X", _MI300X, 5300, 256, (1307.4, 653.7, 163.4, 2614.9), _AMD),
)
_CLOCKS_MHZ: Final = {"H100 SXM": 1830, "H200 SXM": 1830}  # 989.4 TFLOP/s / (132 SMs x 4096 FLOPs)
DEVICES: Final = tuple(
    DevicePeaks(
        name=name,
        reported_as=reported_as,
        bandwidth_bytes_per_s=bandwidth * _GIGA,
        cache_bytes=cache * _MEGA,
        flops_per_s={dtype: round(peak * _TERA) for dtype, peak in zip(_NAMES, (peaks[0], *peaks), strict=False)},
        source=source,
        clock_mhz=_CLOCKS_MHZ.get(name),
    )
    for name, reported_as, bandwidth, cache, peaks, source in _TABLE
)

_PREFIXES: Final = ("NVIDIA ", "AMD ")


def device_peaks(name: str) -> DevicePeaks | None:
    """Return the peaks of a device by its short name or the one that torch, a driver or a trace reports; None if it is unknown.

    Never a guess: a slice of a device (`... MIG 1g.10gb`), a sibling or an engineering name is unknown.
    """
    word = " ".join(name.split())
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    return next((device for device in DEVICES if word in (device.name, *device.reported_as)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerShape:
    """Sizes of a video transformer with self-attention over a cache, cross-attention to a text and a feed-forward.

    Args:
        name: what a user calls it.
        num_layers, dim, ffn_dim, num_heads: of the transformer; a head has `dim / num_heads` channels.
        text_tokens: tokens attended in cross-attention, padding included.
        patch: latent cells per token, height and width.
        stride: pixels per latent cell and frames per latent frame.
        frame_block: latent frames made at a time.
    """

    name: str
    num_layers: int
    dim: int
    ffn_dim: int
    num_heads: int
    text_tokens: int
    latent_channels: int
    patch: tuple[int, int]
    stride: VaeStride
    frame_block: int

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    def tokens_per_frame(self, height: int, width: int) -> int:
        """Return the tokens of one latent frame of a video of `height` x `width` pixels.

        Raises:
            ShapeError: the size is not a multiple of stride and patch.
        """
        rows, columns = self.stride.latent_size(height, width)
        latent = LatentShape(frames=1, channels=self.latent_channels, height=rows, width=columns)
        return latent.token_grid(self.patch).num_tokens


WAN_1_3B: Final = TransformerShape(
    name="wan-1.3b",
    num_layers=30,
    dim=1536,
    ffn_dim=8960,
    num_heads=12,
    text_tokens=512,
    latent_channels=16,
    patch=(2, 2),
    stride=VaeStride(time=4, space=8),
    frame_block=3,
)
"""Wan2.1-T2V-1.3B, config.json; frame_block: Self-Forcing, configs/self_forcing_dmd.yaml (num_frame_per_block)."""
WAN_14B: Final = replace(WAN_1_3B, name="wan-14b", num_layers=40, dim=5120, ffn_dim=13824, num_heads=40)
"""Wan2.1-T2V-14B, config.json; frame_block: krea-realtime-video (3 latent frames)."""
TRANSFORMERS: Final[dict[str, TransformerShape]] = {shape.name: shape for shape in (WAN_1_3B, WAN_14B)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PassShape:
    """One pass of a transformer over a frame block (or, for a recache, over a window).

    Args:
        q_tokens: tokens computed.
        kv_tokens: tokens attended in self-attention, those of the pass included.
        batch: samples in lockstep.
        dtype: of weights, activations and cache.
        pairs: (query, key) token pairs of self-attention in one layer, over heads and samples; None: dense.
        last_layer_kv_only: a commit pass whose last layer computes keys and values and nothing else.
    """

    q_tokens: int
    kv_tokens: int
    batch: int = 1
    dtype: str = "bfloat16"
    pairs: int | None = None
    last_layer_kv_only: bool = False


PassParts = dict[str, tuple[int, Cost]]
"""Kinds of operation in a pass: how often each is called, and the cost of a call."""


def total(parts: PassParts) -> Cost:
    """Add parts up."""
    return sum((each * calls for calls, each in parts.values()), Cost())


def transformer_pass(shape: TransformerShape, one: PassShape) -> PassParts:
    """Compute the cost of one pass, part by part, without text keys and values and the time path, which are computed once.

    FLOPs of a layer: linears `8 S d^2` (self), `4 S d^2` (cross) and `4 S d f` (feed-forward), attention `4 S K d` and `4 S L d`.
    """
    rows, dim, dtype = one.batch * one.q_tokens, shape.dim, one.dtype
    full = shape.num_layers - one.last_layer_kv_only
    own = AttentionShape(
        batch=one.batch, q_tokens=one.q_tokens, kv_tokens=one.kv_tokens, num_heads=shape.num_heads, head_dim=shape.head_dim
    )
    text = replace(own, kv_tokens=shape.text_tokens)
    latents = shape.patch[0] * shape.patch[1] * shape.latent_channels
    square = linear(rows, dim, dim, dtype=dtype)
    parts = {
        "patch_embedding": (1, linear(rows, latents, dim, dtype=dtype)),
        "modulated_norm": (2 * full, norm(rows, dim, dtype=dtype)),
        "qkv_projection": (full, linear(rows, dim, 3 * dim, dtype=dtype)),
        "qk_norm_rope": (full, elementwise(2 * rows * dim, dtype=dtype)),
        "kv_write": (shape.num_layers, kv_write(rows, shape.num_heads, shape.head_dim, dtype=dtype)),
        "attention_kernel": (full, attention(own, dtype=dtype, pairs=one.pairs)),
        "output_projection": (full, square),
        "gated_residual": (2 * full, elementwise(rows * dim, inputs=2, dtype=dtype)),
        "cross_norm": (2 * full, norm(rows, dim, dtype=dtype)),
        "cross_projection": (2 * full, square),
        "cross_attention_kernel": (full, attention(text, dtype=dtype)),
        "cross_residual": (full, elementwise(rows * dim, inputs=2, dtype=dtype)),
        "ffn_up": (full, linear(rows, dim, shape.ffn_dim, dtype=dtype)),
        "ffn_activation": (full, elementwise(rows * shape.ffn_dim, dtype=dtype)),
        "ffn_down": (full, linear(rows, shape.ffn_dim, dim, dtype=dtype)),
    }
    if one.last_layer_kv_only:
        last_qk = elementwise(rows * dim, dtype=dtype)
        kv = norm(rows, dim, dtype=dtype) + linear(rows, dim, 2 * dim, dtype=dtype) + last_qk
        return parts | {"last_layer_kv": (1, kv)}
    head = norm(rows, dim, dtype=dtype) + linear(rows, dim, latents, dtype=dtype)
    return parts | {"head": (1, head)}


# ---------------------------------------------------------------------------------------------------------- VAE decoder


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoDecoderShape:
    """Sizes of a causal 3-D convolutional decoder that doubles height and width between its levels.

    Args:
        width: channels of the last level; level i has `width * multipliers[-1 - i]`.
        residual_blocks: per level, plus one.
        doubles_time: after which level the number of frames doubles too; the last level doubles nothing.
        halves_channels: where height and width double, channels are halved.
        out_channels: of the last convolution.
    """

    width: int
    latent_channels: int
    multipliers: tuple[int, ...]
    residual_blocks: int
    doubles_time: tuple[bool, ...]
    halves_channels: bool = True
    out_channels: int = 3


def vae_decode(shape: VideoDecoderShape, latent: LatentShape, *, dtype: str) -> Cost:
    """Compute the cost of decoding `latent.frames` latent frames, none of them a video's first.

    Convolutions and the one attention over a frame of latents count; norms, activations and upsampling move bytes that a fused
    kernel would not and are left out.
    """
    frames, height, width = latent.frames, latent.height, latent.width
    widths = [shape.width * factor for factor in (shape.multipliers[-1], *reversed(shape.multipliers))]
    cells = frames * height * width
    deep = widths[0]
    cost = conv(cells, shape.latent_channels, shape.latent_channels, taps=1, dtype=dtype)
    cost += conv(cells, shape.latent_channels, deep, taps=27, dtype=dtype)
    cost += 2 * _residual_block(cells, deep, deep, dtype)
    own = AttentionShape(batch=frames, q_tokens=height * width, kv_tokens=height * width, num_heads=1, head_dim=deep)
    cost += linear(cells, deep, 3 * deep, dtype=dtype) + attention(own, dtype=dtype) + linear(cells, deep, deep, dtype=dtype)
    channels = deep
    for level, out in enumerate(widths[1:]):
        cost += _residual_block(cells, channels, out, dtype) + shape.residual_blocks * _residual_block(cells, out, out, dtype)
        channels = out
        if level < len(shape.doubles_time):
            if shape.doubles_time[level]:
                cost += conv(cells, out, 2 * out, taps=3, dtype=dtype)
                cells *= 2
            cells, channels = 4 * cells, out // 2 if shape.halves_channels else out
            cost += conv(cells, out, channels, taps=9, dtype=dtype)
    return cost + conv(cells, channels, shape.out_channels, taps=27, dtype=dtype)


def _residual_block(cells: int, given: int, out: int, dtype: str) -> Cost:
    cost = conv(cells, given, out, taps=27, dtype=dtype) + conv(cells, out, out, taps=27, dtype=dtype)
    return cost + conv(cells, given, out, taps=1, dtype=dtype) if given != out else cost
