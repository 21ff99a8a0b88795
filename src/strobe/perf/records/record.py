"""Lines of a run's records: one schema for the writer, the reader and the manual.

A run folder holds `records.jsonl`; every line is one of the structs below, told apart by the key `record`, with the schema
version in `v`. Numbers carry their unit in the key (`_ns`, `_bytes`, `_mhz`); measured times are integer nanoseconds. Adding an
optional field keeps the version; removing, renaming or redefining one raises it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from strobe.perf.records.base import Line, Prose, RecordPart
from strobe.perf.records.checks import Check
from strobe.perf.records.clocks import Clocks, GpuState
from strobe.perf.records.grids import AttentionCell, Contestant, Links, Prediction, Surroundings
from strobe.perf.records.viewers import Served, Server, Viewer

RunKind = Literal["stream", "operator", "attention", "tree", "serve", "calls", "programs", "accept"]
"""Subject of a run: clips, calls of one operator, a cell of the attention or tree grid, viewers of a server, calls
of the caller's own functions, whole programs, the acceptance of a model."""
Exclusion = Literal["warm-up", "compilation", "throttling", "refused", "failed", "damaged", "other"]
Mode = Literal["free-running", "serialised"]
"""Way in which calls of several ranks were split: nothing waits inside, or the ranks meet before each collective."""
Phase = Literal["warmup", "timed", "traced"]
Clock = Literal["perf_counter", "cuda_event"]
Status = Literal["complete", "interrupted", "failed"]


class Git(RecordPart, frozen=True, kw_only=True):
    """Git commit of the code that ran."""

    commit: Annotated[str | None, Meta(description="full commit hash; null outside a checkout")]
    dirty: Annotated[bool | None, Meta(description="true: tracked files differ from the commit; null outside a checkout")]


class Machine(RecordPart, frozen=True, kw_only=True):
    """Machine that ran the code: device, driver, versions, CPU, memory and clocks."""

    device: Annotated[str, Meta(description="torch device that ran, e.g. `cpu`, `cuda:0`")]
    device_name: Annotated[str, Meta(description="model name of the CPU or GPU")]
    gpu_count: Annotated[int, Meta(description="number of GPUs that torch sees")]
    gpu_memory_bytes: Annotated[int | None, Meta(description="memory of the GPU in use, bytes; null on a CPU")]
    driver: Annotated[str | None, Meta(description="GPU driver version; null: not known")]
    cuda: Annotated[str | None, Meta(description="CUDA version that torch was built with; null for a CPU build")]
    torch: Annotated[str | None, Meta(description="torch version; null when torch was not used")]
    python: Annotated[str, Meta(description="Python version")]
    os: Annotated[str, Meta(description="operating system and kernel")]
    cpu_name: Annotated[str, Meta(description="model name of the CPU")]
    cores: Annotated[int, Meta(description="number of CPU cores that the process may use")]
    threads: Annotated[int, Meta(description="number of threads that torch uses inside one operator")]
    memory_bytes: Annotated[int | None, Meta(description="main memory of the machine, bytes; null: not known")]
    clocks: Annotated[Clocks, Meta(description="clocks when the run began")]
    launch_blocking: Annotated[bool, Meta(description="true: CUDA_LAUNCH_BLOCKING is set, so launches are serialised")] = False
    cublaslt_workspace_kib: Annotated[
        int | None,
        Meta(description="CUBLASLT_WORKSPACE_SIZE at start, KiB; null: unset"),
    ] = None
    gpu: Annotated[GpuState | None, Meta(description="settings of the GPU in use; null on a CPU")] = None

    @property
    def device_type(self) -> str:
        """Kind of device, `cpu` or `cuda`: the part of torch's device name before the number."""
        return self.device.partition(":")[0]

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU ran the code."""
        return self.device_type == "cuda"


class Model(RecordPart, frozen=True, kw_only=True):
    """The model that every variant runs."""

    name: Annotated[str, Meta(description="name of the model, e.g. `shapes`")]
    weights_sha256: Annotated[str, Meta(description="SHA-256 of the weights")]
    num_params: Annotated[int, Meta(description="number of parameters of the transformer")]


class PromptAt(RecordPart, frozen=True, kw_only=True):
    """A prompt of the clip, and the frame block where it begins."""

    frame_block: Annotated[int, Meta(description="number of the first frame block made with this prompt")]
    text: Annotated[str, Meta(description="text of the prompt")]
    mode: Annotated[
        str, Meta(description="method of the switch: `recache`, `soft`, `interpolate`, `shot`; `start` for the first prompt")
    ]


class Workload(RecordPart, frozen=True, kw_only=True):
    """Prompts, seed, length and size of one clip; the same for every variant."""

    prompts: Annotated[tuple[PromptAt, ...], Meta(description="prompts in order")]
    seed: Annotated[int, Meta(description="seed of the initial noise and the renoise tensors; the same for every variant")]
    frame_blocks: Annotated[int, Meta(description="number of frame blocks in a clip")]
    latents_per_block: Annotated[int, Meta(description="number of latent frames in a frame block")]
    frames_first_block: Annotated[int, Meta(description="number of pixel frames decoded from the first frame block")]
    frames_per_block: Annotated[int, Meta(description="number of pixel frames decoded from every later frame block")]
    frames: Annotated[int, Meta(description="number of pixel frames in a clip")]
    height: Annotated[int, Meta(description="height of a pixel frame, pixels")]
    width: Annotated[int, Meta(description="width of a pixel frame, pixels")]
    fps: Annotated[int, Meta(description="pixel frames per second of playback")]
    batch: Annotated[int, Meta(description="number of clips made at once")] = 1
    unit: Annotated[
        Literal["frame block", "denoise step"],
        Meta(description="meaning of `frame block` in the records: one of a stream, or one denoise step over a whole clip"),
    ] = "frame block"


class Absent(RecordPart, frozen=True, kw_only=True):
    """A variant that was requested and cannot run on this machine."""

    variant: Annotated[str, Meta(description="name of the variant")]
    reason: Annotated[str, Meta(description="requirement of the variant that the machine does not meet")]


class Header(Line, frozen=True, kw_only=True):
    """First line: the run, the code, the machine and the order of its variants."""

    run: Annotated[str, Meta(description="name of the run folder")]
    kind: Annotated[
        RunKind,
        Meta(description="subject: clips (`stream`), own code (`calls`, `programs`), `serve`, `accept`"),
    ] = "stream"
    date: Annotated[str, Meta(description="start of the run, UTC, ISO 8601")]
    strobe: Annotated[str, Meta(description="version of strobe")]
    git: Annotated[Git, Meta(description="git commit of the code")]
    argv: Annotated[tuple[str, ...], Meta(description="command line, then flags with a default of their own, with its value")]
    machine: Annotated[Machine, Meta(description="machine that ran the code")]
    baseline: Annotated[str, Meta(description="name of the variant that every speedup is relative to")]
    order: Annotated[tuple[str, ...], Meta(description="names of variants in one palindrome as planned, e.g. B C1 C2 C2 C1 B")]
    palindromes: Annotated[int, Meta(description="number of palindromes planned")]
    model: Annotated[Model | None, Meta(description="model and weights; null: no model runs, e.g. in own code")] = None
    workload: Annotated[Workload | None, Meta(description="the clip; null: none is made, e.g. by the caller's own code")] = None
    world_size: Annotated[int, Meta(description="number of processes in the run")] = 1
    sp_degree: Annotated[int, Meta(description="number of devices that share one sequence (sequence parallelism)")] = 1
    tp_degree: Annotated[int, Meta(description="number of devices that share one layer (tensor parallelism)")] = 1
    logs: Annotated[tuple[str, ...], Meta(description="paths of logs that belong to the run, relative to the run folder")] = ()
    absent: Annotated[tuple[Absent, ...], Meta(description="variants that were requested and cannot run on this machine")] = ()


CUSTOM: Final = "custom"
"""Preset name of a variant that is not a preset."""


class Knob(RecordPart, frozen=True, kw_only=True):
    """One optimisation that a preset can turn on, with its state in this run."""

    name: Annotated[str, Meta(description="name of the optimisation, e.g. `compile`, `ring_cache`")]
    value: Annotated[str, Meta(description="resolved value as text, e.g. `on`, `off`, `8`")]
    on: Annotated[bool, Meta(description="true: the optimisation is active in this run")]
    reason: Annotated[Prose, Meta(description="why the optimisation is off though the preset asks for it; empty otherwise")] = ""


class SpanCost(RecordPart, frozen=True, kw_only=True):
    """Least FLOPs and bytes of one call of a region in any implementation (`strobe.core.costs`), once the cache is full."""

    span: Annotated[str, Meta(description="name of the region")]
    flops: Annotated[int, Meta(description="floating-point operations of its matrix products; a multiply-add counts as two")]
    read_bytes: Annotated[int, Meta(description="least number of bytes that the region reads")]
    write_bytes: Annotated[int, Meta(description="least number of bytes that the region writes")]
    dense_flops: Annotated[int | None, Meta(description="FLOPs of the dense operation it replaces; null: it is dense")] = None
    dtype: Annotated[str, Meta(description="dtype of the region's matrix products; empty: dtype of the variant")] = ""
    attended_flops: Annotated[int, Meta(description="part of `flops` proportional to the number of attended keys")] = 0
    attended_read_bytes: Annotated[int, Meta(description="part of `read_bytes` proportional to the number of attended keys")] = 0


class Variant(Line, frozen=True, kw_only=True):
    """Settings of one variant as it ran; they can differ from the settings that were requested."""

    name: Annotated[str, Meta(description="name of the variant; the key `variant` of all other lines refers to it")]
    preset: Annotated[str, Meta(description="preset that the variant was built from; `custom` for the caller's own code")]
    knobs: Annotated[tuple[Knob, ...], Meta(description="all optimisations, on and off")] = ()
    attention_impl: Annotated[str, Meta(description="attention implementation that ran")] = ""
    attention_reason: Annotated[Prose, Meta(description="reason why other attention implementations were passed over")] = ""
    sparsity: Annotated[
        float | None,
        Meta(description="share of attention skipped (stream: of past keys; grid: of token pairs); 0 is dense; null: unknown"),
    ] = None
    window: Annotated[int | None, Meta(description="number of latent frames in the key-value cache, sink included")] = None
    sink: Annotated[int | None, Meta(description="number of first latent frames that never leave the cache")] = None
    positions: Annotated[str, Meta(description="temporal positions: `absolute` or `rebased`; empty: not known")] = ""
    timesteps: Annotated[tuple[float, ...], Meta(description="denoising timesteps before the shift, in [0, 1000]")] = ()
    shift: Annotated[float | None, Meta(description="shift of the noise schedule; null: not known")] = None
    steps: Annotated[int | None, Meta(description="number of denoise steps per frame block; null: not known")] = None
    dtype: Annotated[str, Meta(description="dtype of the transformer's weights and activations")] = ""
    lora: Annotated[str | None, Meta(description="LoRA merged into the weights; null: none")] = None
    linear_format: Annotated[str, Meta(description="format of the linear layers, e.g. `native`, `fp8`, `fp8, simulated`")] = ""
    kv_format: Annotated[str, Meta(description="format of the cached keys and values, e.g. `native`, `int8`")] = ""
    attention_format: Annotated[str, Meta(description="format of self-attention, e.g. `native`, `int8`; empty: not known")] = ""
    compile_mode: Annotated[str | None, Meta(description="mode of torch.compile; null: eager")] = None
    tokens_per_block: Annotated[int | None, Meta(description="number of tokens in a frame block; null: not known")] = None
    calls_per_stage: Annotated[dict[str, int], Meta(description="by span name: counted calls of the region in a clip")] = field(
        default_factory=dict
    )
    costs: Annotated[tuple[SpanCost, ...], Meta(description="least FLOPs and bytes of one call of each region")] = ()
    attended_keys: Annotated[
        tuple[int, ...],
        Meta(description="keys that a query attends to, by frame block; the last value holds for later ones; empty: not known"),
    ] = ()
    sizes: Annotated[dict[str, int], Meta(description="by name: sizes of one call of an operator, e.g. `q_tokens`")] = field(
        default_factory=dict
    )
    cold_start_ns: Annotated[
        int | None,
        Meta(description="cold start: time to open and make a short clip, minus time to make it again, ns; null: not measured"),
    ] = None
    arena_reserved_bytes: Annotated[
        int | None, Meta(description="bytes reserved by the session's memory pool on the GPU; null: no pool, or no open session")
    ] = None
    arena_used_bytes: Annotated[
        int | None,
        Meta(description="bytes of that pool used by tensors and recorded passes when this was written; null: no pool"),
    ] = None
    predicted_bytes: Annotated[
        int | None, Meta(description="memory that one session was predicted to take on its device, bytes; null: not predicted")
    ] = None
    text_encoder_bytes: Annotated[int | None, Meta(description="bytes of the text encoder's weights; null: not known")] = None
    text_encoder_on_device: Annotated[bool | None, Meta(description="`peak_bytes` counts these weights; null: not known")] = None
    contestant: Annotated[Contestant | None, Meta(description="implementation and its work in a grid; null elsewhere")] = None
    command: Annotated[str, Meta(description="command line of a program; empty: not a program")] = ""
    decoder: Annotated[Prose, Meta(description="what decodes, where a run compares autoencoders; empty: the model's own")] = ""


class Span(Line, frozen=True, kw_only=True):
    """One timed region of one clip: one call, frame block, stage or other interval."""

    variant: Annotated[str, Meta(description="name of the variant")]
    clip: Annotated[int, Meta(description="number of the clip among the clips of this variant, from 0, warm-up included")]
    order: Annotated[int, Meta(description="position of the clip among all clips of the run, from 0")]
    palindrome: Annotated[int | None, Meta(description="number of the clip's palindrome; null outside of one, e.g. in warm-up")]
    name: Annotated[str, Meta(description="name of the region")]
    index: Annotated[int | None, Meta(description="number of the frame block, step or call; null: the region is not numbered")]
    start_ns: Annotated[int, Meta(description="time from the start of the clip to the start of the region, ns")]
    value_ns: Annotated[int, Meta(description="duration of the region, ns")]
    clock: Annotated[Clock, Meta(description="clock of the times: `perf_counter` (host) or `cuda_event` (device)")]
    warmup: Annotated[bool, Meta(description="true: the clip is a warm-up; leave it out of averages")]
    parent: Annotated[int | None, Meta(description="`index` of the nearest enclosing region that has one; null: none")] = None
    thread: Annotated[int, Meta(description="number of its thread, in order of first use; 0: main thread of the clip")] = 0
    part: Annotated[str, Meta(description="kind of the collective or block, or name of the stage; empty: whole region")] = ""
    rank: Annotated[int | None, Meta(description="rank whose time this is; null: the slowest rank, or the only one")] = None
    mode: Annotated[Mode | None, Meta(description="`serialised`: ranks meet before each collective; null: call not split")] = None

    @property
    def label(self) -> str:
        """Name of the span in tables and logs: mode, name and part, as `mode/name:part`."""
        name = f"{self.name}:{self.part}" if self.part else self.name
        return name if self.mode is None else f"{self.mode}/{name}"


class Regions(Line, frozen=True, kw_only=True):
    """Calls and time of each region inside the frame blocks of one timed clip on a CPU, summed by path; thread 0 only."""

    variant: Annotated[str, Meta(description="name of the variant")]
    clip: Annotated[int, Meta(description="number of the clip among the clips of this variant, from 0")]
    order: Annotated[int, Meta(description="position of the clip among all clips of the run, from 0")]
    blocks: Annotated[tuple[int, ...], Meta(description="numbers of the frame blocks: columns of `calls` and `value_ns`")]
    paths: Annotated[
        tuple[tuple[str, ...], ...],
        Meta(description="nested region names, from the outermost in the frame block inwards: rows of `calls` and `value_ns`"),
    ]
    calls: Annotated[tuple[tuple[int, ...], ...], Meta(description="number of calls, by path (rows) and frame block (columns)")]
    value_ns: Annotated[
        tuple[tuple[int, ...], ...], Meta(description="time with nested regions, by path (rows) and frame block (columns), ns")
    ]
    region_ns: Annotated[int, Meta(description="time that the recording of one region takes, ns")]


class Clip(Line, frozen=True, kw_only=True):
    """Line that ends a clip; all spans of the clip stand above it."""

    variant: Annotated[str, Meta(description="name of the variant")]
    clip: Annotated[int, Meta(description="number of the clip among the clips of this variant, from 0")]
    order: Annotated[int, Meta(description="position of the clip among all clips of the run, from 0")]
    palindrome: Annotated[int | None, Meta(description="number of the clip's palindrome; null outside of one, e.g. in warm-up")]
    phase: Annotated[Phase, Meta(description="phase of the run; only `timed` clips count in averages")]
    num_spans: Annotated[int, Meta(description="number of span lines of the clip")]
    peak_bytes: Annotated[
        int | None,
        Meta(description="peak memory of the process in this clip: allocated by torch on a GPU, else the resident set"),
    ] = None
    clocks: Annotated[Clocks | None, Meta(description="clocks during the clip (with `samples`), or at its end")] = None
    calls: Annotated[int, Meta(description="number of calls of the caller's own function in the clip, one after the other")] = 1
    start_bytes: Annotated[int | None, Meta(description="memory in use at the start of the clip; null: not measured")] = None
    user_ns: Annotated[int | None, Meta(description="CPU time of a program in user mode, ns; null: no program")] = None
    system_ns: Annotated[int | None, Meta(description="CPU time of a program in the kernel, ns; null: no program")] = None
    exit_status: Annotated[
        int | None, Meta(description="exit status of a program; negative: the signal that killed it; null: no program")
    ] = None


class Memory(Line, frozen=True, kw_only=True):
    """Memory that the process holds, read after each frame block of a long clip."""

    variant: Annotated[str, Meta(description="name of the variant")]
    clip: Annotated[int, Meta(description="number of the clip among the clips of this variant, from 0")]
    frame_block: Annotated[int, Meta(description="number of the frame block")]
    resident_bytes: Annotated[int | None, Meta(description="resident set of the process on the host, bytes; null: not known")]
    allocated_bytes: Annotated[int | None, Meta(description="bytes that torch holds in tensors on the GPU; null on a CPU")] = None
    reserved_bytes: Annotated[int | None, Meta(description="bytes torch's allocator reserves on the GPU; null on a CPU")] = None


class Trace(Line, frozen=True, kw_only=True):
    """A profiler trace of a traced clip, which is not among the timed clips."""

    variant: Annotated[str, Meta(description="name of the variant")]
    clip: Annotated[int, Meta(description="number of the clip among the clips of this variant, from 0")]
    path: Annotated[str, Meta(description="path of the Chrome trace (gzip), relative to the run folder")]
    sha256: Annotated[str, Meta(description="SHA-256 of the file")]
    size_bytes: Annotated[int, Meta(description="size of the file, bytes")]
    first_block: Annotated[int, Meta(description="number of the first frame block in the trace")]
    num_blocks: Annotated[int, Meta(description="number of frame blocks in the trace")]
    regions: Annotated[tuple[str, ...], Meta(description="regions marked in the trace; empty: all but the pieces of a pass")] = ()
    options: Annotated[
        tuple[str, ...], Meta(description="profiler options that distort times, e.g. `with_stack`; such a trace gives no figures")
    ] = ()


class LaunchedPasses(Line, frozen=True, kw_only=True):
    """Passes of a variant launched kernel by kernel; they assign the kernels of its CUDA graphs to regions."""

    variant: Annotated[str, Meta(description="name of the variant")]
    path: Annotated[str, Meta(description="file with kernels and regions of each pass (JSON, gzip), relative to the run folder")]
    sha256: Annotated[str, Meta(description="SHA-256 of the file")]


class Video(Line, frozen=True, kw_only=True):
    """A clip that is kept as a video file."""

    variant: Annotated[str, Meta(description="name of the variant")]
    path: Annotated[str, Meta(description="path of the file, relative to the run folder")]
    sha256: Annotated[str, Meta(description="SHA-256 of the file")]
    frames: Annotated[int, Meta(description="number of pixel frames")]
    fps: Annotated[int, Meta(description="pixel frames per second of playback")]
    caption: Annotated[Prose, Meta(description="caption of the video")] = ""


class Quality(Line, frozen=True, kw_only=True):
    """One quality score of one variant."""

    variant: Annotated[str, Meta(description="name of the variant")]
    metric: Annotated[str, Meta(description="name of the metric, e.g. `psnr`")]
    value: Annotated[float | None, Meta(description="score; null: not measured or not defined, see `note`")]
    unit: Annotated[str, Meta(description="unit of the score, e.g. `dB`; empty: none")]
    reference: Annotated[Prose, Meta(description="reference of the score, e.g. `quality, fp32, cpu`; empty: none")]
    definition: Annotated[Prose, Meta(description="formula of the score and its constants in words")]
    n: Annotated[int, Meta(description="number of samples behind the score")]
    better: Annotated[Literal["higher", "lower", "neither"], Meta(description="direction in which the score improves")]
    note: Annotated[Prose, Meta(description="reason why there is no score, or a remark on it")] = ""
    tensor: Annotated[str, Meta(description="tensor of an attention call: `out`, `lse`, `dq`, `dk`, `dv`; empty: none")] = ""
    against: Annotated[
        Literal["selection", "dense"] | None,
        Meta(description="reference of the tensor: attention to the same `selection`, or to all keys (`dense`); null: neither"),
    ] = None
    rank: Annotated[int | None, Meta(description="rank on which the score was measured; null: not of a single rank")] = None


class Gate(Line, frozen=True, kw_only=True):
    """Comparison of a candidate with its reference before timing; a candidate that fails is not timed."""

    variant: Annotated[str, Meta(description="name of the variant")]
    reference: Annotated[str, Meta(description="reference of the comparison: name of a variant, or a computation in words")]
    rule: Annotated[Prose, Meta(description="condition of the gate, with its tolerance")]
    passed: Annotated[bool, Meta(description="true: the condition holds")]
    detail: Annotated[Prose, Meta(description="measured figure that the condition is about")]
    exact: Annotated[
        bool, Meta(description="true: it asks for the reference's values within rounding; false: for less, e.g. finite values")
    ] = False


class Excluded(Line, frozen=True, kw_only=True):
    """Samples that are left out of averages, with the reason."""

    variant: Annotated[str, Meta(description="name of the variant")]
    span: Annotated[str, Meta(description="name of the spans that `indices` counts; `clip`: whole clips, by number")]
    clip: Annotated[int | None, Meta(description="number of the clip with these spans; null: every clip, or whole clips")]
    indices: Annotated[tuple[int, ...], Meta(description="excluded `index` values or clip numbers; empty: nothing was measured")]
    kind: Annotated[Exclusion, Meta(description="`refused`: it declared that it cannot run here; `failed`: an error")] = "other"
    cause: Annotated[Prose, Meta(description="reason in words, e.g. `warm-up`, `compilation`, `graph capture`")]


class End(Line, frozen=True, kw_only=True):
    """Last line of the file. A file without it was cut short."""

    status: Annotated[Status, Meta(description="outcome of the run; `interrupted`: by Ctrl-C or SIGTERM")]
    date: Annotated[str, Meta(description="end of the run, UTC, ISO 8601")]
    wall_ns: Annotated[int, Meta(description="time from the start of the run to this line, ns")]
    message: Annotated[Prose, Meta(description="reason why the run stopped; empty when complete")] = ""
    variant: Annotated[str, Meta(description="name of the variant that stopped the run; empty: no single variant")] = ""


Record = (
    Header | AttentionCell | Surroundings | Variant | Links | Prediction | Span | Regions | Clip | Memory | Trace
    | LaunchedPasses | Video | Quality | Gate | Excluded | Server | Served | Viewer | Check | End
)  # fmt: skip
LINES: Final = (
    Header, AttentionCell, Surroundings, Variant, Links, Prediction, Span, Regions, Clip, Memory, Trace, LaunchedPasses, Video,
    Quality, Gate, Excluded, Server, Served, Viewer, Check, End,
)  # fmt: skip
