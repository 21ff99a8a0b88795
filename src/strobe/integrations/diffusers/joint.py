"""Joint attention of video and text as HunyuanVideo has it: video to video is sparse, text rows are dense both ways.

With `T` the text tokens without padding and `S_i` the key tiles that query tile `i` selects, a video query of tile `i` attends
over `S_i` and `T`, a text query over all video tokens and `T`, each in one softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers.models.embeddings import apply_rotary_emb
from torch import Tensor, nn

from strobe.attention.dense.api import dense_attention
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput
from strobe.core.errors import ConfigError
from strobe.integrations.diffusers.forward import Pass
from strobe.integrations.diffusers.processors import SparseProcessor, heads_apart

Operands = tuple[Tensor, Tensor, Tensor]


class JointProcessor(SparseProcessor):
    """Joint attention of HunyuanVideo and HunyuanVideo 1.5. Padding tokens of the text are left out.

    The rows of padding text are 0 where diffusers' own hold something; nothing ever attends to them.
    """

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
        if self.beside(image_rotary_emb):
            found: tuple[Tensor, Tensor] = self.replaced(
                attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb
            )
            return found
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
