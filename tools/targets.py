"""Fuzz targets: each with seeds to start from, tokens of its language, and a check that takes any bytes.

A check may raise `StrobeError`, which is how bad input is refused; whatever else it raises is a finding.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from strobe.core.errors import StrobeError

ROOT = Path(__file__).parents[1]
Check = Callable[[bytes, Path], None]
ODD_NUMBERS = (
    b"-1", b"0", b"-0.0", b"1e400", b"1e-400", b"-1e308", b"9" * 30, b"9" * 5000, b"2147483648", b"9223372036854775808", b"0x1f",
    b"1e999999999", b"NaN", b"-Infinity", b"1,5", b"1_000", b"+3",
)  # fmt: skip
ODD_TEXTS = (
    b'"', b"\\", b'\\"', b"\\u", b"\\ud83d", b"\x00", b"\n", b"\xff", b"\xe2\x80\xae", b"\x1b[31m", b"[/b]", b"../", b"null",
    b"[" * 3000, b'{"a":' * 1500, b"[]", b"{}", b"]}", b"},{", b"true", b" ", b"x" * 9000,
)  # fmt: skip


class Target(NamedTuple):
    """One kind of file.

    Args:
        seeds: whole files.
        tokens: pieces of its language.
        check: reads bytes as such a file.
        json: whether parts of it may be changed as JSON: `lines`, `whole` or neither.
    """

    seeds: Sequence[bytes]
    tokens: Sequence[bytes]
    check: Check
    json: str = ""


def kept(name: str) -> list[bytes]:
    """Read the inputs that were findings once, a line of base64 each: they are seeds, and a test runs each."""
    path = ROOT / "tests" / "fuzz" / "corpus" / f"{name}.b64"
    return [base64.b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []


def targets() -> dict[str, Callable[[], Target]]:
    """Map each target's name to its maker; one imports only what it needs."""
    return {
        "traces": _traces, "pages": _pages, "records": _records, "logs": _logs, "markdown": _markdown, "snapshots": _snapshots,
        "checkpoints": _checkpoints,
    }  # fmt: skip


def _traces() -> Target:
    from fuzz_trace_reader import check, seeds

    tokens = (
        b'"traceEvents": [',
        b'"ph":"X"',
        b'"cat":"kernel"',
        b'"correlation":0',
        b"\x1f\x8b",
        b'"args":null',
        b"\xef\xbb\xbf",
    )

    def one_way(data: bytes, folder: Path) -> None:
        """Read it once or twice: three times as many inputs an hour, and each way still gets every third."""
        check(data, folder, ((), ("shapes",), ("details",))[len(data) % 3])

    return Target(seeds(), tokens, one_way)


def _pages() -> Target:
    """Make the target of a trace's page, whose events hold any values."""
    from fuzz_trace_reader import seeds
    from strobe.perf.report.study import TraceOptions, load_trace_study
    from strobe.perf.report.trace_page.build import build_trace_report
    from strobe.perf.report.write import render

    operators = [
        {
            "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * number, "dur": 5,
            "args": {"External id": number + 1, "Input Dims": [[4, 8], [8, 16]], "Input type": ["float"] * 2, "Seq": 3},
        }
        for number, name in enumerate(("aten::mm", "aten::add"))
    ]  # fmt: skip
    work = [
        {
            "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": 10 * number + 3, "dur": 4,
            "args": {
                "device": 0, "stream": 7, "correlation": number + 1, "External id": number + 1, "grid": [1, 1, 1],
                "block": [32, 1, 1], "bytes": 64, "Collective name": "allreduce", "Process Group Ranks": "[0, 1]",
            },
        }
        for number, (cat, name) in enumerate((("kernel", "ncclDevKernel"), ("gpu_memcpy", "Memcpy DtoD"), ("kernel", "k<1>")))
    ]  # fmt: skip
    launches = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "ts": 10 * number, "dur": 2,
         "args": {"correlation": number + 1}}
        for number in range(2)
    ]  # fmt: skip
    meta = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132}],
        "distributedInfo": {"rank": 0, "world_size": 2},
    }
    small = json.dumps(meta | {"traceEvents": [*operators, *launches, *work]}).encode()

    def check(data: bytes, folder: Path) -> None:
        (folder / "t.json").write_bytes(data)
        study = load_trace_study([folder / "t.json"], TraceOptions(by="shape" if len(data) % 2 else "name"))
        report = build_trace_report(study)
        assert render(report, "md") and render(report, "json")

    return Target(
        [small, *(seed for seed in seeds()[:4])], (b'"nn.Module: A_0"', b'"strobe::frame_block#1"'), check, json="whole"
    )


def _records() -> Target:
    from strobe.perf.records.store import read_bytes, read_run, records_file

    lines = read_bytes(records_file(ROOT / "benchmarks" / "engine-h200" / "vae")).splitlines(keepends=True)
    kinds: dict[bytes, list[bytes]] = {}
    for line in lines:
        kinds.setdefault(line.split(b",", 1)[0], []).append(line)
    seed = b"".join(line for own in kinds.values() for line in own[:4])

    def check(data: bytes, folder: Path) -> None:
        (folder / "records.jsonl").write_bytes(data)
        read_run(folder)

    return Target([seed], (b'{"record":"span"', b'"record":"clip"', b'"v":99', b'"value_ns":'), check, json="lines")


def _logs() -> Target:
    from strobe.perf.logs.reader import read_log

    seeds = [path.read_bytes() for path in sorted((ROOT / "tests" / "data" / "logs").glob("*.log"))]

    def check(data: bytes, folder: Path) -> None:
        (folder / "a.log").write_bytes(data)
        read_log(folder / "a.log")

    return Target(seeds, (b"ms", b">>>> VSA time: 0.0095 ms", b"\r", b"\x1b[2K", b"rank 1", b"[Rank 3]", b"it/s", b":"), check)


def _markdown() -> Target:
    from strobe.lint.document import read_markdown
    from strobe.lint.rules import findings

    pages = ("docs/speedup.md", "docs/traces.md", "README.md")
    table = (
        b"| a | P99 (ms) | Change |\n|---|---:|---|\n| p | 12.5 | 2.00x |\n| Total | 30 ms +- 2 | -40 % |\n\n4 x 3 ms = 13 ms.\n"
    )
    seeds = [table, *((ROOT / page).read_bytes()[:6000] for page in pages)]

    def check(data: bytes, folder: Path) -> None:
        findings(read_markdown(data.decode("utf-8", "replace")))

    return Target(
        seeds, (b"|", b"\n|---|\n", b"# ", b"```", b" ms", b" x ", b" = ", b" -> ", b"%", b"**", b"<!--", b"Total"), check
    )


def _snapshots() -> Target:
    import tempfile

    import torch

    from strobe.cache.kv import CacheState
    from strobe.engine import snapshot
    from strobe.engine.presets import baseline
    from strobe.engine.prompts import Blend, Change
    from strobe.engine.snapshot import Identity, StreamState

    identity = Identity(model="m", weights_hash="0" * 64, config=replace(baseline(), window=4, sink=1), seed=1, samples=(0,))
    early = StreamState(
        next_block=2, prompts=("a",), blend=None, history=torch.ones(1, 2, 4, 2, 2), decoder=(True, (torch.ones(3), None))
    )
    late = replace(
        early,
        blend=Blend(start=torch.ones(1, 3, 4), target=torch.zeros(1, 3, 4), done=1, total=2),
        start=torch.ones(1, 2, 4, 2, 2),
        stale=True,
        undelivered=torch.ones(1, 2, 4, 4, 3, dtype=torch.uint8),
    )
    cache = CacheState(
        keys=torch.ones(2, 1, 4, 1, 4), values=torch.ones(2, 1, 4, 1, 4), sink_keys=torch.ones(2, 1, 2, 1, 4), origin=0, end=6
    )
    seeds = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "s"
        for state, pending in ((early, Change(prompts=("b",), mode="recache", over=1)), (late, None)):
            snapshot.Snapshot(identity=identity, state=state, cache=cache, pending=pending).save(path)
            seeds.append(path.read_bytes())

    def check(data: bytes, folder: Path) -> None:
        (folder / "s").write_bytes(data)
        with (  # as if whoever changed the file had made its digests good again: what is behind them is tried too
            contextlib.suppress(StrobeError),
            mock.patch.multiple(snapshot, _sha256=lambda text: mock.ANY, tensor_digest=lambda tensor: mock.ANY),
        ):
            snapshot.read_snapshot(folder / "s", torch.device("cpu"))
        snapshot.read_snapshot(folder / "s", torch.device("cpu"))

    return Target(seeds, (b'"shape":[', b'"data_offsets":[', b'"dtype":"F64"', b'\\"version\\":', b"__metadata__", b"I64"), check)


def _checkpoints() -> Target:
    import torch
    from safetensors.torch import save

    from strobe.models.checkpoint import read_shapes, read_tensors

    warnings.simplefilter("ignore")  # torch tells of every odd pickle
    tensors = {"a.weight": torch.ones(2, 3), "b.bias": torch.ones(4, dtype=torch.bfloat16)}
    packed = io.BytesIO()
    torch.save(tensors, packed)
    old = io.BytesIO()
    torch.save(tensors, old, _use_new_zipfile_serialization=False)

    def check(data: bytes, folder: Path) -> None:
        name = "w.safetensors" if b'"dtype"' in data[:4000] else "w.pt"
        (folder / name).write_bytes(data)
        with contextlib.suppress(StrobeError):
            read_shapes(folder / name)
        read_tensors(folder / name)

    seeds = [save(tensors), packed.getvalue(), old.getvalue()]
    return Target(seeds, (b'"dtype":"F8"', b"PK\x03\x04", b"\x80\x02", b"cos\nsystem\n", b"R.", b"data.pkl"), check)


class Mutator:
    """A maker of new inputs from a target's seeds: as bytes, as tokens, and as JSON with other values."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target, self._rng = target, random.Random(seed)
        self._tokens = (*ODD_NUMBERS, *ODD_TEXTS, *target.tokens)

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self._one()

    def _one(self) -> bytes:
        rng = self._rng
        data = rng.choice(self._target.seeds)
        if self._target.json and not data.startswith(b"\x1f\x8b") and rng.random() < 0.7:
            data = self._as_json(data)
            if rng.random() < 0.8:
                return data
        if data.startswith(b"\x1f\x8b") and rng.random() < 0.5:
            return gzip.compress(self._as_bytes(gzip.decompress(data)), 1)
        return self._as_bytes(data)

    def _as_bytes(self, data: bytes) -> bytes:
        rng, text = self._rng, bytearray(data)
        for _ in range(1 + min(rng.getrandbits(3), rng.getrandbits(3))):
            at = rng.randrange(len(text) + 1)
            match rng.randrange(6):
                case 0:
                    text[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    text[at:at] = rng.choice(self._tokens)
                case 2:
                    del text[at : at + rng.randrange(64)]
                case 3:
                    other = rng.choice(self._target.seeds)
                    start = rng.randrange(len(other))
                    text[at : at + rng.randrange(64)] = other[start : start + rng.randrange(400)]
                case 4:
                    del text[at:]
                case _:
                    text = self._number(text)
        return bytes(text)

    def _number(self, text: bytearray) -> bytearray:
        """Replace a number by an odd one."""
        places = [at for at, code in enumerate(text) if 48 <= code < 58]
        if not places:
            return text
        start = stop = self._rng.choice(places)
        while stop < len(text) and 48 <= text[stop] < 58:
            stop += 1
        return text[:start] + self._rng.choice(ODD_NUMBERS) + text[stop:]

    def _as_json(self, data: bytes) -> bytes:
        if self._target.json == "lines":
            lines = data.splitlines(keepends=True)
            number = self._rng.randrange(len(lines))
            lines[number] = self._changed(lines[number]) + b"\n"
            self._rng.random() < 0.1 and self._rng.shuffle(lines)
            return b"".join(lines)
        return self._changed(data)

    def _changed(self, data: bytes) -> bytes:
        """Replace some values of a JSON document."""
        document = json.loads(data)
        marks: dict[str, bytes] = {}
        for number in range(1 + self._rng.getrandbits(2)):
            parent: Any = None
            node, key = document, None
            while isinstance(node, dict | list) and node and (parent is None or self._rng.random() < 0.85):
                parent = node
                key = self._rng.choice(list(node)) if isinstance(node, dict) else self._rng.randrange(len(node))
                node = node[key]
            if parent is not None:
                parent[key] = mark = f"@{number}@"
                marks[mark] = self._rng.choice(
                    (*ODD_NUMBERS[:10], b'"x"', b'""', b"null", b"[]", b"{}", b"[-3, 2]", b"true", b'"\\u202e"')
                )
        text = json.dumps(document).encode()
        for mark, value in marks.items():
            text = text.replace(f'"{mark}"'.encode(), value)
        return text
