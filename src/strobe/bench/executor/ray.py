"""Executor over the machines of a Ray cluster.

Ray places a cell and starts nothing but a worker; the worker starts the cell as on any machine (`local`), in processes of its
own, and sends back what it printed and left. Nothing that is measured runs inside Ray. The GPUs of a cell are visible to all its
ranks: Ray hides those of others from the worker, not the ranks' from each other.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import strobe
from strobe.bench.executor.local import GRACE_S, Cell, Finished, Handle, LocalExecutor, Resources
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError
from strobe.core.libraries import broken, install

EXTRA: Final = "ray"
SEAT: Final = "strobe_node"
"""Ray resource of each machine, 1 in all (`ray start --resources`): cells that measure times take it whole, others a part."""
PART: Final = 0.001
LOOK_S: Final = 0.25
SILENCE_S: Final = 60.0
"""Seconds after timeout and grace at which a placed cell without an answer counts as lost."""


@dataclass(kw_only=True, eq=False)
class Sent:
    """A submitted cell: its placement, answers and lost machines.

    Args:
        group: its placement.
        answers: pending answers of the worker on each machine.
        heard: the answers that came, by rank.
        ending: one went wrong, and the others were told to end.
        nodes: where it is placed, as soon as that is known, and since when.
        lost: machines of earlier attempts.
    """

    cell: Cell
    group: Any
    answers: list[Any]
    heard: dict[int, Finished] = field(default_factory=dict)
    ending: bool = False
    nodes: tuple[str, ...] = ()
    placed: float = 0.0
    lost: list[str] = field(default_factory=list)
    finished: Finished | None = None


class RayExecutor:
    """Executor over the machines of a Ray cluster; a cell that measures times is alone on its machine.

    All machines of a cell are reserved at once or not at all. A machine that is lost with a cell on it costs the cell its
    attempt: it is placed again, up to `retries` times, and `Finished.lost` says where it was. A cell that is submitted again
    while it runs or after it was done is not run again: the answer is the same, by the cell's hash.

    Args:
        address: address of the cluster, `HOST:PORT`; None: the one of this machine.
        grace_s: between asking a cell to end and ending it.
        retries: after machines that were lost.

    Raises:
        ImplUnavailableError: ray is not installed.
        StrobeError: there is no cluster.
    """

    def __init__(self, address: str | None = None, *, grace_s: float = GRACE_S, retries: int = 2) -> None:
        if why := broken("ray.util.placement_group"):
            raise ImplUnavailableError("ray", f"{why}; {install(EXTRA)} installs it", ["local"])
        self._ray: Any = importlib.import_module("ray")
        self._groups: Any = importlib.import_module("ray.util.placement_group")
        self._grace_s, self._retries = grace_s, retries
        self._sent: dict[str, Sent] = {}
        if not self._ray.is_initialized():
            try:
                if address is not None:  # Ray itself takes a minute to say that nobody is there
                    host, _, port = address.rpartition(":")
                    socket.create_connection((host, int(port)), timeout=5).close()
                self._ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
            except (OSError, ValueError) as error:
                raise StrobeError(f"no Ray cluster at {address or 'this machine'}: {_first_line(error)}; {_START}") from error

    def at_once(self, resources: Resources) -> int:
        """Return twice as many cells as the cluster holds, so that a machine that becomes free has the next one."""
        if resources.exclusive:
            return max(1, 2 * len(self._fitting(resources)) // resources.nodes)
        return max(1, 2 * sum(int(node["CPU"]) // resources.cpus for node in self._fitting(resources).values()))

    def submit(self, cell: Cell) -> Sent:
        """Queue a cell.

        Raises:
            ConfigError: the cluster has no such machines, free or not.
        """
        held = self._sent.get(cell.digest)
        if held is not None and (held.finished is None or held.finished.status == "done"):
            return held
        refusal = self._refusal(cell.resources)
        if refusal:
            raise ConfigError(refusal)
        sent = Sent(cell=cell, group=None, answers=[])
        self._place(sent)
        self._sent[cell.digest] = sent
        return sent

    def wait(self, handle: Handle) -> Finished:
        """Wait for the end of a cell. Its timeout counts from its start on its machines. On Ctrl-C it is ended."""
        sent = _own(handle)
        try:
            while sent.finished is None:  # the others go on meanwhile: what is done makes room, what is lost is placed again
                under_way = [each for each in self._sent.values() if each.finished is None]
                for each in under_way:
                    self._look(each)
                awaited = [answer for each in under_way for rank, answer in enumerate(each.answers) if rank not in each.heard]
                if sent.finished is None:
                    self._ray.wait(awaited, num_returns=1, timeout=LOOK_S)
        except KeyboardInterrupt:
            self.cancel(sent)
            raise
        return sent.finished

    def cancel(self, handle: Handle) -> Finished:
        """End a cell now, or take it out of the queue."""
        sent = _own(handle)
        if sent.finished is not None:
            return sent.finished
        for answer in sent.answers:
            self._ray.cancel(answer)
        self._ray.wait(sent.answers, num_returns=len(sent.answers), timeout=self._grace_s + 5)
        self._hear(sent)
        return self._finish(sent, sent.heard or {0: _nothing("cancelled")})

    def _place(self, sent: Sent) -> None:
        """Reserve the cell's machines and submit it to them, without waiting for either."""
        wanted = sent.cell.resources
        bundle = _bundle(wanted)
        strategy = "STRICT_PACK" if wanted.nodes == 1 else "STRICT_SPREAD"
        sent.group = self._groups.placement_group([bundle] * wanted.nodes, strategy=strategy)
        sent.nodes, sent.placed, sent.answers, sent.heard, sent.ending = (), 0.0, [], {}, False
        meet = self._remote(sent, 0, num_cpus=0)(_meeting_point).remote() if wanted.nodes > 1 else None
        for rank in range(wanted.nodes):
            worker = self._remote(sent, rank, num_cpus=wanted.cpus, num_gpus=wanted.gpus, resources={SEAT: bundle[SEAT]})(_run)
            sent.answers.append(worker.remote(sent.cell, self._grace_s, (sys.executable, strobe.__version__), rank, meet))

    def _remote(self, sent: Sent, bundle: int, **resources: Any) -> Any:
        where = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy(sent.group, bundle)
        return self._ray.remote(max_retries=0, scheduling_strategy=where, **resources)

    def _look(self, sent: Sent) -> None:
        """Collect the answers that came, and check that the others can still come."""
        reason = self._hear(sent)
        if len(sent.heard) == len(sent.answers):
            self._finish(sent, sent.heard)
            return
        reason = reason or self._absence(sent)
        if reason:
            self._lose(sent, reason)
        elif not sent.ending and any(each.status != "done" for each in sent.heard.values()):
            sent.ending = True  # told once: a second word would disturb how they end
            for rank in set(range(len(sent.answers))) - set(sent.heard):
                self._ray.cancel(sent.answers[rank])

    def _hear(self, sent: Sent) -> str:
        """Collect new answers of the workers; return the reason why one will not come, or an empty text."""
        reason = ""
        for rank, answer in enumerate(sent.answers):
            if rank not in sent.heard and self._ray.wait([answer], timeout=0)[0]:
                found = self._read(answer)
                if isinstance(found, Finished):
                    sent.heard[rank] = found
                else:
                    reason = found
        return reason

    def _read(self, answer: Any) -> Finished | str:
        """Return a worker's result, or the reason why it has none."""
        errors = self._ray.exceptions
        try:
            found: Finished | None = self._ray.get(answer)
        except errors.TaskCancelledError:
            return _nothing("cancelled")
        except errors.RayTaskError as error:
            return replace(_nothing("failed"), stderr=f"a worker of the cluster cannot start it: {error.cause}")
        except errors.RayError as error:
            return _first_line(error)
        return "the machine left the cluster" if found is None else found

    def _absence(self, sent: Sent) -> str:
        """Return the reason why no answer will come; empty if one may."""
        if not sent.nodes:
            table = self._groups.placement_group_table(sent.group)
            if table["state"] != "CREATED":
                return self._refusal(sent.cell.resources)
            sent.nodes, sent.placed = tuple(table["bundles_to_node_id"].values()), time.monotonic()
        gone = set(sent.nodes) - {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        if gone:
            return "the machine left the cluster"
        silent = time.monotonic() - sent.placed - sent.cell.timeout_s - self._grace_s > SILENCE_S
        return f"no word {SILENCE_S:g} s after its timeout" if silent else ""

    def _lose(self, sent: Sent, reason: str) -> None:
        """Handle a lost attempt: place the cell again, or finish it as lost after the last retry."""
        for answer in sent.answers:
            self._ray.cancel(answer, force=True)
        sent.lost.append(", ".join(map(self._name, sent.nodes)) or "not placed")
        refusal = self._refusal(sent.cell.resources)
        if not refusal and len(sent.lost) <= self._retries:
            self._groups.remove_placement_group(sent.group)
            self._place(sent)
            return
        said = f"attempt {len(sent.lost)} was lost on {sent.lost[-1]}: {reason}; {refusal or 'give more retries'}"
        self._finish(sent, {0: replace(_nothing("lost"), stderr=said)})

    def _finish(self, sent: Sent, heard: Mapping[int, Finished]) -> Finished:
        found = _joined([heard[rank] for rank in sorted(heard)])
        if found.status != "lost" and not sent.nodes:
            self._absence(sent)  # it was over before anyone looked where it was
        self._groups.remove_placement_group(sent.group)
        sent.finished = replace(found, node=", ".join(map(self._name, sent.nodes)), lost=tuple(sent.lost))
        return sent.finished

    def _name(self, node: str) -> str:
        """Return address and first digits of Ray's id: one machine may hold several nodes."""
        found = next((each for each in self._ray.nodes() if each["NodeID"] == node), None)
        return f"{found['NodeManagerAddress'] if found else 'node'} ({node[:8]})"

    def _offers(self) -> dict[str, Mapping[str, float]]:
        """Return the total resources of each living machine, by node id."""
        return {node["NodeID"]: {"CPU": 0.0, "GPU": 0.0, **node["Resources"]} for node in self._ray.nodes() if node["Alive"]}

    def _fitting(self, wanted: Resources) -> dict[str, Mapping[str, float]]:
        needed = _bundle(wanted)
        return {
            node: has
            for node, has in self._offers().items()
            if all(has.get(what, 0.0) >= amount for what, amount in needed.items())
        }

    def _refusal(self, wanted: Resources) -> str:
        """Return the reason why the cluster can never run such a cell; empty if it can."""
        if len(self._fitting(wanted)) >= wanted.nodes:
            return ""
        offers = self._offers()
        has = "; ".join(
            f"{self._name(node)} {each['CPU']:g} CPU, {each['GPU']:g} GPU{'' if each.get(SEAT) else f', no {SEAT}'}"
            for node, each in offers.items()
        )
        advice = "ask for less, or add machines" if any(each.get(SEAT) for each in offers.values()) else _START
        return f"cell: asks for {wanted}; the cluster has {has or 'no machine'}; {advice}"


_START: Final = f"""start each machine with `ray start --head` or `--address HOST:PORT` and --resources='{{"{SEAT}": 1}}'"""


def _bundle(wanted: Resources) -> dict[str, float]:
    """Return the resources that Ray reserves on each machine of a cell."""
    gpus = {"GPU": float(wanted.gpus)} if wanted.gpus else {}
    return {"CPU": float(wanted.cpus), SEAT: 1.0 if wanted.exclusive else PART, **gpus}


def _run(cell: Cell, grace_s: float, sender: tuple[str, str], rank: int, meet: str | None) -> Finished | None:
    """Run a cell to its end, on a worker. Return None if the worker's raylet ends: the cluster then lost this machine."""
    python, version = sender
    if version != strobe.__version__:
        raise ConfigError(f"strobe {strobe.__version__} is installed there and {version} here; install the same")
    argv = (sys.executable, *cell.argv[1:]) if cell.argv[0] == python else cell.argv
    cell = replace(cell, argv=argv, env={**cell.env, **_gang(cell, rank, meet)}, resources=replace(cell.resources, nodes=1))
    raylet, executor = os.getppid(), LocalExecutor(grace_s)
    running = executor.submit(cell)
    try:
        while (found := executor.poll(running, LOOK_S)) is None:
            if os.getppid() != raylet:
                executor.cancel(running)
                return None
    except KeyboardInterrupt:
        found = executor.cancel(running)
    return found


def _gang(cell: Cell, rank: int, meet: str | None) -> dict[str, str]:
    """Return the environment by which `torchrun` on each machine of a cell finds the others."""
    if meet is None:
        return {}
    host, _, port = meet.rpartition(":")
    return {
        "PET_NNODES": str(cell.resources.nodes),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": port,
    }


def _meeting_point() -> str:
    """Return an address of the first machine of a cell with a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{importlib.import_module('ray').util.get_node_ip_address()}:{probe.getsockname()[1]}"


def _nothing(status: Any) -> Finished:
    return Finished(status=status, code=None, wall_s=0.0, stdout="", stderr="", swept=0)


def _joined(found: Sequence[Finished]) -> Finished:
    """Merge the results of all machines: the worst status, all texts and files."""
    if len(found) == 1:
        return found[0]
    order = ("done", "cancelled", "timeout", "failed")
    worst = max(found, key=lambda each: order.index(each.status))
    files: dict[str, bytes] = {}
    for each in found:
        files |= each.files
    return replace(
        worst,
        wall_s=max(each.wall_s for each in found),
        stdout="".join(each.stdout for each in found),
        stderr="".join(each.stderr for each in found),
        swept=sum(each.swept for each in found),
        files=files,
    )


def _own(handle: Handle) -> Sent:
    if not isinstance(handle, Sent):
        raise ConfigError(f"handle: got {handle!r}, expected one that this executor gave")
    return handle


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
