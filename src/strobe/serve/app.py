"""The server's application, and its socket: the page, streams, and endpoints for operators and `curl`."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any, Final

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from strobe.engine.model import Model
from strobe.models.shapes.grammar import CHOICES
from strobe.serve.connection import Connection
from strobe.serve.guard import Guard, refuse
from strobe.serve.hub import Hub, describe
from strobe.serve.keeper import Keeper
from strobe.serve.metrics import Metrics, log_event
from strobe.serve.protocol import Ended
from strobe.serve.settings import ServeSettings, is_loopback
from strobe.serve.store import Store
from strobe.serve.takeover import hand_over, watch_owners
from strobe.serve.worker import Worker

WARMING_UP: Final = "the server is warming up; /readyz says how far it is"
"""What a viewer is told who comes before streams can be opened."""
PAGE: Final[dict[str, tuple[str, str]]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in ("app", "player", "timeline", "strip")},
}
"""Paths of the page's files, and what they are: no path of a request ever reaches the disk."""
EXAMPLES: Final = (
    "a red circle moving left on navy",
    "a green star and a red circle moving right on gray",
    "a yellow triangle moving down on forest",
    "a blue square moving up fast on gray",
    "an orange star and a white cross gliding up on forest",
    "a cyan circle drifting right fast on black",
)
"""Prompts of the bundled model to begin with."""
NEEDS_A_SOCKET: Final = (
    "this path is a WebSocket, and the request came without an Upgrade. A proxy before this server must speak HTTP/1.1 to it and "
    "pass the headers Upgrade and Connection on; in nginx: proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; "
    'proxy_set_header Connection "upgrade";'
)
"""What a socket's path answers to a plain request."""
SENTENCES: Final = ("a paper boat on a river at dawn", "a fox running through fresh snow", "a lighthouse in a storm at night")
"""Prompts of any other model to begin with."""


class StreamServer:
    """The ASGI application with its hub, model and page.

    Args:
        model: loads what streams run, away from the event loop.
        preset: of who asks for none.

    Raises:
        ConfigError: the folder for streams cannot be written.
    """

    def __init__(
        self, model: Callable[[], Model], device: torch.device, *, preset: str = "balanced", settings: ServeSettings
    ) -> None:
        self._store = None if settings.keep is None else Store(settings.keep, resume_s=settings.resume_s)
        self.settings, self.metrics = settings, Metrics()
        self._load, self._device, self._preset = model, device, preset
        self._progress = (0, 1, "start")
        self.error: BaseException | None = None
        """Why the server could not start; None if it could."""
        self.hub: Hub | None = None
        self.words: dict[str, list[str]] = {}
        self.examples: list[str] = list(SENTENCES)
        page = {path: Route(path, functools.partial(_page_file, *where)) for path, where in PAGE.items()}
        guard = Middleware(
            Guard,
            hosts=settings.names,
            addresses=not is_loopback(settings.host),
            token=settings.token or None,
            page=tuple(page),
            secure=settings.tls_cert is not None,
            metrics=self.metrics,
        )
        self.app = Starlette(
            routes=[
                *page.values(),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                Route("/login", self._login, methods=["POST"]),
                Route("/v1/clips/{clip}", self._clip),
                WebSocketRoute("/v1/stream", self._stream),
                Route("/v1/stream", _needs_a_socket),
            ],
            middleware=[guard],
            lifespan=self._lifespan,
        )

    @property
    def ready(self) -> bool:
        return self.hub is not None and not self.hub.draining and bool(self.hub.worker.costs)

    @property
    def failure(self) -> str:
        """Reason why the server could not start, as viewers may read it; empty if it could."""
        return "" if self.error is None else describe(self.error)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        loop, settings = asyncio.get_running_loop(), self.settings
        hub = Hub(loop, self.metrics, suspend_s=settings.suspend_s, resume_s=settings.resume_s)
        starting = asyncio.create_task(self._start(hub))
        starting.add_done_callback(self._started)
        tasks = [starting, asyncio.create_task(hub.housekeeping())]
        if self._store is not None:
            hub.keeper = Keeper(self._store, settings.keep_every, self.metrics, hub.not_kept)
            tasks.append(asyncio.create_task(watch_owners(hub, hub.keeper)))
        try:
            yield
        finally:
            await self.drain()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await hub.close()

    async def _start(self, hub: Hub) -> None:
        """Load, warm up, then admit viewers; the page and `/readyz` show the progress."""

        def work() -> Worker:
            self._progress = (0, 1, "load the model")
            model = self._load()
            worker = Worker(
                model,
                self._device,
                default=self._preset,
                start_buffer_s=self.settings.start_buffer_s,
                most=self.settings.streams,
                made=hub.made,
                failed=hub.failed,
            )
            worker.start()
            return worker

        worker = await asyncio.to_thread(work)
        hub.begin(worker)
        if worker.model.name == "shapes":
            self.words, self.examples = {kind: list(words) for kind, words in CHOICES.items()}, list(EXAMPLES)
        found = await asyncio.wrap_future(worker.submit(lambda: worker.warm_up(self.examples[0], self._tell)))
        if found:
            self.metrics.suspend.observe(found["suspend_ms"] / 1e3)
            self.metrics.wake.observe(found["wake_ms"] / 1e3)
            self.metrics.stream_bytes.set(found["stream_bytes"])
        self.hub = hub
        log_event("ready", model=worker.model.name, device=str(self._device), presets=list(worker.costs))

    def _started(self, starting: asyncio.Task[None]) -> None:
        """Keep what the start raised: /readyz and the page tell it, and the command line ends with it."""
        if not starting.cancelled() and (error := starting.exception()) is not None:
            self.error = error
            log_event("failed to start", error=self.failure)

    def _tell(self, done: int, total: int, what: str) -> None:
        self._progress = (done, total, what)

    async def drain(self) -> None:
        """Save the streams, tell viewers that the server shuts down, and give the message time to leave. Again: does nothing."""
        hub = self.hub
        if hub is None or hub.draining:
            return
        hub.draining, self._progress = True, (1, 1, "shut down")
        if hub.keeper is not None:
            await hand_over(hub, hub.keeper)
        for channel in hub.channels.values():
            keeper, told = hub.keeper, "the server is shutting down"
            kept = keeper is not None and keeper.has(channel.name)
            if keeper is not None and kept:
                state = "" if keeper.up_to_date(channel.name) else " in an older state"
                told += f"; the stream is kept{state}, connect again"
            channel.tell(Ended(reason=told, resume_s=hub.resume_s if kept else 0.0))
        if any(channel.send is not None for channel in hub.channels.values()):
            await asyncio.sleep(0.3)

    async def _healthz(self, request: Request) -> Response:
        failed = self.error is not None
        return JSONResponse({"ok": not failed, "error": self.failure}, status_code=500 if failed else 200)

    async def _readyz(self, request: Request) -> Response:
        done, total, what = self._progress
        body = {"ready": self.ready, "done": done, "total": total, "doing": what, "error": self.failure}
        body["login"] = not self._guard().knows(request.headers)  # the page asks for the token then
        return JSONResponse(body, status_code=200 if self.ready else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _login(self, request: Request) -> Response:
        guard = self._guard()
        try:
            token = (await request.json()).get("token", "")
            behind_tls = request.headers.get("origin", "").startswith("https://")
            cookie = guard.login(token, secure=behind_tls) if isinstance(token, str) else None
        except PermissionError as error:
            return PlainTextResponse(f"{error}\n", status_code=429)
        except (ValueError, AttributeError, RecursionError):
            return PlainTextResponse('give {"token": "..."}\n', status_code=400)
        if cookie is None:
            self.metrics.refused.labels("login").inc()
            return PlainTextResponse("that is not the token\n", status_code=403)
        return Response(status_code=204, headers={"Set-Cookie": cookie})

    def _guard(self) -> Guard:
        layer: Any = self.app.middleware_stack
        while not isinstance(layer, Guard):
            layer = layer.app
        return layer

    async def _clip(self, request: Request) -> Response:
        path = self.hub.recordings.clips.get(request.path_params["clip"]) if self.hub is not None else None
        if path is None:
            return PlainTextResponse("there is no such clip any more; record it again\n", status_code=404)
        return FileResponse(path, media_type="video/mp4", filename="strobe.mp4")

    async def _stream(self, socket: WebSocket) -> None:
        if self.hub is None:
            await refuse(socket.scope, socket.receive, socket.send, 503, WARMING_UP)
            return
        connection = Connection(socket=socket, hub=self.hub, words=self.words, examples=self.examples, guide=_guide())
        await connection.run()


async def _needs_a_socket(request: Request) -> Response:
    """Answer a request for a socket that came without one, mostly because a proxy has not passed it on."""
    return PlainTextResponse(f"{NEEDS_A_SOCKET}\n", status_code=426, headers={"Upgrade": "websocket", "Connection": "Upgrade"})


async def _page_file(name: str, media: str, request: Request) -> Response:
    return Response(_read(name), media_type=media, headers={"Cache-Control": "no-cache"})


@functools.cache
def _guide() -> str:
    """Return the address of the page about weights of one's own, as the package names it; empty if it names none."""
    for program in entry_points(group="console_scripts", name="strobe"):
        urls = [] if program.dist is None else program.dist.metadata.get_all("Project-URL") or []
        for label, _, address in (url.partition(", ") for url in urls):
            if label == "Documentation":
                return str(address).replace("index.md", "howto_checkpoint.md")
    return ""


@functools.cache
def _read(name: str) -> bytes:
    return (files("strobe.serve") / "static" / name).read_bytes()


LARGEST_MESSAGE: Final = 8 * 2**20
"""Bytes of a viewer's message that are read from the network."""


class Listening(uvicorn.Server):
    """uvicorn, which saves streams and tells viewers before it closes their connections. It ends if the server cannot start."""

    def __init__(self, server: StreamServer, settings: ServeSettings, *, log_level: str = "warning") -> None:
        super().__init__(
            uvicorn.Config(
                server.app,
                log_level=log_level,
                access_log=False,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                ws_max_size=LARGEST_MESSAGE,
                ws_ping_interval=20.0,
                ws_ping_timeout=20.0,
                timeout_graceful_shutdown=5,
                server_header=False,
            )
        )
        self._server = server

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._server.error is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: viewers are told while their connections are still open."""
        await self._server.drain()
        await super().shutdown(sockets)
