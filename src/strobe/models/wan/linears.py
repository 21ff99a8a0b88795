"""Linear layers in eight bits: FP8 weights and inputs, or INT8 weights alone.

Each takes the place of an `nn.Linear` in a transformer that only infers; `strobe.engine.transformer` decides where.
"""

from __future__ import annotations

from typing import ClassVar, Final, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.core.errors import ConfigError, ShapeError
from strobe.core.spans import QUANTISE
from strobe.eightbit.rows import EightBit, quantize_rows
from strobe.eightbit.types import Quantized
from strobe.models.wan.layers import region

FP8_MULTIPLE: Final = 16
"""Inputs and outputs of an FP8 matrix product come in multiples of this."""


class EightBitLinear(nn.Module):
    """A linear layer whose weights `[out, in]` are eight bits wide, `W = values * scale`, with a scale per output channel.

    Its bias stays as it was.

    Tensors keep their addresses: `requantize` writes in place and a `part` shares them. Nothing has a gradient.

    Args:
        weight: `[out, in]`; its dtype is that of the result.
        bias: `[out]` or None.
    """

    eight_bit: ClassVar[EightBit]
    values: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.dtype = weight.dtype
        self._hold(*quantize_rows(weight.detach(), self.eight_bit), None if bias is None else bias.detach())

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Self:
        """Quantise a layer to eight bits; the bias is shared."""
        return cls(linear.weight, linear.bias)

    def requantize(self, weight: Tensor) -> None:
        """Quantise other weights of the same shape, from any device and dtype, into this layer; addresses stay.

        Raises:
            ShapeError: they have another shape.
        """
        if weight.shape != self.values.shape:
            raise ShapeError(f"weights have shape {tuple(weight.shape)}; this layer's have {tuple(self.values.shape)}")
        new = quantize_rows(weight.detach().to(self.values.device, self.dtype), self.eight_bit)
        self.values.copy_(new.values)
        self.scale.copy_(new.scale)

    def part(self, start: int, stop: int) -> Self:
        """Return the layer of the output channels ``start .. stop - 1``; tensors are shared."""
        part = object.__new__(type(self))
        nn.Module.__init__(part)
        for name, value in vars(self).items():
            if not name.startswith("_") and name != "training":
                setattr(part, name, value)
        part._hold(self.values[start:stop], self.scale[start:stop], None if self.bias is None else self.bias[start:stop])
        return part

    def dequantized(self) -> Tensor:
        """Return the weights as they act, float32 `[out, in]`."""
        return Quantized(self.values, self.scale).dequantized(torch.float32)

    def _hold(self, values: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)


class Fp8Linear(EightBitLinear):
    """``y = x @ W.T + b`` with x and W in float8_e4m3fn, summed in float32 on matrix units for it.

    ``y[m, n] = scale_x[m] * scale_W[n] * sum_k(x8[m, k] * W8[n, k]) + b[n]``, rounded to the dtype of the weights it was made
    from. An input that is not quantised yet is, token by token.

    With `simulate` the same eight-bit numbers are multiplied in that dtype, on any device: the same values up to rounding, and
    no faster.

    Args:
        weight, bias: see `EightBitLinear`.
        simulate: see above.

    Raises:
        ConfigError: sizes that the matrix units do not take.
    """

    eight_bit = "fp8"

    def __init__(self, weight: Tensor, bias: Tensor | None, *, simulate: bool = False) -> None:
        if not simulate and any(size % FP8_MULTIPLE for size in weight.shape):
            raise ConfigError(
                f"a linear layer of {list(weight.shape)} cannot run in FP8: both sizes must be multiples of {FP8_MULTIPLE}; "
                "use linear_format 'int8' or 'native', or simulate"
            )
        super().__init__(weight, bias)
        self.simulate = simulate

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, simulate: bool = False) -> Self:
        """Quantise a layer to FP8; the bias is shared. Args, Raises: see the class."""
        return cls(linear.weight, linear.bias, simulate=simulate)

    def forward(self, x: Tensor | Quantized) -> Tensor:
        """Multiply x `[..., in]`, which may be quantised already, to `[..., out]`."""
        if not isinstance(x, Quantized):
            with region(QUANTISE):
                x = quantize_rows(x)
        if self.simulate:
            return F.linear(x.dequantized(self.dtype), self.dequantized().to(self.dtype), self.bias)
        out: Tensor = self._product(x).unflatten(0, x.values.shape[:-1])
        return out

    def _product(self, x: Quantized) -> Tensor:
        """Compute the product `[M, out]`; the matrix units write bfloat16, and add a bias of that dtype only."""
        native = self.dtype == torch.bfloat16
        out: Tensor = torch._scaled_mm(
            x.values.flatten(0, -2),
            self.values.t(),
            scale_a=x.scale.flatten(0, -2),  # [M, 1]
            scale_b=self.scale.t(),  # [1, out]
            bias=self.bias if native else None,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        if native or self.bias is None:
            return out.to(self.dtype)
        return out.to(self.dtype) + self.bias


class Int8Linear(EightBitLinear):
    """``y = x @ (values * scale).T + b`` with int8 weights, one scale per output channel; the product is in the dtype of x.

    It saves memory, not time: each call first writes the weights out in that dtype.
    """

    eight_bit = "int8"

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x `[..., in]` to `[..., out]`."""
        weight = torch.mul(self.values, self.scale, out=x.new_empty(self.values.shape))
        return F.linear(x, weight, self.bias)
