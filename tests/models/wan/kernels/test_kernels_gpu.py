"""The kernels on a GPU beyond `kernels_on_cpu.py`: in a CUDA graph, in a compiled graph, texts at full size, far offsets."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.wan.config import WAN_1_3B, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.fused import _up_and_gelu
from strobe.models.wan.kernels import api
from strobe.models.wan.kernels.custom_ops import OPERATORS
from strobe.models.wan.layers import SelfAttention

ELEMENT = tolerance("element", "float32")
ELEMENT_BF16 = tolerance("element", "bfloat16")

pytestmark = pytest.mark.gpu
TOKENS = 3 * 30 * 52
DIM, HEADS, EPS = WAN_1_3B.dim, WAN_1_3B.num_heads, WAN_1_3B.eps


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def attention() -> SelfAttention:
    with torch.device("cuda"):
        made = SelfAttention(WAN_1_3B).to(torch.bfloat16).requires_grad_(False)
    made.norm_q.weight.copy_(1 + draw(1, DIM) / 4)
    made.norm_k.weight.copy_(1 + draw(2, DIM) / 4)
    return made


def rope(tokens: int = TOKENS) -> Tensor:
    angles = 50 * draw(3, tokens, DIM // HEADS // 2, dtype=torch.float32)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def turn(made: SelfAttention, turns: Tensor) -> api.Turn:
    return api.Turn(weight_q=made.norm_q.weight, weight_k=made.norm_k.weight, rope=turns, eps=EPS)


def test_a_matrix_product_ends_in_gelu_by_tanh() -> None:
    """In float32, where the two forms of GELU differ by far more than a rounding."""
    up = torch.nn.Linear(256, 512, device="cuda").requires_grad_(False)
    x = draw(1, 1, 64, 256, dtype=torch.float32)
    found, hidden = _up_and_gelu(up, x), up(x)
    torch.testing.assert_close(found, F.gelu(hidden, approximate="tanh"), atol=tolerance("fused layer", "float32"), rtol=ELEMENT)
    assert (found - F.gelu(hidden)).abs().max() > 1e-4
    narrow = copy.deepcopy(up).bfloat16()
    exact = F.gelu(narrow(x.bfloat16()).float(), approximate="tanh")
    torch.testing.assert_close(_up_and_gelu(narrow, x.bfloat16()).float(), exact, atol=ELEMENT_BF16, rtol=ELEMENT_BF16)


def test_a_captured_graph_follows_its_rows() -> None:
    made, turns, packed = attention(), rope(96), draw(4, 1, 96, 3 * DIM)
    keys, values = (torch.zeros(1, 200, HEADS, DIM // HEADS, dtype=packed.dtype, device="cuda") for _ in "kv")
    rows = torch.arange(96, device="cuda")
    place, how = api.CacheRows(keys=keys, values=values, rows=rows), turn(made, turns)
    table = draw(5, 1, 1, DIM)

    def call() -> Tensor:
        q = api.qk_norm_rope_write(packed, how, place, impl="triton")
        after = api.Affine(shift=table, scale=table)
        return api.add_gated_norm(q.flatten(2), packed[..., :DIM].contiguous(), table, after, EPS, impl="triton")[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    rows.copy_(torch.arange(199, 103, -1, device="cuda"))
    packed.copy_(draw(6, 1, 96, 3 * DIM))
    graph.replay()
    torch.cuda.synchronize()
    replayed, written = result.clone(), (keys.clone(), values.clone())
    keys.zero_()
    values.zero_()
    assert torch.equal(call(), replayed)
    assert torch.equal(keys[:, 104:], written[0][:, 104:]) and torch.equal(values[:, 104:], written[1][:, 104:])
    assert not keys[:, :104].any() and keys[:, 104:].any(dim=-1).all()


def folded(rows: int, tokens: int = TOKENS, *, batch: int = 1, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, ...]:
    """Queries, keys, values of a text of 512 rows, NaN behind the first `rows`, and the number of those."""
    q, k, v = (draw(seed, batch, number, HEADS, DIM // HEADS, dtype=dtype) for seed, number in ((7, tokens), (8, 512), (9, 512)))
    k[:, rows:], v[:, rows:] = float("nan"), float("nan")
    return 3 * q, k, v, torch.full((batch,), rows, dtype=torch.int32, device=q.device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [64, 100, 128, 256])
def test_attention_to_a_text_is_that_to_its_rows_written_out(rows: int, dtype: torch.dtype) -> None:
    """At full size, no further from float64 than twice what torch's attention over 512 rows is."""
    q, k, v, distinct = folded(rows, dtype=dtype)
    written = [torch.cat((each[:, :rows], each[:, rows - 1 : rows].expand(-1, 512 - rows, -1, -1)), 1) for each in (k, v)]
    found = api.text_attention(q, k, v, distinct, impl="triton")
    plain = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, *written))).transpose(1, 2)
    exact = F.scaled_dot_product_attention(*(each.double().transpose(1, 2) for each in (q, *written))).transpose(1, 2)
    errors = [(each.double() - exact).abs().max().item() for each in (found, plain)]
    assert found.dtype == dtype and errors[0] < 2 * errors[1] + 1e-5
    assert (api.text_attention(q, k, v, distinct - 1, impl="triton").double() - exact).abs().max() > 0.05


def test_a_captured_graph_follows_its_text() -> None:
    given = folded(64, 1000, batch=2)
    api.text_attention(*given, impl="triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = api.text_attention(*given, impl="triton")
    for rows in (300, 7):
        for each, other in zip(given, folded(rows, 1000, batch=2), strict=True):
            each.copy_(other)
        graph.replay()
        assert found.isfinite().all() and torch.equal(found, api.text_attention(*given, impl="triton"))


@pytest.mark.parametrize("fp8", [False, True])
def test_operators_keep_what_they_declare(fp8: bool) -> None:
    x, table, packed = draw(1, 2, 6, DIM), draw(2, 1, 2, DIM), draw(3, 2, 6, 3 * DIM)
    keys, values = (torch.zeros(2, 9, HEADS, DIM // HEADS, dtype=x.dtype, device="cuda") for _ in "kv")
    rows = torch.tensor([4, 0, -1, 8, 5, 1], device="cuda")
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(OPERATORS["norm"], (x, x, table, table, table, True, EPS, fp8, "triton"), test_utils=tests)
    torch.library.opcheck(OPERATORS["gelu_quantize"], (x, "triton"), test_utils=tests)
    weight = table[0, 0]
    torch.library.opcheck(OPERATORS["rms_norm"], (x, weight, EPS, "triton"), test_utils=tests)
    torch.library.opcheck(OPERATORS["turn"], (packed, weight, weight, rope(6), HEADS, EPS, "triton"), test_utils=tests)
    written = (packed, weight, weight, rope(6), keys, values, rows, EPS, "triton")
    torch.library.opcheck(OPERATORS["turn_and_write"], written, test_utils=tests)
    torch.library.opcheck(OPERATORS["text_attention"], (*folded(64, 70), "triton"), test_utils=tests)
    torch.library.opcheck(OPERATORS["turn_keys"], (keys[None], rope(1)[0], values[None], "triton"), test_utils=tests)


def test_a_compiled_pass_is_the_eager_one() -> None:
    """Two layers, no cache: kernels are operators of one whole graph."""
    config = WanConfig(dim=384, ffn_dim=512, num_heads=3, num_layers=2, text_dim=64, text_len=16)
    torch.manual_seed(0)
    dit = CausalWan(config).to("cuda", torch.bfloat16).requires_grad_(False)
    fused = copy.deepcopy(dit)
    fused.fuse_qkv()
    fused.use_kernels()
    x = draw(1, 1, 3, 16, 16, 32, dtype=torch.float32)
    at, exact = torch.tensor([[500.0]], device="cuda"), copy.deepcopy(dit).float()
    given = dit.modulation(at), dit.text_kv(draw(2, 1, 7, 64)), dit.rope((0, 1, 2), dit.grid(x))
    wide = exact.modulation(at), exact.text_kv(draw(2, 1, 7, 64).float()), given[2]
    truth, plain, found = exact(x, *wide), dit(x, *given), fused(x, *given)
    assert (found.float() - truth).square().mean() < 1.3 * (plain.float() - truth).square().mean()
    compiled = torch.compile(fused, fullgraph=True)(x, *given)
    assert (compiled.float() - truth).square().mean() < 1.3 * (plain.float() - truth).square().mean()


@pytest.mark.large
def test_offsets_beyond_two_to_the_31() -> None:
    rows = 2**31 // DIM + 3
    x = torch.zeros(1, rows, DIM, dtype=torch.bfloat16, device="cuda")
    x[:, -2:] = draw(1, 1, 2, DIM)
    weight = draw(2, DIM)
    tail = x[:, -2:].clone()
    assert torch.equal(api.rms_norm(x, weight, EPS, impl="triton")[:, -2:], api.rms_norm(tail, weight, EPS, impl="triton"))
    after = api.Affine(shift=weight.view(1, 1, -1), scale=weight.view(1, 1, -1))
    found, expected = (api.add_gated_norm(each, each, None, after, EPS, impl="triton") for each in (x, tail))
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got[:, -2:], want)
    q, (_, k, v, distinct) = x.view(1, rows, HEADS, -1), folded(64)
    far, near = (api.text_attention(each, k, v, distinct, impl="triton") for each in (q, tail.view(1, 2, HEADS, -1)))
    assert torch.equal(far[:, -2:], near)
    turns, last = rope(1)[0], tail.view(1, 1, 2, HEADS, -1)
    for each in (x.view(1, 1, rows, HEADS, -1), last):
        api.turn_keys(each, turns, each, impl="triton")
    assert torch.equal(x[:, -2:], last.view_as(tail)) and not torch.equal(last.view_as(tail), x[:, :2])
