"""Lines of a run's records: one schema for the writer, the reader and the manual.

A run folder holds `records.jsonl`; every line is one of the structs below, told apart by the key `record`, with the schema
version in `v`. Numbers carry their unit in the key (`_ns`, `_bytes`, `_mhz`); measured times are integer nanoseconds. Adding an
optional field keeps the version; removing, renaming or redefining one raises it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from strobe.perf.records.base import Line, Part, Prose
from strobe.perf.records.clocks import Clocks, GpuState
from strobe.perf.records.grids import AttentionCell, Contestant, Links, Prediction, Surroundings
from strobe.perf.records.viewers import Server, Viewer

RunKind = Literal["stream", "soak", "operator", "attention", "tree", "serve", "calls", "programs"]
"""Subject of a run: clips, one long clip, calls of one operator, a cell of the attention or tree grid, viewers of a server, calls
of the caller's own functions, whole programs."""
Exclusion = Literal["warm-up", "compilation", "throttling", "refused", "failed", "damaged", "other"]
Mode = Literal["free-running", "serialised"]
"""Way in which calls of several ranks were split: nothing waits inside, or the ranks meet before each collective."""
Phase = Literal["warmup", "timed", "traced"]
Clock = Literal["perf_counter", "cuda_event"]
Status = Literal["complete", "interrupted", "failed"]


class Git(Part, frozen=True, kw_only=True):
    """The commit of the code that ran."""

    commit: Annotated[str | None, Meta(description="full commit hash; null outside a checkout")]
    dirty: Annotated[bool | None, Meta(description="tracked files differ from the commit; null outside a checkout")]


class Machine(Part, frozen=True, kw_only=True):
    """Machine that ran the code: device, driver, versions, CPU, memory, clocks."""

    device: Annotated[str, Meta(description="torch device that ran, e.g. `cpu`, `cuda:0`")]
    device_name: Annotated[str, Meta(description="model name of the CPU or GPU")]
    gpu_count: Annotated[int, Meta(description="GPUs that torch sees")]
    gpu_memory_bytes: Annotated[int | None, Meta(description="memory of the GPU in use; null on a CPU")]
    driver: Annotated[str | None, Meta(description="GPU driver version")]
    cuda: Annotated[str | None, Meta(description="CUDA version torch was built with; null for a CPU build")]
    torch: Annotated[str | None, Meta(description="torch version; null when torch was not used")]
    python: Annotated[str, Meta(description="Python version")]
    os: Annotated[str, Meta(description="operating system and kernel")]
    cpu_name: Annotated[str, Meta(description="model name of the CPU")]
    cores: Annotated[int, Meta(description="CPU cores this process may use")]
    threads: Annotated[int, Meta(description="threads torch uses inside one operator")]
    memory_bytes: Annotated[int | None, Meta(description="main memory of the machine")]
    clocks: Annotated[Clocks, Meta(description="clocks when the run began")]
    launch_blocking: Annotated[bool, Meta(description="CUDA_LAUNCH_BLOCKING is set: launches are serialised")] = False
    cublaslt_workspace_kib: Annotated[
        int | None,
        Meta(description="CUBLASLT_WORKSPACE_SIZE when the run began, KiB, for cuBLASLt; null: torch chooses"),
    ] = None
    gpu: Annotated[GpuState | None, Meta(description="set-up of the GPU in use; null on a CPU")] = None

    @property
    def device_type(self) -> str:
        """Kind of device, `cpu` or `cuda`: the part of torch's device name before the number."""
        return self.device.partition(":")[0]

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU ran the code."""
        return self.device_type == "cuda"


class Model(Part, frozen=True, kw_only=True):
    """The model every variant runs."""

    name: Annotated[str, Meta(description="name of the model, e.g. `shapes`")]
    weights_sha256: Annotated[str, Meta(description="SHA-256 of the weights file")]
    num_params: Annotated[int, Meta(description="parameters of the transformer")]


class PromptAt(Part, frozen=True, kw_only=True):
    """A prompt of the clip and the frame block where it begins."""

    frame_block: Annotated[int, Meta(description="first frame block made under this prompt")]
    text: Annotated[str, Meta(description="the prompt")]
    mode: Annotated[str, Meta(description="how the switch is made: `recache`, `soft`, `interpolate`; `start` for the first")]


class Workload(Part, frozen=True, kw_only=True):
    """Prompts, seed, length and size of one clip, the same for every variant."""

    prompts: Annotated[tuple[PromptAt, ...], Meta(description="the prompts in order")]
    seed: Annotated[int, Meta(description="seed of the initial and renoise tensors, the same for every variant")]
    frame_blocks: Annotated[int, Meta(description="frame blocks in a clip")]
    latents_per_block: Annotated[int, Meta(description="latent frames in a frame block")]
    frames_first_block: Annotated[int, Meta(description="pixel frames the first frame block decodes to")]
    frames_per_block: Annotated[int, Meta(description="pixel frames every later frame block decodes to")]
    frames: Annotated[int, Meta(description="pixel frames in a clip")]
    height: Annotated[int, Meta(description="pixel height")]
    width: Annotated[int, Meta(description="pixel width")]
    fps: Annotated[int, Meta(description="pixel frames per second of playback")]
    batch: Annotated[int, Meta(description="clips made at once")] = 1
    unit: Annotated[
        Literal["frame block", "denoise step"],
        Meta(description="what one frame block of the records is: of a stream, or one denoise step over a whole clip"),
    ] = "frame block"


class Absent(Part, frozen=True, kw_only=True):
    """A variant that was asked for and cannot run on this machine."""

    variant: Annotated[str, Meta(description="variant")]
    reason: Annotated[str, Meta(description="what it needs and the machine lacks")]


class Header(Line, frozen=True, kw_only=True):
    """First line: the run, the code, the machine and the order of its variants."""

    run: Annotated[str, Meta(description="name of the run folder")]
    kind: Annotated[RunKind, Meta(description="what was measured")] = "stream"
    date: Annotated[str, Meta(description="start, UTC, ISO 8601")]
    strobe: Annotated[str, Meta(description="version of this package")]
    git: Annotated[Git, Meta(description="commit of the code")]
    argv: Annotated[tuple[str, ...], Meta(description="command line, and the flags that had another default, with its value")]
    machine: Annotated[Machine, Meta(description="device, driver, versions, cores, threads, clocks")]
    baseline: Annotated[str, Meta(description="variant every ratio is measured against")]
    order: Annotated[tuple[str, ...], Meta(description="variants of one palindrome as planned, e.g. B C1 C2 C2 C1 B")]
    palindromes: Annotated[int, Meta(description="palindromes planned")]
    model: Annotated[Model | None, Meta(description="model and weights; null when the caller's own code is measured")] = None
    workload: Annotated[Workload | None, Meta(description="the clip; null when the caller's own code is measured")] = None
    world_size: Annotated[int, Meta(description="processes in the run")] = 1
    sp_degree: Annotated[int, Meta(description="devices that share one sequence")] = 1
    tp_degree: Annotated[int, Meta(description="devices that share one layer")] = 1
    logs: Annotated[tuple[str, ...], Meta(description="paths of logs that belong to the run, relative to the run folder")] = ()
    absent: Annotated[tuple[Absent, ...], Meta(description="variants that were asked for and cannot run on this machine")] = ()


CUSTOM: Final = "custom"
"""Preset name of a variant that is not a preset."""


class Knob(Part, frozen=True, kw_only=True):
    """One optimisation a preset may turn on."""

    name: Annotated[str, Meta(description="name of the knob, e.g. `compile`, `ring_cache`")]
    value: Annotated[str, Meta(description="resolved value as text, e.g. `on`, `off`, `8`")]
    on: Annotated[bool, Meta(description="the optimisation is active in this run")]
    reason: Annotated[Prose, Meta(description="why it is off although the preset asks for it; empty otherwise")] = ""


class SpanCost(Part, frozen=True, kw_only=True):
    """FLOPs and bytes that one region needs at least in any implementation (`strobe.core.costs`), once the cache is full."""

    span: Annotated[str, Meta(description="name of the region")]
    flops: Annotated[int, Meta(description="floating-point operations of its matrix products, a multiply-add counted as two")]
    read_bytes: Annotated[int, Meta(description="bytes it must read at least")]
    write_bytes: Annotated[int, Meta(description="bytes it must write at least")]
    dense_flops: Annotated[int | None, Meta(description="FLOPs of the dense operation it replaces; null: it is dense")] = None
    dtype: Annotated[str, Meta(description="dtype of its matrix products; empty: that of the variant")] = ""
    attended_flops: Annotated[int, Meta(description="those of its FLOPs that are in proportion to the keys attended")] = 0
    attended_read_bytes: Annotated[int, Meta(description="those of its read bytes that are in proportion to them")] = 0


class Variant(Line, frozen=True, kw_only=True):
    """Settings of one variant as they ran, not as they were asked for."""

    name: Annotated[str, Meta(description="name used in every other line")]
    preset: Annotated[str, Meta(description="preset it was built from; `custom` for the caller's own code")]
    knobs: Annotated[tuple[Knob, ...], Meta(description="every optimisation, on or off")] = ()
    attention_impl: Annotated[str, Meta(description="attention implementation that ran")] = ""
    attention_reason: Annotated[Prose, Meta(description="why the others were passed over")] = ""
    sparsity: Annotated[float | None, Meta(description="share of attention blocks skipped; 0 is dense")] = None
    window: Annotated[int | None, Meta(description="latent frames kept in the key-value cache, sink included")] = None
    sink: Annotated[int | None, Meta(description="first latent frames that never leave the cache")] = None
    positions: Annotated[str, Meta(description="temporal positions: `absolute` or `rebased`")] = ""
    timesteps: Annotated[tuple[float, ...], Meta(description="denoising timesteps before the shift, in [0, 1000]")] = ()
    shift: Annotated[float | None, Meta(description="shift of the noise schedule")] = None
    steps: Annotated[int | None, Meta(description="denoise steps per frame block")] = None
    dtype: Annotated[str, Meta(description="dtype of the transformer's weights and activations")] = ""
    lora: Annotated[str | None, Meta(description="LoRA merged into the weights; null for none")] = None
    linear_format: Annotated[str, Meta(description="format of the linear layers, e.g. `native`, `fp8`, `fp8, simulated`")] = ""
    kv_format: Annotated[str, Meta(description="format of the cached keys and values, e.g. `native`, `int8`")] = ""
    compile_mode: Annotated[str | None, Meta(description="torch.compile mode that ran; null for eager")] = None
    tokens_per_block: Annotated[int | None, Meta(description="tokens of one frame block")] = None
    calls_per_stage: Annotated[dict[str, int], Meta(description="regions entered per clip, by span name, as counted")] = field(
        default_factory=dict
    )
    costs: Annotated[tuple[SpanCost, ...], Meta(description="what one region of a name must compute and move")] = ()
    attended_keys: Annotated[
        tuple[int, ...],
        Meta(description="keys that a query attends to in each frame block, the last in all later ones; empty: unknown"),
    ] = ()
    sizes: Annotated[dict[str, int], Meta(description="sizes of one call of an operator, e.g. `q_tokens`")] = field(
        default_factory=dict
    )
    cold_start_ns: Annotated[
        int | None,
        Meta(description="opening the variant and a first short clip of it, minus the same short clip again; null: not taken"),
    ] = None
    arena_reserved_bytes: Annotated[
        int | None, Meta(description="bytes of the session's memory pool on the GPU; null: it has none, or was not open")
    ] = None
    arena_used_bytes: Annotated[
        int | None, Meta(description="bytes of that pool that tensors and recorded passes had when this was written")
    ] = None
    text_encoder_bytes: Annotated[int | None, Meta(description="bytes of the text encoder's weights; null: not known")] = None
    text_encoder_on_device: Annotated[
        bool | None, Meta(description="they lie in the memory that `peak_bytes` counts; null: not known")
    ] = None
    contestant: Annotated[Contestant | None, Meta(description="what it is in the attention grid; null elsewhere")] = None
    command: Annotated[str, Meta(description="command line of a program; empty: it is none")] = ""


class Span(Line, frozen=True, kw_only=True):
    """One timed region of one clip."""

    variant: Annotated[str, Meta(description="variant")]
    clip: Annotated[int, Meta(description="number of the clip among this variant's clips, from 0, warm-up included")]
    order: Annotated[int, Meta(description="position of the clip in the whole run, from 0")]
    palindrome: Annotated[int | None, Meta(description="palindrome the clip belongs to; null for warm-up")]
    name: Annotated[str, Meta(description="name of the region")]
    index: Annotated[int | None, Meta(description="number of the region's unit, e.g. the frame block")]
    start_ns: Annotated[int, Meta(description="start, from the start of the clip, ns")]
    value_ns: Annotated[int, Meta(description="duration, ns")]
    clock: Annotated[Clock, Meta(description="`perf_counter`: host clock; `cuda_event`: device clock")]
    warmup: Annotated[bool, Meta(description="the clip is a warm-up")]
    parent: Annotated[int | None, Meta(description="index of the enclosing `frame_block` or other indexed region")] = None
    thread: Annotated[int, Meta(description="thread that ran it, numbered by first use; 0 is the clip's own")] = 0
    part: Annotated[str, Meta(description="which region of this name: kind of a collective or block, name of a stage")] = ""
    rank: Annotated[int | None, Meta(description="rank that took this time; null: the slowest, or the only one")] = None
    mode: Annotated[Mode | None, Meta(description="how the call was taken apart; null: it was not")] = None

    @property
    def label(self) -> str:
        """Name of the span in tables and logs: mode, name and part, as `mode/name:part`."""
        name = f"{self.name}:{self.part}" if self.part else self.name
        return name if self.mode is None else f"{self.mode}/{name}"


class Regions(Line, frozen=True, kw_only=True):
    """Calls of and time in each region inside the frame blocks of one timed clip on a CPU, added up by path; thread 0 alone."""

    variant: Annotated[str, Meta(description="variant")]
    clip: Annotated[int, Meta(description="number of the clip among this variant's clips, from 0")]
    order: Annotated[int, Meta(description="position of the clip in the whole run, from 0")]
    blocks: Annotated[tuple[int, ...], Meta(description="frame blocks, the columns of `calls` and `value_ns`")]
    paths: Annotated[
        tuple[tuple[str, ...], ...],
        Meta(description="names from the outermost region below the frame block inwards, the rows of `calls` and `value_ns`"),
    ]
    calls: Annotated[tuple[tuple[int, ...], ...], Meta(description="how often each path was entered in each frame block")]
    value_ns: Annotated[
        tuple[tuple[int, ...], ...], Meta(description="time in each path in each frame block, regions inside it included, ns")
    ]
    region_ns: Annotated[int, Meta(description="time that marking one region takes by itself, ns")]


class Clip(Line, frozen=True, kw_only=True):
    """Line that ends a clip: all of its spans stand above it."""

    variant: Annotated[str, Meta(description="variant")]
    clip: Annotated[int, Meta(description="number of the clip among this variant's clips, from 0")]
    order: Annotated[int, Meta(description="position of the clip in the whole run, from 0")]
    palindrome: Annotated[int | None, Meta(description="palindrome the clip belongs to; null for warm-up and traced clips")]
    phase: Annotated[Phase, Meta(description="`warmup`, `timed` or `traced`")]
    num_spans: Annotated[int, Meta(description="span lines that belong to the clip")]
    peak_bytes: Annotated[
        int | None, Meta(description="peak of the whole process in this clip: bytes torch allocated on the GPU, or resident set")
    ] = None
    clocks: Annotated[Clocks | None, Meta(description="clocks while the clip ran (then with `samples`), or at its end")] = None
    calls: Annotated[int, Meta(description="calls of the caller's own function in the clip, one after the other")] = 1
    start_bytes: Annotated[int | None, Meta(description="what `peak_bytes` was when the clip began; null: not taken")] = None
    user_ns: Annotated[int | None, Meta(description="CPU time of a program outside the kernel, ns; null: no program")] = None
    system_ns: Annotated[int | None, Meta(description="CPU time of a program inside the kernel, ns; null: no program")] = None
    exit_status: Annotated[
        int | None, Meta(description="exit status of a program; negative: the signal that killed it; null: no program")
    ] = None


class Memory(Line, frozen=True, kw_only=True):
    """Memory that the process holds in a soak, right after a frame block was handed over."""

    variant: Annotated[str, Meta(description="variant")]
    clip: Annotated[int, Meta(description="number of the clip among this variant's clips, from 0")]
    frame_block: Annotated[int, Meta(description="number of the frame block")]
    resident_bytes: Annotated[int | None, Meta(description="resident set of the process on the host; null: not known")]
    allocated_bytes: Annotated[int | None, Meta(description="bytes torch holds in tensors on the GPU; null on a CPU")] = None
    reserved_bytes: Annotated[int | None, Meta(description="bytes torch's allocator holds on the GPU; null on a CPU")] = None


class Trace(Line, frozen=True, kw_only=True):
    """A profiler trace of one traced clip, taken in a run of its own."""

    variant: Annotated[str, Meta(description="variant")]
    clip: Annotated[int, Meta(description="number of the clip among this variant's clips")]
    path: Annotated[str, Meta(description="Chrome trace, gzip, relative to the run folder")]
    sha256: Annotated[str, Meta(description="SHA-256 of the file")]
    size_bytes: Annotated[int, Meta(description="size of the file")]
    first_block: Annotated[int, Meta(description="first frame block in the trace")]
    num_blocks: Annotated[int, Meta(description="frame blocks in the trace")]
    regions: Annotated[tuple[str, ...], Meta(description="regions marked in the trace; empty: all but the pieces of a pass")] = ()
    options: Annotated[
        tuple[str, ...], Meta(description="profiler options that distort times, e.g. `with_stack`; such a trace gives no figures")
    ] = ()


class LaunchedPasses(Line, frozen=True, kw_only=True):
    """Passes of a variant launched kernel by kernel, recorded to assign the kernels of its CUDA graphs to regions."""

    variant: Annotated[str, Meta(description="variant")]
    path: Annotated[str, Meta(description="kernels and regions of each pass in order, JSON, gzip, relative to the run folder")]
    sha256: Annotated[str, Meta(description="SHA-256 of the file")]


class Video(Line, frozen=True, kw_only=True):
    """A clip kept as a file to look at."""

    variant: Annotated[str, Meta(description="variant")]
    path: Annotated[str, Meta(description="file, relative to the run folder")]
    sha256: Annotated[str, Meta(description="SHA-256 of the file")]
    frames: Annotated[int, Meta(description="pixel frames")]
    fps: Annotated[int, Meta(description="pixel frames per second of playback")]
    caption: Annotated[Prose, Meta(description="what it shows")] = ""


class Quality(Line, frozen=True, kw_only=True):
    """One quality number of one variant."""

    variant: Annotated[str, Meta(description="variant")]
    metric: Annotated[str, Meta(description="name, e.g. `psnr`")]
    value: Annotated[float | None, Meta(description="the number; null: not measured or not defined, see the note")]
    unit: Annotated[str, Meta(description="unit, e.g. `dB`; empty for a plain number")]
    reference: Annotated[Prose, Meta(description="what it was measured against, e.g. `quality, fp32, cpu`; empty for none")]
    definition: Annotated[Prose, Meta(description="the formula and its constants in words")]
    n: Annotated[int, Meta(description="samples behind the number")]
    better: Annotated[Literal["higher", "lower", "neither"], Meta(description="which direction is good")]
    note: Annotated[Prose, Meta(description="why there is no value, or what to know")] = ""
    tensor: Annotated[str, Meta(description="tensor of an attention call: `out`, `lse`, `dq`, `dk`, `dv`; empty: of none")] = ""
    against: Annotated[
        Literal["selection", "dense"] | None,
        Meta(description="attention to the same selection, or to all keys; null: neither"),
    ] = None
    rank: Annotated[int | None, Meta(description="rank it was measured on; null: not of one rank")] = None


class Gate(Line, frozen=True, kw_only=True):
    """Comparison of a candidate with its reference before any timing; a candidate that fails is not timed."""

    variant: Annotated[str, Meta(description="variant")]
    reference: Annotated[str, Meta(description="variant it was held against")]
    rule: Annotated[Prose, Meta(description="what had to hold, with the tolerance")]
    passed: Annotated[bool, Meta(description="it held")]
    detail: Annotated[Prose, Meta(description="the measured figure")]
    exact: Annotated[
        bool, Meta(description="it asks for the values of the reference, within rounding; false: for less, such as finite ones")
    ] = False


class Excluded(Line, frozen=True, kw_only=True):
    """Samples that were left out of the averages when they were taken, and the reason."""

    variant: Annotated[str, Meta(description="variant")]
    span: Annotated[str, Meta(description="span name the indices count; `clip`: whole clips by number")]
    clip: Annotated[int | None, Meta(description="clip the indices are in; null: every clip, or whole clips")]
    indices: Annotated[tuple[int, ...], Meta(description="excluded indices")]
    kind: Annotated[Exclusion, Meta(description="`refused`: it cannot run here and said so; `failed`: it tried")] = "other"
    cause: Annotated[Prose, Meta(description="why, e.g. `warm-up`, `compilation`, `graph capture`")]


class End(Line, frozen=True, kw_only=True):
    """Last line. A file without it was cut short."""

    status: Annotated[Status, Meta(description="`complete`, `interrupted` (Ctrl-C or SIGTERM) or `failed`")]
    date: Annotated[str, Meta(description="end, UTC, ISO 8601")]
    wall_ns: Annotated[int, Meta(description="from the header to this line, ns")]
    message: Annotated[Prose, Meta(description="what stopped it; empty when complete")] = ""
    variant: Annotated[str, Meta(description="variant that stopped it; empty: none alone")] = ""


Record = (
    Header | AttentionCell | Surroundings | Variant | Links | Prediction | Span | Regions | Clip | Memory | Trace
    | LaunchedPasses | Video | Quality | Gate | Excluded | Server | Viewer | End
)  # fmt: skip
LINES: Final = (
    Header, AttentionCell, Surroundings, Variant, Links, Prediction, Span, Regions, Clip, Memory, Trace, LaunchedPasses, Video,
    Quality, Gate, Excluded, Server, Viewer, End,
)  # fmt: skip
