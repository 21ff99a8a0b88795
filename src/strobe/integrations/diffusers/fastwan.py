"""FastVideo's FastWan in diffusers: its three-step sampler, as a pipeline made of the components of a `WanPipeline`.

With the flow `v` that the model predicts at `x = (1 - sigma) x0 + sigma noise`, each step is

    x0 = x - sigma_i v          x = (1 - sigma_{i+1}) x0 + sigma_{i+1} fresh noise

and the last one ends with `x0`. The timesteps are those that the model was distilled for; `sigma_i` is that of the shifted
schedule of 1,000 steps nearest to timestep i.

Source: FastVideo, fastvideo/pipelines/stages/denoising.py, DmdDenoisingStage (shift 8), and fastvideo/configs/pipelines/wan.py,
FastWan2_1_T2V_480P_Config and FastWan2_2_TI2V_5B_Config (timesteps 1000, 757, 522); DMD2, arXiv 2405.14867.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers import WanPipeline
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.schedulers.scheduling_utils import SchedulerMixin, SchedulerOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from strobe.core.errors import ConfigError


class FastWanScheduler(SchedulerMixin, ConfigMixin):  # type: ignore[misc]
    """The schedule of FastWan: a few timesteps, each of which predicts the clean latents.

    Args:
        steps: timesteps that the model was distilled for.
        shift: of the schedule.
        num_train_timesteps: steps of the schedule.
    """

    order = 1

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(self, steps: Sequence[int] = (1000, 757, 522), shift: float = 8.0, num_train_timesteps: int = 1000) -> None:
        even = torch.arange(num_train_timesteps, 0, -1, dtype=torch.float64) / num_train_timesteps
        table = shift * even / (1 + (shift - 1) * even)
        wanted = torch.tensor(list(steps), dtype=torch.float64) / num_train_timesteps
        nearest = table[(table - wanted[:, None]).abs().argmin(dim=1)]
        self.sigmas = torch.cat([nearest, torch.zeros(1, dtype=torch.float64)])
        self.timesteps = torch.tensor(list(steps))
        self.begin_index: int | None = None
        self.step_index: int | None = None

    def set_timesteps(self, num_inference_steps: int | None = None, device: Any = None) -> None:
        """Start the schedule again at its first step.

        Raises:
            ConfigError: another number of steps than the model was distilled for.
        """
        steps = len(self.timesteps)
        if num_inference_steps not in (None, steps):
            raise ConfigError(f"num_inference_steps: got {num_inference_steps}, FastWan was distilled for {steps}; leave it out")
        self.timesteps = self.timesteps.to(device)
        self.step_index = None

    def set_begin_index(self, begin_index: int = 0) -> None:
        self.begin_index = begin_index

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, return_dict: bool = True) -> Any:
        """Return the clean latents that a flow at a timestep predicts."""
        index = (self.begin_index or 0) if self.step_index is None else self.step_index
        self.step_index = index + 1
        clean = (sample.double() - self.sigmas[index].item() * model_output.double()).to(sample.dtype)
        return SchedulerOutput(prev_sample=clean) if return_dict else (clean,)

    def renoise(self, clean: Tensor, index: int, generator: Any) -> Tensor:
        """Mix fresh noise into clean latents for a step; the same latents after the last."""
        sigma = self.sigmas[index].item()
        if sigma == 0:
            return clean
        noise = randn_tensor(clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        mixed: Tensor = (1 - sigma) * clean + sigma * noise
        return mixed


class FastWanPipeline(WanPipeline):  # type: ignore[misc]
    """`WanPipeline` with FastWan's sampler: three steps, no classifier-free guidance."""

    @classmethod
    def of(cls, pipe: WanPipeline) -> FastWanPipeline:
        """Make a pipeline from the components of a `WanPipeline`, which stays as it is."""
        scheduler = FastWanScheduler()
        return cls(**pipe.components | {"scheduler": scheduler}, expand_timesteps=pipe.config.expand_timesteps)

    def __call__(
        self,
        *args: Any,
        guidance_scale: float = 1.0,
        num_inference_steps: int | None = None,
        generator: Any = None,
        callback_on_step_end: Callable[..., dict[str, Any]] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        **kwargs: Any,
    ) -> Any:
        """Generate a video, as `WanPipeline` does.

        Args:
            num_inference_steps: may be left out: it is the number of FastWan's timesteps.
            generator: of the first noise and of that of every step.
            callback_on_step_end: is given the clean latents that a step predicts, and may change them.
        """
        scheduler: Any = self.scheduler
        if not isinstance(scheduler, FastWanScheduler):
            raise ConfigError(
                f"FastWan: got a {type(scheduler).__name__}, expected its own; make the pipeline by FastWanPipeline.of(pipe)"
            )
        steps = len(scheduler.timesteps)

        def renoised(pipe: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            changed = tensors if callback_on_step_end is None else tensors | callback_on_step_end(pipe, index, timestep, tensors)
            return changed | {"latents": scheduler.renoise(changed["latents"], index + 1, generator)}

        return super().__call__(
            *args,
            guidance_scale=guidance_scale,
            num_inference_steps=steps if num_inference_steps is None else num_inference_steps,
            generator=generator,
            callback_on_step_end=renoised,
            callback_on_step_end_tensor_inputs=sorted({"latents", *callback_on_step_end_tensor_inputs}),
            **kwargs,
        )
