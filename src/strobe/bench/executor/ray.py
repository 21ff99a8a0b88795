"""Executor over the machines of a Ray cluster.

Ray places a cell and starts nothing but a worker; the worker starts the cell as on any machine (`local`), in processes of its
own, and sends back what it printed and left. Nothing that is measured runs inside Ray. The GPUs of a cell are visible to all its
ranks: Ray hides those of others from the worker, not the ranks' from each other.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import strobe
from strobe.bench.executor.local import GRACE_S, Cell, Finished, LocalExecutor, Resources, Status
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError
from strobe.core.libraries import broken, install

EXTRA: Final = "ray"
SEAT: Final = "strobe_node"
"""Ray resource of each machine, 1 in all (`ray start --resources`): cells that measure times take it whole, others a part."""
PART: Final = 0.001
LOOK_S: Final = 0.25
RETRIES: Final = 2
"""Attempts after machines that were lost."""
SILENCE_S: Final = 60.0
"""Seconds after timeout and grace at which a placed cell without an answer counts as lost."""


@dataclass(kw_only=True, eq=False)
class Sent:
    """A submitted cell: its placement, pending answer and lost machines.

    Args:
        group: its placement.
        answer: pending answer of the worker.
        node: where it is placed, as soon as that is known, and since when.
        lost: machines of earlier attempts.
    """

    cell: Cell
    group: Any = None
    answer: Any = None
    node: str = ""
    placed: float = 0.0
    lost: list[str] = field(default_factory=list)
    finished: Finished | None = None


class RayExecutor:
    """Executor over the machines of a Ray cluster; a cell that measures times is alone on its machine.

    A machine that is lost with a cell on it costs the cell its attempt: it is placed again, up to `RETRIES` times, and
    `Finished.lost` says where it was.

    Args:
        address: address of the cluster, `HOST:PORT`; empty: the one of this machine.

    Raises:
        ImplUnavailableError: ray is not installed.
        StrobeError: there is no cluster.
    """

    def __init__(self, address: str = "") -> None:
        if why := broken("ray.util.placement_group"):
            raise ImplUnavailableError("ray", f"{why}; {install(EXTRA)} installs it", ["local"])
        self._ray: Any = importlib.import_module("ray")
        self._groups: Any = importlib.import_module("ray.util.placement_group")
        self._sent: list[Sent] = []
        if not self._ray.is_initialized():
            try:
                if address:  # Ray itself takes a minute to say that nobody is there
                    host, _, port = address.rpartition(":")
                    socket.create_connection((host, int(port)), timeout=5).close()
                self._ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
            except (OSError, ValueError) as error:
                raise StrobeError(f"no Ray cluster at {address or 'this machine'}: {_first_line(error)}; {_START}") from error

    def at_once(self, resources: Resources) -> int:
        """Return twice as many cells as the cluster holds, so that a machine that becomes free has the next one."""
        fitting = self._fitting(resources)
        return max(1, 2 * (len(fitting) if resources.exclusive else sum(int(each["CPU"]) // resources.cpus for each in fitting)))

    def submit(self, cell: Cell) -> Sent:
        """Queue a cell.

        Raises:
            ConfigError: the cluster has no such machine, free or not.
        """
        if refusal := self._refusal(cell.resources):
            raise ConfigError(refusal)
        sent = Sent(cell=cell)
        self._place(sent)
        self._sent.append(sent)
        return sent

    def wait(self, handle: Sent) -> Finished:
        """Wait for the end of a cell. Its timeout counts from its start on its machine. On Ctrl-C it is ended."""
        try:
            while handle.finished is None:  # the others go on meanwhile: what is done makes room, what is lost is placed again
                under_way = [each for each in self._sent if each.finished is None]
                for each in under_way:
                    self._look(each)
                if handle.finished is None:
                    self._ray.wait([each.answer for each in under_way if each.finished is None], num_returns=1, timeout=LOOK_S)
        except KeyboardInterrupt:
            self.cancel(handle)
            raise
        return handle.finished

    def cancel(self, handle: Sent) -> Finished:
        """End a cell now, or take it out of the queue."""
        if handle.finished is not None:
            return handle.finished
        self._ray.cancel(handle.answer)
        came, _ = self._ray.wait([handle.answer], num_returns=1, timeout=GRACE_S + 5)
        found = self._read(handle.answer) if came else ""
        return self._finish(handle, found if isinstance(found, Finished) else _nothing("cancelled"))

    def _place(self, sent: Sent) -> None:
        """Reserve the cell's machine and submit it to it, without waiting for either."""
        wanted = sent.cell.resources
        bundle = _bundle(wanted)
        sent.group, sent.node, sent.placed = self._groups.placement_group([bundle], strategy="STRICT_PACK"), "", 0.0
        where = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy(sent.group, 0)
        remote = self._ray.remote(
            max_retries=0, scheduling_strategy=where, num_cpus=wanted.cpus, num_gpus=wanted.gpus, resources={SEAT: bundle[SEAT]}
        )
        sent.answer = remote(_run).remote(sent.cell, (sys.executable, strobe.__version__))

    def _look(self, sent: Sent) -> None:
        """Take the answer if it came, else check that it can still come."""
        found = self._read(sent.answer) if self._ray.wait([sent.answer], timeout=0)[0] else self._absence(sent)
        if isinstance(found, Finished):
            self._finish(sent, found)
        elif found:
            self._lose(sent, found)

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
        if not sent.node:
            table = self._groups.placement_group_table(sent.group)
            if table["state"] != "CREATED":
                return self._refusal(sent.cell.resources)
            (sent.node,), sent.placed = table["bundles_to_node_id"].values(), time.monotonic()
        if sent.node not in self._offers():
            return "the machine left the cluster"
        silent = time.monotonic() - sent.placed - sent.cell.timeout_s - GRACE_S > SILENCE_S
        return f"no word {SILENCE_S:g} s after its timeout" if silent else ""

    def _lose(self, sent: Sent, reason: str) -> None:
        """Handle a lost attempt: place the cell again, or finish it as lost after the last retry."""
        self._ray.cancel(sent.answer, force=True)
        sent.lost.append(self._name(sent.node) if sent.node else "not placed")
        refusal = self._refusal(sent.cell.resources)
        if not refusal and len(sent.lost) <= RETRIES:
            self._groups.remove_placement_group(sent.group)
            self._place(sent)
            return
        said = f"attempt {len(sent.lost)} was lost on {sent.lost[-1]}: {reason}; {refusal or 'keep its machines up'}"
        self._finish(sent, replace(_nothing("lost"), stderr=said))

    def _finish(self, sent: Sent, found: Finished) -> Finished:
        if found.status != "lost" and not sent.node:
            self._absence(sent)  # it was over before anyone looked where it was
        self._groups.remove_placement_group(sent.group)
        sent.finished = replace(found, node=self._name(sent.node) if sent.node else "", lost=tuple(sent.lost))
        return sent.finished

    def _name(self, node: str) -> str:
        """Return address and first digits of Ray's id: one machine may hold several nodes."""
        found = next((each for each in self._ray.nodes() if each["NodeID"] == node), None)
        return f"{found['NodeManagerAddress'] if found else 'node'} ({node[:8]})"

    def _offers(self) -> dict[str, Mapping[str, float]]:
        """Return the total resources of each living machine, by node id."""
        return {node["NodeID"]: {"CPU": 0.0, "GPU": 0.0, **node["Resources"]} for node in self._ray.nodes() if node["Alive"]}

    def _fitting(self, wanted: Resources) -> list[Mapping[str, float]]:
        needed = _bundle(wanted).items()
        return [has for has in self._offers().values() if all(has.get(what, 0.0) >= amount for what, amount in needed)]

    def _refusal(self, wanted: Resources) -> str:
        """Return the reason why the cluster can never run such a cell; empty if it can."""
        if self._fitting(wanted):
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
    """Return the resources that Ray reserves for a cell."""
    gpus = {"GPU": float(wanted.gpus)} if wanted.gpus else {}
    return {"CPU": float(wanted.cpus), SEAT: 1.0 if wanted.exclusive else PART, **gpus}


def _run(cell: Cell, sender: tuple[str, str]) -> Finished | None:
    """Run a cell to its end, on a worker. Return None if the worker's raylet ends: the cluster then lost this machine."""
    python, version = sender
    if version != strobe.__version__:
        raise ConfigError(f"strobe {strobe.__version__} is installed there and {version} here; install the same")
    if cell.argv[0] == python:
        cell = replace(cell, argv=(sys.executable, *cell.argv[1:]))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # by which Ray cancels: a node started in the background ignores it
    raylet, executor = os.getppid(), LocalExecutor()
    running = executor.submit(cell)
    try:
        while (found := executor.poll(running, LOOK_S)) is None:
            if os.getppid() != raylet:
                executor.cancel(running)
                return None
    except KeyboardInterrupt:
        found = executor.cancel(running)
    return found


def _nothing(status: Status) -> Finished:
    return Finished(status=status, code=None, stdout="", stderr="", swept=0)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
