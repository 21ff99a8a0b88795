"""Records of runs: the schema that readers and writers share."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated as A
from typing import Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, field

from strobe.core.errors import DataError
from strobe.core.files import file_inside

# Base type of record lines, schema versions, and `Prose` for text that no program reads.

SCHEMA_VERSION: Final = 2


def said(meaning: str) -> Meta:
    """Describe a key in the manual of the records."""
    return Meta(description=meaning)


Prose: TypeAlias = A[str, Meta(extra={"prose": True})]
"""Text for a reader. It may be reworded at any time: code checks at most whether it is empty, never its words."""


class Line(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower, tag_field="record"):
    """One line of `records.jsonl`."""

    v: A[int, said("schema version of this line")] = SCHEMA_VERSION


# Record structs of a machine's clocks and of a GPU's settings.


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks and thermal state at one moment, or of a GPU during a clip; null where the machine does not report a value."""

    source: A[str, said("source of the values: `nvml`, `kernel` (CPU values only), or `none`; `nvidia-smi` in older records")]
    cpu_mhz: A[int | None, said("mean current clock of the CPU cores, MHz")] = None
    governor: A[str | None, said("CPU frequency governor of the first core")] = None
    load: A[float | None, said("1-minute load average of the machine")] = None
    sm_mhz: A[
        int | None,
        said("SM clock, MHz; during a clip: median of the readings of a busy GPU (of all readings if it was never busy)"),
    ] = None
    memory_mhz: A[int | None, said("GPU memory clock, MHz; during a clip: median of the same readings")] = None
    power_mw: A[int | None, said("GPU power draw, mW; during a clip: mean of all readings")] = None
    temperature_c: A[int | None, said("GPU temperature, degrees Celsius; during a clip: highest reading")] = None
    throttle: A[tuple[str, ...], said("active GPU throttle reasons; during a clip: those of any reading")] = ()
    samples: A[int | None, said("number of NVML readings during the clip; null: a single reading")] = None
    idle_samples: A[int | None, said("number of these readings in which the GPU was idle")] = None
    sm_mhz_min: A[int | None, said("lowest SM clock of the readings behind `sm_mhz`, MHz")] = None
    sm_mhz_max: A[int | None, said("highest SM clock of the readings behind `sm_mhz`, MHz")] = None
    energy_mj: A[int | None, said("energy that the GPU took during the clip, by its own counter, mJ; null: it has none")] = None
    read_ns: A[
        int | None, said("total time that the readings took on their own thread, ns; an upper bound on what they cost the clip")
    ] = None


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a GPU (persistence, MIG, power limit, highest clock); null where the driver does not report them."""

    persistence: A[bool | None, said("true: persistence mode is on")] = None
    mig: A[bool | None, said("true: the GPU is split into instances (MIG)")] = None
    power_limit_mw: A[int | None, said("enforced power limit, mW")] = None
    max_sm_mhz: A[int | None, said("highest SM clock that the GPU supports, MHz")] = None


# The plan of an ablation: the cells to measure, as written in `plan.json`.

PLAN: Final = "plan.json"

Kind = Literal["base", "setting", "workload", "leave-one-out", "product"]
"""Change of a cell: none (the base), one setting, the clip or batch, one optimisation off, or several factors."""


class PlannedCell(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an ablation.

    Args:
        name: of its folder.
        kind: what it changes.
        changes: value by factor, as text.
        refused: why it cannot be measured at all; empty if it can.
    """

    name: str
    kind: Kind
    changes: dict[str, str]
    refused: str = ""

    @property
    def factor(self) -> str:
        return ", ".join(self.changes)

    @property
    def value(self) -> str:
        """New values of the changed factors, in the same order, joined by commas."""
        return ", ".join(self.changes.values())


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of an ablation and the base they are compared with.

    Args:
        base: the preset that everything is compared with.
        request: what must agree between all cells, as text.
        values: value of the base by factor, as text.
        idle: optimisations that the base has and that do nothing here, and why.
        cells: in order.
    """

    base: str
    request: dict[str, str]
    values: dict[str, str]
    idle: dict[str, str]
    cells: tuple[PlannedCell, ...]


def read_plan(folder: Path) -> Plan:
    """Read the plan of an ablation's folder."""
    file = folder / PLAN
    try:
        return msgspec.json.decode(file_inside(folder, PLAN).read_bytes(), type=Plan)
    except OSError as error:
        raise DataError(f"no ablation at {folder}: {file.name}: {error.strerror}; `strobe compare --vary` makes one") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{file} is not the plan of an ablation: {error}") from error


# Line of a run that accepts a model: one check of the model, with the bounds that it is held to and where they come from.

CheckGroup = Literal["weights", "latents", "frames", "prompt", "stream", "presets"]


class Check(Line, frozen=True, kw_only=True):
    """One check of a model that needs no official code: a value and, where a fact bounds it, a verdict."""

    group: A[CheckGroup, said("subject of the check")]
    name: A[str, said("name of the check, unique in the run, e.g. `neighbour_correlation`")]
    value: A[float | None, said("measured value; null: not a finite number, or not measured")]
    unit: A[str, said("unit of the value; empty: none")] = ""
    low: A[float | None, said("least value that passes; null: no lower bound")] = None
    high: A[float | None, said("largest value that passes; null: no upper bound")] = None
    passed: A[bool | None, said("true: within the bounds; null: reported, not judged")] = None
    meaning: A[Prose, said("definition of the value in words")] = ""
    basis: A[Prose, said("source of the bounds; of a value that is not judged: why no bound is known")] = ""
    detail: A[Prose, said("further facts, e.g. the tensor or frame block where the value was found")] = ""


# Record lines of one cell of a grid: its coordinates, predicted times of a call, and measured rates of the machine's links.

CELLS: Final = "cells"
"""Folder, inside a grid's folder, that holds the cells' run folders."""

# ------------------------------------------------------------------------------------------------------ attention names

MATMUL: Final = "matmul"
"""Variant and span: the matrix product that is timed beside the contestants, the measured peak."""
HOST: Final = "host_call"
"""Span: time until one call returned to its caller."""
STAGE: Final = "stage"
"""Span: a stage of an operator; `part` names it."""
WHOLE: Final = "whole call"
"""Stage: the whole call, in the same calls in which the other stages were timed."""
RECALL: Final = "recall"
TEMPORARY: Final = "temporary memory"
PEAK: Final = "peak memory"
SAVED: Final = "saved memory"
COSINE: Final = "cosine similarity"
L1: Final = "L1 relative error"
RMSE: Final = "RMSE"
LSE: Final = "LSE error"
RELATIVE: Final = "relative error"
WORST_HEAD: Final = "relative error of the worst head"

# ----------------------------------------------------------------------------------------------------------- tree names

CALL: Final = "tree_call"
"""Span: one call, on the slowest rank; with `rank`, on that rank."""
LOCAL: Final = "tree_local"
MERGE: Final = "tree_merge"
MESSAGE: Final = "tree_message"
"""Span: one collective; `part` is its kind."""
WAIT: Final = "tree_wait"
"""Span: time that a collective which began earlier holds a rank up; `part` is its kind."""
MEETING: Final = "tree_meeting"
"""Span: wait for the last rank, where calls are serialised and the ranks meet before each collective."""
GUIDE: Final = "guide"
"""Variant of the guide's blocks; spans are blocks, with `mode`, `rank` and their kind as `part`."""
TOTAL: Final = "total_tree_attn"
ERROR: Final = "error"
LSE_ERROR: Final = "lse_error"

Work = Literal["dense", "fine", "whole"]
"""Dense attention; the fine stage of sparse attention for a given selection; the whole sparse operator."""
Collective = Literal["gather", "exchange", "reduce", "merge"]


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """Implementation that is measured in a cell of a grid, and the computation that it performs."""

    work: A[
        Work,
        said(
            "`dense`: dense attention; `fine`: fine stage of sparse attention for a given selection; `whole`: whole sparse "
            "operator"
        ),
    ]
    impl: A[str, said("name of the implementation")]
    peer: A[bool, said("true: the implementation belongs to another library")] = False
    raster: A[bool, said("true: a whole sparse operator that takes its tokens in raster order, not in tile order")] = False
    level: A[
        float | None,
        said("share of the key tiles that it skips, or with `share` of the weight that it keeps; null: that of its cell"),
    ] = None


class AttentionCell(Line, frozen=True, kw_only=True):
    """One cell of the attention grid."""

    shape: A[str, said("name of the tensor shape")]
    sparsity: A[float | None, said("share of the key tiles skipped, 0 to 1; null where `topk` or `layer` is given")]
    topk: A[int | None, said("number of key tiles selected; null where `sparsity` or `layer` is given")]
    block: A[int, said("number of tokens in an attention block")]
    backward: A[bool, said("true: the backward pass is measured; false: the forward pass")]
    layer: A[str, said("layer whose captured q, k and v are measured; empty: they were drawn")] = ""
    step: A[int | None, said("denoise step that they were captured in, counted from 0")] = None
    text_tokens: A[int, said("number of text tokens of the captured call, which are left out")] = 0

    @property
    def budget(self) -> str:
        """Short name of the cell's budget on pages: `s0.9` (sparsity) or `k64` (top k); of captured calls layer and step."""
        if self.layer:
            return f"{self.layer}, step {self.step}"
        return f"s{self.sparsity:g}" if self.topk is None else f"k{self.topk}"

    @property
    def direction(self) -> str:
        """Direction that is timed: `forward` or `backward`."""
        return "backward" if self.backward else "forward"


class Surroundings(Line, frozen=True, kw_only=True):
    """State of the machine during a cell: busy cores, and a rank that was delayed on purpose."""

    busy_cores: A[float | None, said("number of CPU cores that were busy before the ranks began; null: not known")] = None
    delayed_rank: A[int | None, said("rank that was delayed on purpose before each call; null: none")] = None
    delay_ms: A[float, said("delay of that rank before each call, ms")] = 0.0


class LinkRate(msgspec.Struct, frozen=True, kw_only=True):
    """Latency, bandwidth and host time of one kind of collective; null where the measurement gave no finite value."""

    kind: A[Collective, said("kind of collective; `merge`: merging of partial results")]
    alpha_s: A[float | None, said("latency (alpha), s")] = None
    bytes_per_s: A[float | None, said("bandwidth, bytes per second")] = None
    host_s: A[float | None, said("time that the host takes to start one on a GPU, s; 0 on a CPU")] = None


class Links(Line, frozen=True, kw_only=True):
    """Measured rates of these ranks' links, compute and memory, and the strategy that `auto` chooses with them."""

    flops_per_s: A[float | None, said("compute rate of one rank in dense attention, FLOP per second")] = None
    memory_bytes_per_s: A[float | None, said("memory bandwidth of one rank, bytes per second")] = None
    launch_s: A[float | None, said("time that the host takes to start a local pass on a GPU, s; 0 on a CPU")] = None
    rates: A[tuple[LinkRate, ...], said("rates of each kind of collective and of merging")] = ()
    auto: A[str, said("strategy that `auto` chooses with these rates; empty: `auto` was not asked")] = ""


class SentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted collective."""

    kind: A[Collective, said("kind of collective")]
    payload: A[Prose, said("content of the message in words")]
    sent_bytes: A[float, said("bytes sent by the rank that sends most")]
    alpha_ns: A[float, said("latency, ns")]
    beta_ns: A[float, said("transfer time of these bytes at the bandwidth of the link, ns")]


class Prediction(Line, frozen=True, kw_only=True):
    """Predicted time of one strategy with the links as measured, and its components."""

    variant: A[str, said("name of the strategy")]
    total_ns: A[float | None, said("predicted time of the whole call: local + messages - hidden + host, ns; null: not finite")]
    local_ns: A[
        float | None, said("predicted time of local attention and merging by the roofline of one rank, ns; null: not finite")
    ]
    bound: A[
        Literal["flop", "memory"], said("roofline limit of local attention: compute (`flop`) or memory bandwidth (`memory`)")
    ]
    hidden_ns: A[float, said("communication time hidden behind attention, ns")] = 0.0
    messages: A[tuple[SentMessage, ...], said("predicted collectives in order")] = ()


# Lines of a run that loads a server of live streams: the server, and each viewer that came.

Arrivals = Literal["poisson", "together"]
"""Viewers come at random moments and leave, or all at once and stay."""
Refusal = Literal["", "refused", "failed"]


class Server(Line, frozen=True, kw_only=True):
    """The server that a run put under load, as the server described itself."""

    url: A[str, said("address of the server")]
    own: A[bool, said("true: the run started the server on this machine; false: it was running already")]
    model: A[str, said("model of the streams")]
    device: A[str, said("device that the server runs on; empty: not known")]
    width: A[int, said("width of a picture, pixels")]
    height: A[int, said("height of a picture, pixels")]
    fps: A[int, said("pictures per second of video")]
    block_frames: A[int, said("number of pictures in a steady frame block")]
    start_buffer_ns: A[int, said("length of video that a viewer buffers before it plays, ns")]


class Served(Line, frozen=True, kw_only=True):
    """The server's own account of one load: what it did while the viewers were there."""

    load: A[float, said("requested mean number of concurrent viewers")]
    wall_ns: A[int, said("length of the load, ns")]
    blocks: A[int, said("number of frame blocks made")]
    busy_ns: A[int, said("total time that frame blocks held the device, ns")]
    pictures: A[int, said("number of pictures encoded")]
    encode_ns: A[int, said("total time to encode them, over all encoding threads, ns")]
    stream_bytes: A[
        int | None, said("device memory of one more stream of the server's preset, measured at its start; null: not on a GPU")
    ]
    suspend_ns: A[int | None, said("mean time that the device was held to move a stream to main memory, ns; null: never")]
    wake_ns: A[int | None, said("mean time that the device was held to bring a stream back, ns; null: never")]


class Viewer(Line, frozen=True, kw_only=True):
    """One viewer of the server: arrival, admission and playback."""

    load: A[float, said("requested mean number of concurrent viewers")]
    arrivals: A[Arrivals, said("`poisson`: viewers come and go at random; `together`: all come at once and stay")]
    viewer: A[int, said("number of the viewer within this load, from 0, in order of arrival")]
    preset: A[
        str, said("preset of the stream; for a viewer that was not admitted: the preset it asked for, empty for the server's own")
    ]
    codec: A[str, said("video codec of the pictures")]
    arrived_ns: A[int, said("planned time from the start of this load to the arrival of the viewer, ns")]
    watched_ns: A[int, said("time from connecting to leaving, ns")]
    refusal: A[Refusal, said("empty: the viewer was admitted; `refused`: by the server; `failed`: the connection broke")] = ""
    cause: A[Prose, said("reason that the server gave for the refusal, or the error that broke the connection")] = ""
    first_picture_ns: A[
        int | None, said("time from connecting to the first painted picture, ns; null: no picture was painted")
    ] = None
    painted: A[int, said("number of pictures that were painted")] = 0
    late_ns: A[tuple[int, ...], said("lateness of each painted picture: time from its due time to painting, ns")] = ()
    block_gaps_ns: A[tuple[int, ...], said("times between the arrivals of consecutive frame blocks, ns")] = ()
    prompt_to_pixel_ns: A[
        tuple[int, ...], said("latency of each answered prompt: time from sending it to painting its first picture, ns")
    ] = ()
    prompt_parts_ns: A[
        dict[str, tuple[int, ...]],
        said(
            "parts of each of these latencies, ns: `wait` for the device, `text` to be encoded, `block` to be made, "
            "`picture` until it arrived, `paint` until it was painted; the rest is messages under way. Empty in older records"
        ),
    ] = msgspec.field(default_factory=dict)
    unanswered: A[
        int, said("number of prompts without a painted picture: refused, replaced by the next prompt, or sent too late")
    ] = 0
    stalls: A[int, said("number of stalls: times that the playback buffer ran empty")] = 0
    stall_ns: A[int, said("total length of the stalls, ns")] = 0
    lost: A[int, said("number of pictures that never arrived although later pictures of the same prompt did")] = 0


# Lines of a run's records: one schema for the writer, the reader and the manual.
#
# A run folder holds `records.jsonl`; every line is one of the structs below, told apart by the key `record`, with the schema
# version in `v`. Numbers carry their unit in the key (`_ns`, `_bytes`, `_mhz`); measured times are integer nanoseconds. Adding an
# optional field keeps the version; removing, renaming or redefining one raises it.

RunKind = Literal["stream", "operator", "attention", "tree", "serve", "calls", "programs", "accept"]
"""Subject of a run: clips, calls of one operator, a cell of the attention or tree grid, viewers of a server, calls
of the caller's own functions, whole programs, the acceptance of a model."""
Exclusion = Literal["warm-up", "compilation", "throttling", "refused", "failed", "damaged", "other"]
Mode = Literal["free-running", "serialised"]
"""Way in which calls of several ranks were split: nothing waits inside, or the ranks meet before each collective."""
Phase = Literal["warmup", "timed", "traced"]
Clock = Literal["perf_counter", "cuda_event"]
Status = Literal["complete", "interrupted", "failed"]


class Git(msgspec.Struct, frozen=True, kw_only=True):
    """Git commit of the code that ran."""

    commit: A[str | None, said("full commit hash; null outside a checkout")]
    dirty: A[bool | None, said("true: tracked files differ from the commit; null outside a checkout")]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Machine that ran the code: device, driver, versions, CPU, memory and clocks."""

    device: A[str, said("torch device that ran, e.g. `cpu`, `cuda:0`")]
    device_name: A[str, said("model name of the CPU or GPU")]
    gpu_count: A[int, said("number of GPUs that torch sees")]
    gpu_memory_bytes: A[int | None, said("memory of the GPU in use, bytes; null on a CPU")]
    driver: A[str | None, said("GPU driver version; null: not known")]
    cuda: A[str | None, said("CUDA version that torch was built with; null for a CPU build")]
    torch: A[str | None, said("torch version; null when torch was not used")]
    python: A[str, said("Python version")]
    os: A[str, said("operating system and kernel")]
    cpu_name: A[str, said("model name of the CPU")]
    cores: A[int, said("number of CPU cores that the process may use")]
    threads: A[int, said("number of threads that torch uses inside one operator")]
    memory_bytes: A[int | None, said("main memory of the machine, bytes; null: not known")]
    clocks: A[Clocks, said("clocks when the run began")]
    launch_blocking: A[bool, said("true: CUDA_LAUNCH_BLOCKING is set, so launches are serialised")] = False
    cublaslt_workspace_kib: A[int | None, said("CUBLASLT_WORKSPACE_SIZE at start, KiB; null: unset")] = None
    gpu: A[GpuState | None, said("settings of the GPU in use; null on a CPU")] = None

    @property
    def device_type(self) -> str:
        """Kind of device, `cpu` or `cuda`: the part of torch's device name before the number."""
        return self.device.partition(":")[0]

    @property
    def on_gpu(self) -> bool:
        return self.device_type == "cuda"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model that every variant runs."""

    name: A[str, said("name of the model, e.g. `shapes`")]
    weights_sha256: A[str, said("SHA-256 of the weights")]
    num_params: A[int, said("number of parameters of the transformer")]


class PromptAt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of the clip, and the frame block where it begins."""

    frame_block: A[int, said("number of the first frame block made with this prompt")]
    text: A[str, said("text of the prompt")]
    mode: A[str, said("method of the switch: `recache`, `soft`, `interpolate`, `shot`; `start` for the first prompt")]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts, seed, length and size of one clip; the same for every variant."""

    prompts: A[tuple[PromptAt, ...], said("prompts in order")]
    seed: A[int, said("seed of the initial noise and the renoise tensors; the same for every variant")]
    frame_blocks: A[int, said("number of frame blocks in a clip")]
    latents_per_block: A[int, said("number of latent frames in a frame block")]
    frames_first_block: A[int, said("number of pixel frames decoded from the first frame block")]
    frames_per_block: A[int, said("number of pixel frames decoded from every later frame block")]
    frames: A[int, said("number of pixel frames in a clip")]
    height: A[int, said("height of a pixel frame, pixels")]
    width: A[int, said("width of a pixel frame, pixels")]
    fps: A[int, said("pixel frames per second of playback")]
    batch: A[int, said("number of clips made at once")] = 1
    unit: A[
        Literal["frame block", "denoise step"],
        said("meaning of `frame block` in the records: one of a stream, or one denoise step over a whole clip"),
    ] = "frame block"


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that was requested and cannot run on this machine."""

    variant: A[str, said("name of the variant")]
    reason: A[str, said("requirement of the variant that the machine does not meet")]


class Header(Line, frozen=True, kw_only=True):
    """First line: the run, the code, the machine and the order of its variants."""

    run: A[str, said("name of the run folder")]
    kind: A[RunKind, said("subject: clips (`stream`), own code (`calls`, `programs`), `serve`, `accept`")] = "stream"
    date: A[str, said("start of the run, UTC, ISO 8601")]
    strobe: A[str, said("version of strobe")]
    git: A[Git, said("git commit of the code")]
    argv: A[tuple[str, ...], said("command line, then flags with a default of their own, with its value")]
    machine: A[Machine, said("machine that ran the code")]
    baseline: A[str, said("name of the variant that every speedup is relative to")]
    order: A[tuple[str, ...], said("names of variants in one palindrome as planned, e.g. B C1 C2 C2 C1 B")]
    palindromes: A[int, said("number of palindromes planned")]
    model: A[Model | None, said("model and weights; null: no model runs, e.g. in own code")] = None
    workload: A[Workload | None, said("the clip; null: none is made, e.g. by the caller's own code")] = None
    world_size: A[int, said("number of processes in the run")] = 1
    sp_degree: A[int, said("number of devices that share one sequence (sequence parallelism)")] = 1
    tp_degree: A[int, said("number of devices that share one layer (tensor parallelism)")] = 1
    logs: A[tuple[str, ...], said("paths of logs that belong to the run, relative to the run folder")] = ()
    absent: A[tuple[Absent, ...], said("variants that were requested and cannot run on this machine")] = ()


CUSTOM: Final = "custom"
"""Preset name of a variant that is not a preset."""


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One optimisation that a preset can turn on, with its state in this run."""

    name: A[str, said("name of the optimisation, e.g. `compile`, `ring_cache`")]
    value: A[str, said("resolved value as text, e.g. `on`, `off`, `8`")]
    on: A[bool, said("true: the optimisation is active in this run")]
    reason: A[Prose, said("why the optimisation is off though the preset asks for it; empty otherwise")] = ""


class SpanCost(msgspec.Struct, frozen=True, kw_only=True):
    """Least FLOPs and bytes of one call of a region in any implementation (`strobe.core.costs`), once the cache is full."""

    span: A[str, said("name of the region")]
    flops: A[int, said("floating-point operations of its matrix products; a multiply-add counts as two")]
    read_bytes: A[int, said("least number of bytes that the region reads")]
    write_bytes: A[int, said("least number of bytes that the region writes")]
    dense_flops: A[int | None, said("FLOPs of the dense operation it replaces; null: it is dense")] = None
    dtype: A[str, said("dtype of the region's matrix products; empty: dtype of the variant")] = ""
    attended_flops: A[int, said("part of `flops` proportional to the number of attended keys")] = 0
    attended_read_bytes: A[int, said("part of `read_bytes` proportional to the number of attended keys")] = 0


class Variant(Line, frozen=True, kw_only=True):
    """Settings of one variant as it ran; they can differ from the settings that were requested."""

    name: A[str, said("name of the variant; the key `variant` of all other lines refers to it")]
    preset: A[str, said("preset that the variant was built from; `custom` for the caller's own code")]
    knobs: A[tuple[Knob, ...], said("all optimisations, on and off")] = ()
    attention_impl: A[str, said("attention implementation that ran")] = ""
    attention_reason: A[Prose, said("reason why other attention implementations were passed over")] = ""
    sparsity: A[
        float | None, said("share of attention skipped (stream: of past keys; grid: of token pairs); 0 is dense; null: unknown")
    ] = None
    window: A[int | None, said("number of latent frames in the key-value cache, sink included")] = None
    sink: A[int | None, said("number of first latent frames that never leave the cache")] = None
    positions: A[str, said("temporal positions: `absolute` or `rebased`; empty: not known")] = ""
    timesteps: A[tuple[float, ...], said("denoising timesteps before the shift, in [0, 1000]")] = ()
    shift: A[float | None, said("shift of the noise schedule; null: not known")] = None
    steps: A[int | None, said("number of denoise steps per frame block; null: not known")] = None
    dtype: A[str, said("dtype of the transformer's weights and activations")] = ""
    lora: A[str | None, said("LoRAs: strength, scale and where the scale is from; null: none")] = None
    linear_format: A[str, said("format of the linear layers, e.g. `native`, `fp8`, `fp8, simulated`")] = ""
    kv_format: A[str, said("format of the cached keys and values, e.g. `native`, `int8`")] = ""
    attention_format: A[str, said("format of self-attention, e.g. `native`, `int8`; empty: not known")] = ""
    compile_mode: A[str | None, said("mode of torch.compile; null: eager")] = None
    tokens_per_block: A[int | None, said("number of tokens in a frame block; null: not known")] = None
    calls_per_stage: A[dict[str, int], said("by span name: counted calls of the region in a clip")] = field(default_factory=dict)
    costs: A[tuple[SpanCost, ...], said("least FLOPs and bytes of one call of each region")] = ()
    attended_keys: A[
        tuple[int, ...],
        said("keys that a query attends to, by frame block; the last value holds for later ones; empty: not known"),
    ] = ()
    sizes: A[dict[str, int], said("by name: sizes of one call of an operator, e.g. `q_tokens`")] = field(default_factory=dict)
    cold_start_ns: A[
        int | None, said("cold start: time to open and make a short clip, minus time to make it again, ns; null: not measured")
    ] = None
    predicted_bytes: A[
        int | None, said("memory that one session was predicted to take on its device, bytes; null: not predicted")
    ] = None
    text_encoder_bytes: A[int | None, said("bytes of the text encoder's weights; null: not known")] = None
    text_encoder_on_device: A[bool | None, said("`peak_bytes` counts these weights; null: not known")] = None
    contestant: A[Contestant | None, said("implementation and its work in a grid; null elsewhere")] = None
    command: A[str, said("command line of a program; empty: not a program")] = ""
    decoder: A[Prose, said("what decodes, where a run compares autoencoders; empty: the model's own")] = ""


class Span(Line, frozen=True, kw_only=True):
    """One timed region of one clip: one call, frame block, stage or other interval."""

    variant: A[str, said("name of the variant")]
    clip: A[int, said("number of the clip among the clips of this variant, from 0, warm-up included")]
    order: A[int, said("position of the clip among all clips of the run, from 0")]
    palindrome: A[int | None, said("number of the clip's palindrome; null outside of one, e.g. in warm-up")]
    name: A[str, said("name of the region")]
    index: A[int | None, said("number of the frame block, step or call; null: the region is not numbered")]
    start_ns: A[int, said("time from the start of the clip to the start of the region, ns")]
    value_ns: A[int, said("duration of the region, ns")]
    clock: A[Clock, said("clock of the times: `perf_counter` (host) or `cuda_event` (device)")]
    warmup: A[bool, said("true: the clip is a warm-up; leave it out of averages")]
    parent: A[int | None, said("`index` of the nearest enclosing region that has one; null: none")] = None
    thread: A[int, said("number of its thread, in order of first use; 0: main thread of the clip")] = 0
    part: A[str, said("kind of the collective or block, or name of the stage; empty: whole region")] = ""
    rank: A[int | None, said("rank whose time this is; null: the slowest rank, or the only one")] = None
    mode: A[Mode | None, said("`serialised`: ranks meet before each collective; null: call not split")] = None

    @property
    def label(self) -> str:
        """Name of the span in tables and logs: mode, name and part, as `mode/name:part`."""
        name = f"{self.name}:{self.part}" if self.part else self.name
        return name if self.mode is None else f"{self.mode}/{name}"


RankCall: TypeAlias = Sequence[Span]
"""One call on one rank: the whole of it, as a span by the name `CALL`, and the regions inside it; times count from its start."""


class Regions(Line, frozen=True, kw_only=True):
    """Calls and time of each region inside the frame blocks of one timed clip on a CPU, summed by path; thread 0 only."""

    variant: A[str, said("name of the variant")]
    clip: A[int, said("number of the clip among the clips of this variant, from 0")]
    order: A[int, said("position of the clip among all clips of the run, from 0")]
    blocks: A[tuple[int, ...], said("numbers of the frame blocks: columns of `calls` and `value_ns`")]
    paths: A[
        tuple[tuple[str, ...], ...],
        said("nested region names, from the outermost in the frame block inwards: rows of `calls` and `value_ns`"),
    ]
    calls: A[tuple[tuple[int, ...], ...], said("number of calls, by path (rows) and frame block (columns)")]
    value_ns: A[tuple[tuple[int, ...], ...], said("time with nested regions, by path (rows) and frame block (columns), ns")]
    region_ns: A[int, said("time that the recording of one region takes, ns")]


class Clip(Line, frozen=True, kw_only=True):
    """Line that ends a clip; all spans of the clip stand above it."""

    variant: A[str, said("name of the variant")]
    clip: A[int, said("number of the clip among the clips of this variant, from 0")]
    order: A[int, said("position of the clip among all clips of the run, from 0")]
    palindrome: A[int | None, said("number of the clip's palindrome; null outside of one, e.g. in warm-up")]
    phase: A[Phase, said("phase of the run; only `timed` clips count in averages")]
    num_spans: A[int, said("number of span lines of the clip")]
    peak_bytes: A[
        int | None, said("peak memory of the process in this clip: allocated by torch on a GPU, else the resident set")
    ] = None
    clocks: A[Clocks | None, said("clocks during the clip (with `samples`), or at its end")] = None
    calls: A[int, said("number of calls of the caller's own function in the clip, one after the other")] = 1
    start_bytes: A[int | None, said("memory in use at the start of the clip; null: not measured")] = None
    user_ns: A[int | None, said("CPU time of a program in user mode, ns; null: no program")] = None
    system_ns: A[int | None, said("CPU time of a program in the kernel, ns; null: no program")] = None
    exit_status: A[int | None, said("exit status of a program; negative: the signal that killed it; null: no program")] = None


class Memory(Line, frozen=True, kw_only=True):
    """Memory that the process holds, read after each frame block of a long clip."""

    variant: A[str, said("name of the variant")]
    clip: A[int, said("number of the clip among the clips of this variant, from 0")]
    frame_block: A[int, said("number of the frame block")]
    resident_bytes: A[int | None, said("resident set of the process on the host, bytes; null: not known")]
    allocated_bytes: A[int | None, said("bytes that torch holds in tensors on the GPU; null on a CPU")] = None
    reserved_bytes: A[int | None, said("bytes torch's allocator reserves on the GPU; null on a CPU")] = None


class ClipTrace(Line, frozen=True, kw_only=True, tag="trace"):
    """A profiler trace of a traced clip, which is not among the timed clips."""

    variant: A[str, said("name of the variant")]
    clip: A[int, said("number of the clip among the clips of this variant, from 0")]
    path: A[str, said("path of the Chrome trace (gzip), relative to the run folder")]
    sha256: A[str, said("SHA-256 of the file")]
    size_bytes: A[int, said("size of the file, bytes")]
    first_block: A[int, said("number of the first frame block in the trace")]
    num_blocks: A[int, said("number of frame blocks in the trace")]
    regions: A[tuple[str, ...], said("regions marked in the trace; empty: all but the pieces of a pass")] = ()
    options: A[
        tuple[str, ...], said("profiler options that distort times, e.g. `with_stack`; such a trace gives no figures")
    ] = ()


class LaunchedPasses(Line, frozen=True, kw_only=True):
    """Passes of a variant launched kernel by kernel; they assign the kernels of its CUDA graphs to regions."""

    variant: A[str, said("name of the variant")]
    path: A[str, said("file with kernels and regions of each pass (JSON, gzip), relative to the run folder")]
    sha256: A[str, said("SHA-256 of the file")]


class Video(Line, frozen=True, kw_only=True):
    """A clip that is kept as a video file."""

    variant: A[str, said("name of the variant")]
    path: A[str, said("path of the file, relative to the run folder")]
    sha256: A[str, said("SHA-256 of the file")]
    frames: A[int, said("number of pixel frames")]
    fps: A[int, said("pixel frames per second of playback")]
    caption: A[Prose, said("caption of the video")] = ""


class Quality(Line, frozen=True, kw_only=True):
    """One quality score of one variant."""

    variant: A[str, said("name of the variant")]
    metric: A[str, said("name of the metric, e.g. `psnr`")]
    value: A[float | None, said("score; null: not measured or not defined, see `note`")]
    unit: A[str, said("unit of the score, e.g. `dB`; empty: none")]
    reference: A[Prose, said("reference of the score, e.g. `quality, fp32, cpu`; empty: none")]
    definition: A[Prose, said("formula of the score and its constants in words")]
    n: A[int, said("number of samples behind the score")]
    better: A[Literal["higher", "lower", "neither"], said("direction in which the score improves")]
    note: A[Prose, said("reason why there is no score, or a remark on it")] = ""
    tensor: A[str, said("tensor of an attention call: `out`, `lse`, `dq`, `dk`, `dv`; empty: none")] = ""
    against: A[
        Literal["selection", "dense"] | None,
        said("reference of the tensor: attention to the same `selection`, or to all keys (`dense`); null: neither"),
    ] = None
    rank: A[int | None, said("rank on which the score was measured; null: not of a single rank")] = None


class Gate(Line, frozen=True, kw_only=True):
    """Comparison of a candidate with its reference before timing; a candidate that fails is not timed."""

    variant: A[str, said("name of the variant")]
    reference: A[str, said("reference of the comparison: name of a variant, or a computation in words")]
    rule: A[Prose, said("condition of the gate, with its tolerance")]
    passed: A[bool, said("true: the condition holds")]
    detail: A[Prose, said("measured figure that the condition is about")]
    exact: A[bool, said("true: it asks for the reference's values within rounding; false: for less, e.g. finite values")] = False


class Excluded(Line, frozen=True, kw_only=True):
    """Samples that are left out of averages, with the reason."""

    variant: A[str, said("name of the variant")]
    span: A[str, said("name of the spans that `indices` counts; `clip`: whole clips, by number")]
    clip: A[int | None, said("number of the clip with these spans; null: every clip, or whole clips")]
    indices: A[tuple[int, ...], said("excluded `index` values or clip numbers; empty: nothing was measured")]
    kind: A[Exclusion, said("`refused`: it declared that it cannot run here; `failed`: an error")] = "other"
    cause: A[Prose, said("reason in words, e.g. `warm-up`, `compilation`, `graph capture`")]


class End(Line, frozen=True, kw_only=True):
    """Last line of the file. A file without it was cut short."""

    status: A[Status, said("outcome of the run; `interrupted`: by Ctrl-C or SIGTERM")]
    date: A[str, said("end of the run, UTC, ISO 8601")]
    wall_ns: A[int, said("time from the start of the run to this line, ns")]
    message: A[Prose, said("reason why the run stopped; empty when complete")] = ""
    variant: A[str, said("name of the variant that stopped the run; empty: no single variant")] = ""


Record = (
    Header | AttentionCell | Surroundings | Variant | Links | Prediction | Span | Regions | Clip | Memory | ClipTrace
    | LaunchedPasses | Video | Quality | Gate | Excluded | Server | Served | Viewer | Check | End
)  # fmt: skip
LINES: Final[tuple[type[Line], ...]] = get_args(Record)


# Facts of this machine and this checkout for the header, without torch. Nothing here fails: what cannot be read is null.

_TIMEOUT_S: Final = 5.0


def git_state(file: Path) -> Git:
    """Return the commit of the checkout that tracks `file`, and whether its tracked files differ from that commit."""
    git = ["git", "-C", str(file.parent)]
    commit = _output([*git, "rev-parse", "HEAD"])
    if commit is None or _output([*git, "ls-files", "--error-unmatch", file.name]) is None:
        return Git(commit=None, dirty=None)
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    return Git(commit=commit, dirty=None if changed is None else bool(changed))


def cpu_name() -> str:
    """Return the model name of the CPU."""
    for line in _text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()


def cpu_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_mhz() -> int | None:
    """Return the mean current clock of the CPU cores, MHz; None if this machine does not report it."""
    paths = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    clocks = [int(text) / 1000 for text in map(_text, paths) if text]
    if not clocks:
        fields = (line.partition(":") for line in _text("/proc/cpuinfo").splitlines())
        clocks = [float(value) for key, _, value in fields if key.strip() == "cpu MHz"]
    return round(sum(clocks) / len(clocks)) if clocks else None


def cpu_governor() -> str | None:
    """Return the frequency governor of the first core; None if this machine does not report it."""
    return _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None


def load_average() -> float | None:
    """Return the 1-minute load average; None if this machine does not report it."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
