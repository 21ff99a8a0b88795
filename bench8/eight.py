# ruff: noqa: T201 -- a program that prints
"""Attention in eight bits, checked and timed: `python bench8/eight.py [--seconds 240] [--tiny]`; writes $OUT/eight.json.

Every configuration is compiled and held to the reference in a process of its own, many at a time, so that one that fails to
compile, faults or never ends costs its own place and no more. What is left is tuned, held to float64 at full size, and timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

HERE = Path(__file__).parent
SIZES = (18720, 12480, 9360)
OWN = 4680
WRONG = 0.006
"""Error against the reference on the same rounded numbers: a result rounded to bfloat16 has 0.002."""
ROOM = 1.25
"""How much larger keys and values may be than those of the first frames, which set the scales."""


class Book:
    """What was found, written whenever something was added, and the time that is left."""

    def __init__(self, seconds: float) -> None:
        self.started, self.seconds = time.perf_counter(), seconds
        self.path = Path(os.environ.get("OUT", str(HERE))) / "eight.json"
        self.found: dict[str, object] = {"dropped": {}, "tuned": {}, "error": {}, "times": {}}
        self.lines: list[str] = []

    @property
    def left(self) -> float:
        return self.seconds - (time.perf_counter() - self.started)

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:5.1f} s] {text}", flush=True)

    def write(self) -> None:
        self.path.write_text(json.dumps(self.found, indent=1, default=str))

    def table(self) -> None:
        """Print the table, last."""
        self.write()
        print("\n".join(["", *_table(self.found)]), flush=True)

    def watch(self) -> None:
        """End the process, with its table, a while after its time."""

        def end() -> None:
            self.say("out of time: ended amid its work")
            self.table()
            os._exit(1)

        timer = threading.Timer(self.seconds + 20, end)
        timer.daemon = True
        timer.start()


def _table(found: dict) -> list[str]:
    lines = []
    if found["dropped"]:
        lines += ["dropped:", *(f"  {name}: {why}" for name, why in found["dropped"].items())]
    lines.append(f"{'kernel':32} {'tile':>16} {'parts':>6} {'error real':>10} {'plain':>7}")
    for name, each in found["error"].items():
        real, plain = (f"{100 * each[kind]:.2f} %" if kind in each else "-" for kind in ("real", "plain"))
        lines.append(f"{name:32} {each.get('tile', ''):>16} {each.get('parts', ''):>6} {real:>10} {plain:>7}")
    for size, kinds in found["times"].items():
        lines.append(f"{size}, us: median [least, most]")
        names = dict.fromkeys(name for times in kinds.values() for name in times)
        lines.append(f"  {'':30} {'cold':>22} {'mixed load':>22} {'own load':>22}  SM clock, power, reasons; TFLOP/s own")
        for name in names:
            cells = []
            for kind in ("cold", "mixed", "alone"):
                times = kinds.get(kind, {}).get(name)
                cells.append("-" if times is None else f"{times['median']:.0f} [{times['min']:.0f}, {times['max']:.0f}]")
            own = kinds.get("alone", {}).get(name, {})
            rate = 4 * OWN * int(size.split("x")[1]) * 12 * 128 / own["median"] / 1e6 if own and "round" not in name else 0
            lines.append(
                f"  {name:30} "
                + " ".join(f"{cell:>22}" for cell in cells)
                + f"  {own.get('clock, power, reasons', '')}; {rate:.0f}"
            )
    return lines


def probe(index: int, tiny: bool) -> dict[str, object]:
    """Compile one configuration and hold it to the reference at an odd size, whole and in parts."""
    import call as eight
    from inputs import Shape, real_like
    from reference import Recipe, attend, error, exact

    config = eight.CONFIGS[index]
    device = "cpu" if tiny else "cuda"
    shape = Shape(frames=3, own=1, height=9, width=11, heads=1, dim=128) if tiny else Shape(
        frames=3, own=1, height=17, width=29, heads=3, dim=128
    )  # fmt: skip
    q, k, v = (x[0].half() if tiny else x[0] for x in real_like(shape, device))
    held = eight.constants(k, v, config.pv)
    cache = eight.empty_cache(k.shape[0], shape.heads, shape.dim, config.pv, k)
    middle = k.shape[0] // 2 + 3
    for start, end in ((0, middle), (middle, k.shape[0])):
        eight.store(k[start:end], v[start:end], start, held, cache, config.pv)
    scale = shape.dim**-0.5
    queries = eight.round_queries(q, scale, held)
    expected, _ = exact(q, k, v, scale)
    given = _given(eight, queries, cache, held, config.pv, k.shape[0], scale)
    out, lse = attend(given, Recipe(p=config.pv, v=config.pv, block=config.keys, own_sum=False), scale)
    tiles = -(-q.shape[0] // config.rows) * shape.heads
    told: dict[str, object] = {"index": index}
    for parts in (1, 3):
        made = eight.Call(queries, cache, held, config, eight.Cut(tiles, 1) if parts == 1 else eight.Cut(1, parts))
        for _ in range(1 if tiny else 3):
            made.launch()
        off = error(made.out, out)
        apart = (made.lse.double() - lse).abs().max().item()
        told[f"parts {parts}"] = {"to reference": off, "lse": apart, "to exact": error(made.out, expected)}
        if not off < (WRONG if parts == 1 or config.pv != "fp8" else 3 * WRONG) or not apart < 1e-3:
            told["wrong"] = f"in {parts} parts it is {off:.4f} off the reference, its lse {apart:.2g}"
            break
    return told


def _given(eight, queries, cache, held, pv, num_kv, scale):
    """The rounded numbers as the reference takes them."""
    from kernels import ORDER
    from reference import LOG2E, Prepared

    if pv == "bf16":
        v = cache.v.double().transpose(0, 1)
    else:
        order = torch.tensor(
            [32 * group + key for group in range(cache.v.shape[2] // 32) for key in ORDER], device=cache.v.device
        )
        v = torch.empty(cache.v.shape, dtype=torch.float64, device=cache.v.device)
        v[..., order] = cache.v.float().double()
        v = v.permute(2, 0, 1)[:num_kv]
    q_scale = queries.scale.double().T[..., None] / (LOG2E * scale)
    ones = torch.ones(num_kv, cache.k.shape[0], 1, dtype=torch.float64, device=v.device)
    return Prepared(queries.q.double().transpose(0, 1), cache.k.double().transpose(0, 1), v, q_scale, ones,
                    held.v_scale.double()[None], held.v_mean.double()[None])  # fmt: skip


def probed(book: Book, tiny: bool, workers: int) -> list[int]:
    """Probe all configurations; return those that are right."""
    import call as eight

    def one(index: int) -> dict[str, object]:
        if book.left < 20:
            return {"wrong": "no time left to compile it"}
        try:
            if tiny:
                return probe(index, True)
            command = [sys.executable, str(HERE / "eight.py"), "--probe", str(index)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=min(120, max(20, book.left - 60)))
        except subprocess.TimeoutExpired:
            return {"wrong": "it did not end in time"}
        except Exception as reason:  # noqa: BLE001 -- whatever a compiler raises costs one candidate
            return {"wrong": f"{type(reason).__name__}: {str(reason).strip()[-200:]}"}
        last = done.stdout.strip().splitlines()[-1:] or [""]
        if done.returncode == 0 and last[0].startswith("{"):
            return json.loads(last[0])
        errors = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return {"wrong": " | ".join(errors[-3:])[-300:] or f"exit code {done.returncode}"}

    indices = range(len(eight.CONFIGS))
    if tiny:
        first = {config.name: index for index, config in reversed(list(enumerate(eight.CONFIGS)))}
        indices = sorted(first.values())
        told = [one(index) for index in indices]
    else:
        with ThreadPoolExecutor(workers) as pool:
            told = list(pool.map(one, indices))
    right = []
    for index, each in zip(indices, told, strict=True):
        config = eight.CONFIGS[index]
        name = f"{config.name} {config.tile}"
        if "wrong" in each:
            book.found["dropped"][name] = each["wrong"]
            book.say(f"{name}: dropped: {each['wrong']}")
        else:
            right.append(index)
    book.found["probes"] = told
    book.say(f"{len(right)} of {len(told)} configurations are right")
    return right


def exact_on(q, k, v, scale: float) -> torch.Tensor:
    """Attention in float64, in chunks, `[S_q, H, D]`; kept in float32."""
    from reference import exact

    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    for head in range(q.shape[1]):
        for start in range(0, q.shape[0], 1170):
            part = slice(start, start + 1170)
            out[part, head : head + 1] = exact(q[part, head : head + 1], k[:, head : head + 1], v[:, head : head + 1], scale)[
                0
            ].float()
    return out


def others(q, k, v, scale: float, book: Book) -> dict[str, object]:
    """Return what attends in bfloat16, and eight-bit peers that are installed; q, k and v are `[S, H, D]`."""
    q, k, v = (x[None] for x in (q, k, v))
    found: dict[str, object] = {}
    try:
        sys.path.insert(0, str(HERE.parent / "src"))
        from strobe.attention.dense.api import dense_attention

        dense_attention(q, k, v, impl="fa4", softmax_scale=scale)
        found["bf16 FA4, last wave split"] = lambda: dense_attention(q, k, v, impl="fa4", softmax_scale=scale).out[0]
    except Exception as reason:  # noqa: BLE001 -- a peer that is missing costs its own place
        book.say(f"FA4: {type(reason).__name__}: {str(reason)[-200:]}")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def sdpa() -> torch.Tensor:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION] if q.is_cuda else [SDPBackend.MATH]):
            turned = (x.transpose(1, 2) for x in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(*turned, scale=scale).transpose(1, 2)[0]

    found["bf16 cuDNN"] = sdpa
    try:
        from sageattention import sageattn

        sageattn(q, k, v, tensor_layout="NHD", is_causal=False)
        found["sageattention, it rounds too"] = lambda: sageattn(q, k, v, tensor_layout="NHD", is_causal=False)[0]
    except Exception as reason:  # noqa: BLE001
        book.say(f"sageattention: {type(reason).__name__}: {str(reason)[-120:]}")
    return found


def stored(eight, q, k, v, pv, scale: float):
    """Round a whole call: the constants are of the first frames, as a stream would set them."""
    own = q.shape[0]
    held = eight.constants(k[:own], v[:own], pv, ROOM)
    cache = eight.empty_cache(k.shape[0], k.shape[1], k.shape[2], pv, k)
    eight.store(k, v, 0, held, cache, pv)
    return eight.round_queries(q, scale, held), cache, held


def fastest(eight, right: list[int], inputs, scale: float, book: Book) -> dict[str, object]:
    """Return the fastest call of each kind of kernel; calls of one format share what is rounded."""
    from measure import Replay, quick

    rounded, best, times = {}, {}, {}
    for index in right:
        config = eight.CONFIGS[index]
        if config.pv not in rounded:
            rounded[config.pv] = stored(eight, *inputs, config.pv, scale)
        try:
            made = eight.Call(*rounded[config.pv], config)
            took = quick(Replay(made.launch))
        except Exception as reason:  # noqa: BLE001
            book.found["dropped"][f"{config.name} {config.tile} at full size"] = f"{type(reason).__name__}: {str(reason)[-200:]}"
            continue
        times[f"{config.name} {config.tile}"] = [round(took, 1), made.slots, list(made.split)]
        if config.name not in best or took < best[config.name][0]:
            best[config.name] = (took, made)
    book.found["tuned"][f"{inputs[0].shape[0]}x{inputs[1].shape[0]}"] = times
    return {name: made for name, (_, made) in best.items()}


def main() -> None:
    """Check, tune and time; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--tiny", action="store_true", help="small sizes in Triton's interpreter, on a CPU")
    parser.add_argument("--probe", type=int, help="one configuration, in this process")
    parser.add_argument("--peers", help="a folder with packages to compare with")
    args = parser.parse_args()
    if args.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
        torch.set_num_threads(1)
    if args.peers:
        sys.path.append(args.peers)
    sys.path.insert(0, str(HERE))
    if args.probe is not None:
        print(json.dumps(probe(args.probe, args.tiny)))
        return
    book = Book(args.seconds)
    book.watch()
    import call as eight
    from reference import error

    name = torch.cuda.get_device_name() if not args.tiny else "CPU"
    book.found |= {"device": name, "torch": torch.__version__, "triton": eight.triton_version}
    book.say(f"{name}, torch {torch.__version__}, triton {eight.triton_version}")
    right = probed(book, args.tiny, os.cpu_count() or 4)
    book.write()
    work(book, eight, right, args.tiny, error)
    book.table()


def work(book: Book, eight, right: list[int], tiny: bool, error) -> None:
    """Hold the fastest of each kind to float64 at full size, then time all at each size."""
    from inputs import Shape, plain, real_like
    from measure import ROUNDS, Replay, alone, cold, mixed

    device = "cpu" if tiny else "cuda"
    shape = (
        Shape(frames=3, own=1, height=9, width=11, heads=1) if tiny else Shape(frames=12, own=3, height=30, width=52, heads=12)
    )
    scale = shape.dim**-0.5
    cases = {
        kind: tuple(x[0].half() if tiny else x[0] for x in draw(shape, device))
        for kind, draw in (("real", real_like), ("plain", plain))
    }
    best = {}
    for kind, inputs in cases.items():
        expected = exact_on(*inputs, scale)
        if kind == "real":
            calls = fastest(eight, right, inputs, scale, book)
        else:
            again = {name: stored(eight, *inputs, made.config.pv, scale) for name, made in best.items()}
            calls = {name: eight.Call(*again[name], made.config, made.split) for name, made in best.items()}
        best = best or calls
        for name, made in calls.items():
            made.out.fill_(float("nan"))
            made.launch()
            told = book.found["error"].setdefault(name, {"tile": made.config.tile, "parts": str(tuple(made.split))})
            told[kind] = error(made.out, expected)
        for name, peer in others(*inputs, scale, book).items():
            book.found["error"].setdefault(name, {})[kind] = error(peer(), expected)
        book.say(f"errors on {kind} inputs are known")
        book.write()
    q, k, v = cases["real"]
    del cases, best
    rounds = 2 if tiny else ROUNDS
    for place, size in enumerate((k.shape[0],) if tiny else SIZES):
        if book.left < 25:
            book.say(f"no time for {size} keys")
            break
        inputs = (q, k[-size:], v[-size:])
        calls = {name: made.launch for name, made in fastest(eight, right, inputs, scale, book).items()}
        calls |= others(*inputs, scale, book)
        for pv in ("fp8", "int8"):
            calls[f"round own q, k, v to {pv}"] = rounding(eight, inputs, pv, scale)
        replays = {}
        for name, call in calls.items():
            try:
                replays[name] = Replay(call)
            except Exception as reason:  # noqa: BLE001
                book.say(f"{name}: not recorded: {type(reason).__name__}: {str(reason)[-200:]}")
        times = book.found["times"].setdefault(f"{q.shape[0]}x{size}", {})
        times["cold"] = cold(replays, rounds, 0.0 if tiny else 0.03)
        times["mixed"] = mixed(replays, rounds, 0.0 if tiny else 3.0)
        load = 0.0 if tiny else min(3.0 if place == 0 else 1.5, max(0.3, (book.left - 20) / len(replays) / (len(SIZES) - place)))
        times["alone"] = {name: alone(replay, rounds, load) for name, replay in replays.items()}
        book.say(f"{size} keys are timed")
        book.write()


def rounding(eight, inputs, pv: str, scale: float):
    """Return what rounds the own frames' queries, keys and values of a call."""
    q, k, v = inputs
    queries, cache, held = stored(eight, q, k, v, pv, scale)
    own, start = q.shape[0], k.shape[0] - q.shape[0]

    def both() -> None:
        eight.round_queries(q, scale, held, queries)
        eight.store(k[-own:], v[-own:], start, held, cache, pv)

    return both


if __name__ == "__main__":
    main()
