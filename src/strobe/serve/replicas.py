"""Replicas of the server on the machines of a Ray cluster, by Ray Serve: each owns a device, and all keep streams in one folder.

Ray's proxies carry the sockets; a socket stays with the replica that it was opened on. A replica that dies is replaced by Ray,
and its viewers come back with their secrets to any other, which takes their streams over from the folder. Ray tells a replica
that it is to end only after its last request, and an open socket is a request. A replica that is asked for its health no longer
therefore hands its streams over, which ends the sockets.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import strobe
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.libraries import broken, install
from strobe.serve.app import StreamServer
from strobe.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from strobe.engine.model import Model

NAME: Final = "strobe"
"""Of the application and of its deployment in Ray Serve."""
HEALTH_S: Final = 1.0
"""Seconds between two questions for a replica's health."""
SILENCE_S: Final = 6.0
"""Seconds without a question after which a replica knows that it is to end."""
DRAIN_S: Final = 60.0
"""Seconds that Ray gives a replica to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replicas:
    """Settings of every replica.

    Args:
        model: loads it, on the replica's machine.
        device: "cpu", or "cuda": one GPU for each, which Ray chooses.
        preset: of who asks for none.
        settings: of the server; `keep` is a folder that every machine sees.
        number: replicas.

    Raises:
        ConfigError: the settings do not fit several servers.
    """

    model: Callable[[], Model]
    device: str
    preset: str
    settings: ServeSettings
    number: int

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ConfigError(f"--replicas {self.number}: give 1 or more")
        if self.settings.keep is None:
            raise ConfigError("--executor ray: give --keep DIR too, a folder that every machine of the cluster sees")
        if self.settings.port == 0:
            raise ConfigError("--port 0: give a port; every machine of the cluster listens on the same one")
        if self.device not in ("cpu", "cuda"):
            raise ConfigError(f"--device {self.device}: give cpu or cuda; Ray chooses which GPU a replica owns")


class ReplicaApp:
    """The server's application inside a replica, made there when Ray starts it."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas, self._version = replicas, strobe.__version__
        self._server: StreamServer | None = None
        self._asked_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; the first call is that of the application's start."""
        if self._server is None:
            if self._version != strobe.__version__:
                raise ConfigError(f"strobe {strobe.__version__} is here and {self._version} at the head; install the same")
            given = self._replicas
            self._server = StreamServer(
                given.model, resolve_device(given.device), preset=given.preset, settings=given.settings, hold=True
            )
        if scope["type"] != "lifespan":
            await self._server.app(scope, receive, send)
            return
        watching = asyncio.create_task(self._watch(self._server))
        try:
            await self._server.app(scope, receive, send)
        finally:
            watching.cancel()

    def asked(self) -> None:
        """Note that Ray has asked for the replica's health.

        Raises:
            ConfigError: the server cannot go on; Ray then starts another replica.
        """
        self._asked_s = monotonic()
        if self._server is not None and self._server.failure:
            raise ConfigError(self._server.failure)

    async def _watch(self, server: StreamServer) -> None:
        """Hand the streams over once Ray asks no more; if it asks again after all, let viewers in again."""
        while True:
            await asyncio.sleep(HEALTH_S / 2)
            if self._asked_s is not None and monotonic() - self._asked_s > SILENCE_S:
                await server.drain()
            else:
                server.go_on()


def start(replicas: Replicas, address: str | None) -> Callable[[], None]:
    """Start the replicas and wait until streams can be opened.

    Args:
        address: of the Ray cluster, HOST:PORT; None: that of this machine, or a new one on it.

    Returns:
        what ends them: every replica hands its streams over.

    Raises:
        ImplUnavailableError: Ray Serve is not installed.
        ConfigError: there is no such cluster, or a replica cannot start.
    """
    if why := broken("ray.serve"):
        raise ImplUnavailableError("ray", f"{why}; {install('ray')} installs it", ["local"])
    ray: Any = importlib.import_module("ray")
    serve: Any = importlib.import_module("ray.serve")
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(f"no Ray cluster at {address}: {error}; start each machine with `ray start`") from error
    settings = replicas.settings
    options = {"host": settings.host, "port": settings.port, "location": "EveryNode"}
    if settings.tls_cert is not None:
        options |= {"ssl_certfile": str(settings.tls_cert), "ssl_keyfile": str(settings.tls_key)}
    try:
        serve.start(http_options=options)
        serve.run(_deployment(serve, ReplicaApp(replicas)), name=NAME, route_prefix="/")
    except (RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(f"the replicas cannot start: {str(error).splitlines()[0]}; `serve status` says more") from error

    def end() -> None:
        serve.delete(NAME)
        if not serve.status().applications:
            serve.shutdown()

    return end


def _deployment(serve: Any, app: ReplicaApp) -> Any:
    @serve.ingress(app)
    class _Replica:
        """A replica as Ray sees it; `app` is Ray's own copy of the application."""

        app: ReplicaApp

        def check_health(self) -> None:
            self.app.asked()

    replicas = app._replicas
    return serve.deployment(
        _Replica,
        name=NAME,
        num_replicas=replicas.number,
        max_ongoing_requests=4 * replicas.settings.streams + 64,  # an open socket is a request
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=30.0,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=DRAIN_S,
        ray_actor_options={"num_cpus": 1, "num_gpus": 1 if replicas.device == "cuda" else 0},
    ).bind()
