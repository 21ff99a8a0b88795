"""Attention processors that take the place of a model's own in the layers that `sparsify` makes sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_ltx2 import apply_interleaved_rotary_emb, apply_split_rotary_emb
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as collectives

from strobe.attention.dense.api import dense_attention, explain_dense
from strobe.attention.impls import Choice
from strobe.attention.sparse.coarse import budget, forced_blocks, share_held
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.tiled import rotate
from strobe.attention.sparse.video import explain_video, video_sparse_attention
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput, traced
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError
from strobe.integrations.diffusers.forward import Pass, Rope, Seen, SparseOptions, Triple, grid_of


def _of_replaced(name: str) -> Any:
    """Return a property that is read from, and set on, the processor that was replaced."""
    return property(lambda self: getattr(self.replaced, name), lambda self, value: setattr(self.replaced, name, value))


def _of_the_transformer(attend: Callable[..., Any]) -> Any:
    """Let the processor that is replaced compute calls of threads other than the one that calibrates: they begin no pass."""

    @wraps(attend)
    def called(self: SparseProcessor, attn: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.options.thread is not None and not any(isinstance(each, Pass) for each in (*args, *kwargs.values())):
            given = {name: value for name, value in kwargs.items() if value is not None}  # not every one of them takes all
            return self.replaced(attn, hidden_states, *args, **given)
        return attend(self, attn, hidden_states, *args, **kwargs)

    return called


class SparseProcessor:
    """The common part of every family's processor: its layer, the processor it replaces, and the attention of a video.

    What diffusers sets on a processor, backend and parallelism, is kept by the one it replaces, and is there when that is put
    back. The backend counts for the other layers alone.

    All layers of a model share one compiled graph. A compiler guards on what a forward reads. So a forward reads no value that
    differs by layer, such as the name; only errors read it, and recalls, which are measured uncompiled.

    Args:
        name: of the layer, as `attn_processors` spells it.
        replaced: the processor in whose place this stands.
        seen: facts of the passes so far, which `explain` takes the grid from.
        dense: the layer is dense in every step.
    """

    def __init__(self, name: str, replaced: Any, options: SparseOptions, seen: Seen, *, dense: bool) -> None:
        self.name, self.replaced, self.options, self.seen, self.dense = name, replaced, options, seen, dense
        self.gate_owner: Any = None  # what holds `to_gate_compress`; None without a trained gate

    _attention_backend = _of_replaced("_attention_backend")
    _parallel_config = _of_replaced("_parallel_config")

    @property
    def split(self) -> bool:
        """Whether the tokens are split over several processes (context parallelism)."""
        parallel = self._parallel_config
        return bool(parallel is not None and parallel.context_parallel_config is not None)

    @property
    def _group(self) -> Any:
        return self._parallel_config.context_parallel_config._flattened_mesh.get_group()

    @staticmethod
    def rope_of(pair: tuple[Any, ...]) -> tuple[Any, ...]:
        """Convert the rotary embedding of a forward pass, once for all layers, to what they take."""
        return pair

    @property
    def usual_sparsity(self) -> float:
        """Share of the key tiles that are skipped in the steps that are not dense as a whole; with a calibration their mean."""
        if self.dense:
            return 0.0
        return self.options.sparsity if self.options.kept is None else fmean(self._usual_skipped())

    def _usual_skipped(self) -> tuple[float, ...]:
        """Share of the key tiles that each head skips by a calibration, mean over steps."""
        assert self.options.kept is not None
        by_step = (step[self.name] for step in self.options.kept.values())
        return tuple(1 - fmean(numbers) / self.options.tiles for numbers in zip(*by_step, strict=True))

    def sparsity_in(self, running: Pass) -> float:
        """Share of the key tiles that are skipped in a forward pass, mean over heads."""
        if running.dense or self.dense:
            return 0.0
        return self.options.sparsity if running.selected is None else 1 - fmean(running.selected[self.name]) / self.options.tiles

    def measure(self, q: Tensor, k: Tensor, running: Pass) -> None:
        """Add what the first key tiles of each selection hold to a calibration, if one is running.

        Raises:
            ConfigError: the tokens are split over several processes.
        """
        if running.held is None:
            return
        if self.split:
            raise ConfigError(f"{self.name}: calibrate measures in one process; the file that it writes serves several")
        layout = tile_layout(running.grid, self.options.tile)
        with torch.no_grad():
            found = share_held(q, k, layout, forced_blocks(self.options.forced, layout, layout, (layout.num_tiles,))).cpu()
        running.held[self.name] = running.held[self.name] + found if self.name in running.held else found

    def pass_of(self, rotary_emb: Any, text: Tensor | None = None, mask: Tensor | None = None) -> Pass:
        """Return the forward pass that an argument of the layer holds.

        Raises:
            ConfigError: the layer is called outside of its transformer's forward, or given other tokens to attend to.
            ImplUnavailableError: it is given a mask of pairs of tokens.
        """
        if mask is not None:
            why = f"{self.name} is given a mask of pairs of tokens; restore() the pipeline for such calls"
            raise ImplUnavailableError("sparse attention", why, what="impl")
        if text is not None:
            raise ConfigError(
                f"{self.name}: a layer of self-attention was given other tokens to attend to; restore() the pipeline first"
            )
        if not isinstance(rotary_emb, Pass):
            raise ConfigError(
                f"{self.name}: no grid of tokens is known; call the transformer, or the pipeline, not a layer of it"
            )
        return rotary_emb

    def gate(self, hidden_states: Tensor, heads: int) -> Tensor | None:
        """Compute the weight of the coarse output, `[B, S, H, D]`; None without a trained gate.

        Raises:
            ShapeError: the gate's weights are on another device than the tokens.
        """
        if self.gate_owner is None:
            return None
        layer: nn.Module = self.gate_owner.to_gate_compress
        weight = getattr(layer, "weight", None)
        hooked = hasattr(layer, "_hf_hook") or hasattr(layer, "_diffusers_hook")  # such a layer is moved when it is called
        if weight is not None and weight.device != hidden_states.device and not hooked:
            raise ShapeError(
                f"{self.name}: the gate is on {weight.device}, the tokens are on {hidden_states.device}; "
                "move the whole pipeline with pipe.to(...)"
            )
        return heads_apart(layer(hidden_states), heads)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        running: Pass,
        *,
        gate: Tensor | None = None,
        rope: Rope | None = None,
        return_lse: bool = False,
    ) -> AttentionOutput:
        """Attend among a video's tokens, `[B, S, H, D]`, across the processes of context parallelism too.

        Args:
            rope: (cos, sin), each `[S, D / 2]`, of the tokens of this process; rotates pairs of channels.
        """
        if q.dtype != v.dtype or k.dtype != v.dtype:  # autocast computes norms in float32
            q, k = q.to(v.dtype), k.to(v.dtype)
        exchange = None
        if self.split:
            t, h, w = running.grid
            exchange = HeadExchange(self._group, t * h * w, q.shape[2])
        sparsity = self.sparsity_in(running)
        dense = sparsity == 0 and gate is None
        whole = () if dense else running.dense_rows
        if rope is not None and (dense or whole or exchange is not None):
            (q, k), rope = rotate(q, k, rope), None
        if exchange is not None:
            q, k, v = (exchange.scatter_heads(each) for each in (q, k, v))
            gate = None if gate is None else exchange.scatter_heads(gate)
        if dense:
            self.measure(q, k, running)
            found = dense_attention(q, k, v, return_lse=return_lse)
        else:
            sparse = video_sparse_attention(
                q, k, v, gate=gate, rope=rope, return_lse=return_lse, probe=running.queries,
                **self._wanted(running, q.shape[2]), **self._options(running.grid),
            )  # fmt: skip
            if sparse.recall is not None:
                running.recalls.setdefault(self.name, []).append(sparse.recall)
            found = AttentionOutput(out=sparse.out, lse=sparse.lse)
        if whole:
            found = _with_dense(found, q, k, v, whole)
        return found if exchange is None else AttentionOutput(out=exchange.gather_heads(found.out), lse=None)

    def _options(self, grid: Triple) -> dict[str, Any]:
        """Return the arguments of `video_sparse_attention` that are the same in every pass over a grid."""
        own = self.options
        return {"grid": grid, "tile": own.tile, "forced": own.forced, "impl": own.impl, "pool_skipped": own.pool_skipped}

    def _wanted(self, running: Pass, heads: int) -> dict[str, Any]:
        """Say how many key tiles the heads of this process see, as `video_sparse_attention` takes it."""
        if running.selected is None:
            return {"sparsity": self.sparsity_in(running)}
        numbers = running.selected[self.name]
        if self.split:
            first = dist.get_rank(self._group) * heads
            numbers = numbers[first : first + heads]
        return {"topk": numbers}

    def explain(self, attn: nn.Module, grid: Triple | None = None) -> Choice[Any]:
        """Say which implementation the layer would run, and why each other was passed over. Nothing runs.

        Args:
            grid: tokens in time, height and width; by default those of the last forward.
        """
        grid = self.seen.grid if grid is None else grid_of(grid)
        if grid is None:
            raise ConfigError(f"{self.name}: no grid of tokens is known; give grid=(T, H, W), or run the pipeline first")
        options = self.options
        with FakeTensorMode():
            q = torch.empty(
                (1, grid[0] * grid[1] * grid[2], *heads_of(attn)), dtype=dtype_of(attn), device=self.seen.device or "cpu"
            )
        if self.usual_sparsity == 0 and self.gate_owner is None:
            return explain_dense(q, q, q)
        given: dict[str, Any] = {"sparsity": self.usual_sparsity}
        if options.kept is not None:
            tiles = tile_layout(grid, options.tile).num_tiles
            given = {"topk": tuple(budget(None, skipped, 1, tiles)[0] for skipped in self._usual_skipped())}
        return explain_video(q, q, q, gate=None if self.gate_owner is None else q, **self._options(grid), **given)


def _with_dense(found: AttentionOutput, q: Tensor, k: Tensor, v: Tensor, whole: tuple[tuple[int, int], ...]) -> AttentionOutput:
    """Replace rows of sparse attention, the runs of `whole`, by dense attention of their queries, in one call.

    The selection stays as it is: with another number of tiles for these rows no call would be prepared, and fast kernels not run.
    """
    asking = torch.cat([q[:, begin:end] for begin, end in whole], dim=1)
    dense = dense_attention(asking, k, v, return_lse=found.lse is not None)
    outs, lses, at, done = [], [], 0, 0
    for begin, end in whole:
        outs += [found.out[:, at:begin], dense.out[:, done : done + end - begin]]
        if found.lse is not None and dense.lse is not None:
            lses += [found.lse[:, :, at:begin], dense.lse[:, :, done : done + end - begin]]
        at, done = end, done + end - begin
    out = torch.cat([*outs, found.out[:, at:]], dim=1)
    return AttentionOutput(out=out, lse=None if found.lse is None else torch.cat([*lses, found.lse[:, :, at:]], dim=2))


def heads_of(attn: nn.Module) -> tuple[int, int]:
    """Return the number of heads of an attention module and the channels of one."""
    heads: Any = attn.heads
    inner: Any = attn.inner_dim
    return heads, inner // heads


def heads_apart(tensor: Tensor, heads: int) -> Tensor:
    """Return `[B, S, dim]` as `[B, S, H, D]`; of an eager call `view` takes less of the host's time than `unflatten`."""
    batch, rows, width = tensor.shape
    return tensor.view(batch, rows, heads, width // heads)


def dtype_of(attn: nn.Module) -> torch.dtype:
    """Return the dtype that an attention module computes in: that of its norms, which no quantiser changes."""
    norm: Any = attn.norm_q
    weight = getattr(norm, "weight", None)
    if weight is None:  # a norm without weights
        weight = next(attn.parameters())
    dtype: torch.dtype = weight.dtype
    return dtype


class WanProcessor(SparseProcessor):
    """Self-attention of Wan: one projection or three, RMS norms over all heads, rope by pairs of channels."""

    @staticmethod
    def rope_of(pair: tuple[Any, ...]) -> tuple[Any, ...]:
        """Convert rotations `[1, S, 1, D]`, every angle twice, to (cos, sin), each `[S, D / 2]`.

        Under a compiler they are views, so that no compiled layer copies them in a kernel of its own.
        """
        cos, sin = pair[0][0, :, 0, 0::2], pair[1][0, :, 0, 1::2]
        return (cos, sin) if traced() else (cos.contiguous(), sin.contiguous())

    @_of_the_transformer
    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: Any = None,
    ) -> Tensor:
        """Return `[B, S, dim]`, as the processor that it replaces."""
        running = self.pass_of(rotary_emb, encoder_hidden_states, attention_mask)
        if attn.fused_projections:
            q, k, v = attn.to_qkv(hidden_states).chunk(3, dim=-1)
        else:
            q, k, v = attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)
        heads = attn.heads
        q, k, v = heads_apart(attn.norm_q(q), heads), heads_apart(attn.norm_k(k), heads), heads_apart(v, heads)
        out = self.attend(q, k, v, running, gate=self.gate(hidden_states, heads), rope=running.rope).out
        found: Tensor = attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))
        return found


class LTX2Processor(SparseProcessor):
    """Self-attention of LTX-2's video: rope interleaved or split, gates per head after attention, perturbation."""

    @_of_the_transformer
    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        query_rotary_emb: Any = None,
        key_rotary_emb: Rope | None = None,
        perturbation_mask: Tensor | None = None,
        all_perturbed: bool | Tensor | None = None,
    ) -> Tensor:
        """Return `[B, S, dim]`, as either of the two processors that it replaces."""
        running = self.pass_of(query_rotary_emb, encoder_hidden_states, attention_mask)
        heads = attn.heads
        value = attn.to_v(hidden_states)
        if all_perturbed is None:
            all_perturbed = perturbation_mask is not None and torch.all(perturbation_mask == 0)
        if all_perturbed:  # the values are the result
            out = heads_apart(value, heads)
        else:
            q, k = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(hidden_states))
            turn = apply_interleaved_rotary_emb if attn.rope_type == "interleaved" else apply_split_rotary_emb
            q, k = turn(q, running.rope), turn(k, running.rope if key_rotary_emb is None else key_rotary_emb)
            q, k, v = heads_apart(q, heads), heads_apart(k, heads), heads_apart(value, heads)
            out = self.attend(q, k, v, running, gate=self.gate(hidden_states, heads)).out
            if perturbation_mask is not None:
                out = torch.lerp(v, out, perturbation_mask.unsqueeze(-1))
        if attn.to_gate_logits is not None:
            out = out * (2.0 * torch.sigmoid(attn.to_gate_logits(hidden_states))).unsqueeze(-1)
        found: Tensor = attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))
        return found


class CosmosProcessor(SparseProcessor):
    """Self-attention of Cosmos: RMS norms of each head, rope by halves of the channels."""

    @property
    def split(self) -> bool:
        """No: diffusers has no plan of context parallelism for Cosmos."""
        return False

    @_of_the_transformer
    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Tensor:
        """Return `[B, S, dim]`, as the processor that it replaces."""
        running = self.pass_of(image_rotary_emb, encoder_hidden_states, attention_mask)
        q, k, v = _normed(_projected(attn, hidden_states, (attn.to_q, attn.to_k, attn.to_v)), attn.norm_q, attn.norm_k)
        q, k = (apply_rotary_emb(each, running.rope, use_real_unbind_dim=-2, sequence_dim=1) for each in (q, k))
        found: Tensor = attn.to_out[1](attn.to_out[0](self.attend(q, k, v, running).out.flatten(2, 3)))
        return found


Operands = tuple[Tensor, Tensor, Tensor]


class JointProcessor(SparseProcessor):
    """Joint attention of HunyuanVideo and HunyuanVideo 1.5. Padding tokens of the text are left out.

    With `T` the text tokens without padding and `S_i` the key tiles that query tile `i` selects, a video query of tile `i`
    attends over `S_i` and `T`, a text query over all video tokens and `T`, each in one softmax.

    The rows of padding text are 0 where diffusers' own hold something; nothing ever attends to them.
    """

    @_of_the_transformer
    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return video `[B, S, dim]` and text `[B, N, dim]`, as the processor that it replaces.

        Args:
            attention_mask: not read; the forward pass says how many text tokens there are.
        """
        running = self.pass_of(image_rotary_emb)
        video, text = self._operands(attn, hidden_states, encoder_hidden_states)
        q, k, v = video
        q, k = (apply_rotary_emb(each, running.rope, sequence_dim=1) for each in (q, k))
        q, k = q.to(v.dtype), k.to(v.dtype)  # autocast computes norms in float32
        text = (text[0].to(v.dtype), text[1].to(v.dtype), text[2])
        out, text_out = self._joint((q, k, v), text, running)
        out, text_out = out.flatten(2, 3), text_out.flatten(2, 3)
        if getattr(attn, "to_out", None) is not None:
            out = attn.to_out[1](attn.to_out[0](out))
        if getattr(attn, "to_add_out", None) is not None:
            text_out = attn.to_add_out(text_out)
        return out, text_out

    def _operands(self, attn: Any, hidden_states: Tensor, text_states: Tensor) -> tuple[Operands, Operands]:
        """Project queries, keys and values of the video and of the text, `[B, S, H, D]`, normed."""
        if attn.add_q_proj is None:  # both streams share the weights
            joined = _projected(attn, torch.cat([hidden_states, text_states], dim=1), (attn.to_q, attn.to_k, attn.to_v))
            q, k, v = _normed(joined, attn.norm_q, attn.norm_k)
            split = hidden_states.shape[1]
            return (q[:, :split], k[:, :split], v[:, :split]), (q[:, split:], k[:, split:], v[:, split:])
        video = _projected(attn, hidden_states, (attn.to_q, attn.to_k, attn.to_v))
        text = _projected(attn, text_states, (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))
        return _normed(video, attn.norm_q, attn.norm_k), _normed(text, attn.norm_added_q, attn.norm_added_k)

    def _joint(self, video: Operands, text: Operands, running: Pass) -> tuple[Tensor, Tensor]:
        """Compute both outputs, with one call for samples whose texts have the same length."""
        if self.split:
            raise ConfigError(
                f"{self.name}: joint attention over several processes is not supported; diffusers has no plan for it either"
            )
        dense = self.sparsity_in(running) == 0
        if dense:
            self.measure(video[0], video[1], running)
        fine = None if dense else self.attend(*video, running, return_lse=True)
        outs, texts = [], []
        for rows, length in _groups(running.text_lengths, video[0].shape[0]):
            q, k, v = (each[rows] for each in video)
            text_q, text_k, text_v = (each[rows, :length] for each in text)
            keys, values = torch.cat([k, text_k], dim=1), torch.cat([v, text_v], dim=1)
            if fine is None:
                outs.append(dense_attention(q, keys, values).out)
            else:
                seen = AttentionOutput(out=fine.out[rows], lse=None if fine.lse is None else fine.lse[rows])
                states = [seen, dense_attention(q, text_k, text_v, return_lse=True)] if length else [seen]
                outs.append(merge(states, return_lse=False).out if length else seen.out)
            padding = text[0].shape[1] - length
            found = dense_attention(text_q, keys, values).out if length else text_q
            texts.append(nn.functional.pad(found, (0, 0, 0, 0, 0, padding)))
        return (outs[0], texts[0]) if len(outs) == 1 else (torch.cat(outs), torch.cat(texts))


def _projected(attn: Any, states: Tensor, layers: tuple[Any, Any, Any]) -> Operands:
    q, k, v = (heads_apart(layer(states), attn.heads) for layer in layers)
    return q, k, v


def _normed(operands: Operands, norm_q: Any, norm_k: Any) -> Operands:
    q, k, v = operands
    return q if norm_q is None else norm_q(q), k if norm_k is None else norm_k(k), v


def _groups(lengths: tuple[int, ...], batch: int) -> Iterator[tuple[slice, int]]:
    """Group the samples of a batch: all together if their texts have one length, else one by one."""
    if len(set(lengths)) == 1:
        yield slice(0, batch), lengths[0]
        return
    for sample, length in enumerate(lengths):
        yield slice(sample, sample + 1), length


class HeadExchange:
    """Exchange between `[B, S of this process, H, D]` and `[B, S, H / P, D]` over a group of P processes.

    Source: DeepSpeed Ulysses, arXiv 2309.14509.

    Args:
        group: the processes among which the tokens are split, in their order.
        num_tokens: of all processes together; the first `num_tokens % P` hold one more, as `Tensor.tensor_split` gives them.

    Raises:
        ConfigError: the heads cannot be divided among the processes.
    """

    def __init__(self, group: Any, num_tokens: int, num_heads: int) -> None:
        self.group, self.size = group, dist.get_world_size(group)
        if num_heads % self.size:
            raise ConfigError(f"context parallelism: {num_heads} heads cannot be divided among {self.size} processes; use fewer")
        fewest, more = divmod(num_tokens, self.size)
        self.tokens = [fewest + (rank < more) for rank in range(self.size)]
        self.here = self.tokens[dist.get_rank(group)]

    def scatter_heads(self, tensor: Tensor) -> Tensor:
        """Exchange this process's tokens, all heads, for all tokens of this process's heads."""
        rows = tensor.unflatten(2, (self.size, -1)).permute(2, 1, 0, 3, 4).flatten(0, 1)  # [P * S_here, B, H / P, D]
        return self._trade(rows, self.tokens, [self.here] * self.size).transpose(0, 1).contiguous()

    def gather_heads(self, tensor: Tensor) -> Tensor:
        """Exchange all tokens of this process's heads for this process's tokens, all heads."""
        rows = self._trade(tensor.transpose(0, 1), [self.here] * self.size, self.tokens)  # [P * S_here, B, H / P, D]
        joined: Tensor = rows.unflatten(0, (self.size, self.here)).permute(2, 1, 0, 3, 4).flatten(2, 3)
        return joined

    def _trade(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        graded = torch.is_grad_enabled() and rows.requires_grad
        trade = collectives.all_to_all_single_autograd if graded else collectives.all_to_all_single
        found: Any = trade(rows.contiguous(), received, sent, self.group)
        arrived: Tensor = found.wait() if isinstance(found, collectives.AsyncCollectiveTensor) else found
        return arrived
