"""`strobe serve`: streams in a browser."""

from __future__ import annotations

import errno
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

from strobe.cli.completion import DeviceName, PresetName
from strobe.cli.console import Output, named
from strobe.cli.model import ModelFlags
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.libraries import broken, install
from strobe.serve.settings import ServeSettings

if TYPE_CHECKING:
    from strobe.engine.model import Model

NEEDS = ("starlette.applications", "uvicorn", "websockets.asyncio.client", "prometheus_client", "python_multipart")
SETTINGS: Final = named("Parameters", start_buffer_s="buffer", suspend_s="suspend", resume_s="resume")


def serve(
    *,
    preset: PresetName = "balanced",
    device: DeviceName = "auto",
    model: ModelFlags = ModelFlags(),
    settings: Annotated[ServeSettings, SETTINGS] = ServeSettings(),
    output: Output = Output(),
) -> None:
    """Show streams in a browser, and steer them there: prompts, presets, branches, recordings.

    ```
    strobe serve
    strobe serve --model wan-1.3b --weights DIR --preset balanced  # needs-files
    strobe serve --host 0.0.0.0 --token "$(cat token.txt)" --tls-cert cert.pem --tls-key key.pem  # slow
    ```

    Needs the extra serve. Ctrl-C ends it; viewers are told.

    Args:
        preset: what a viewer gets who asks for none; every preset that runs here may be asked for.
        device: auto, cpu, cuda or cuda:N.
    """
    check_installed()
    settings.check_files()
    model.check()
    listening = _listen(settings)
    from strobe.core.device import resolve_device
    from strobe.engine.resolve import check_device

    found = resolve_device(device)
    check_device(model.config(preset), found)
    from strobe.serve.app import Listening, StreamServer

    def loaded() -> Model:
        read = model.load()
        for note in read.notes:
            output.note(note)
        return read

    server = StreamServer(loaded, found, preset=preset, settings=settings)
    runs = Listening(server, settings)
    try:
        runs.config.load()
    except ssl.SSLError as error:
        raise ConfigError(f"--tls-cert {settings.tls_cert}, --tls-key {settings.tls_key}: {error}; give a pair in PEM") from error
    host, port = listening.getsockname()[:2]
    url, others = _addresses(settings, host, port)
    output.note(f"strobe serve: {url} ({model.model}, {preset}, {found})")
    for way in others:
        output.note(f"from another machine: {way}")
    output.emit({"url": url, "port": port, "model": model.model, "preset": preset, "device": str(found)})
    with listening, suppress(KeyboardInterrupt):  # uvicorn raises it again when it has closed every connection
        runs.run(sockets=[listening])
    if server.error is not None:
        raise server.error
    output.note("strobe serve: ended; every viewer was told")


def check_installed() -> None:
    """Check that what the extra `serve` installs is there.

    Raises:
        ImplUnavailableError: it is not; says what to run.
    """
    missing = [why for module in NEEDS if (why := broken(module))]
    if missing:
        raise ImplUnavailableError("serve", f"{'; '.join(missing)}; run {install('serve')}", what="verb")


def _listen(settings: ServeSettings) -> socket.socket:
    """Bind the port before anything slow is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(256)
    except OSError as error:
        listening.close()
        away = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        other = "an address of this machine to --host" if away else "another --port, or 0 for any"
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; give {other}") from error
    return listening


def _addresses(settings: ServeSettings, bound: str, port: int) -> tuple[str, list[str]]:
    """Return the address of the server on this machine, and the ways to it from another one; the socket has the address
    `bound`."""
    scheme = "https" if settings.tls_cert else "http"

    def at(host: str) -> str:
        return f"{scheme}://{_shown(host)}:{port}/"

    everywhere = bound in ("0.0.0.0", "::")  # no address that anybody could open
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
    others = [at(socket.gethostname())] if everywhere else []
    others.append(f"ssh -L {port}:{_shown(here)}:{port} {socket.gethostname()}   then {at('127.0.0.1')}")
    return at(here if everywhere else settings.host), others


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
