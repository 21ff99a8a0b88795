"""Settings of the server: one schema for the configuration file, the environment and the flags."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from strobe.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeSettings:
    """Address, access control and limits of a server.

    Args:
        host: address to listen on.
        port: port to listen on; 0: any that is free.
        allow_host: another name by which browsers may address it, such as that of a proxy; may be given several times.
        token: what viewers must know, at least 16 characters; needed unless the host is loopback.
        tls_cert: file of a certificate.
        tls_key: file of its key.
        insecure_http: listen on another address than loopback without TLS.
        start_buffer_s: seconds of video that a viewer holds before it plays.
        streams: the most streams that may be open.
        suspend_s: seconds after which a stream that is paused or unwatched is moved to main memory.
        resume_s: seconds after which a stream that nobody watches is closed.
        keep: folder in which streams outlive this server: the next one, or another that shares it, goes on with them, bit by bit.
        keep_every: frame blocks between two snapshots there; 0: none, a stream is then made again from its prompts.

    Raises:
        ConfigError: a number out of bounds, or an address that others reach without a token or TLS; names the flag of
            `strobe serve`.
    """

    host: str = "127.0.0.1"
    port: int = 7860
    allow_host: tuple[str, ...] = ()
    token: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure_http: bool = False
    start_buffer_s: float = 0.5
    streams: int = 32
    suspend_s: float = 20.0
    resume_s: float = 300.0
    keep: Path | None = None
    keep_every: int = 8

    @property
    def names(self) -> tuple[str, ...]:
        """Names beside loopback by which the server may be addressed."""
        return self.allow_host if is_loopback(self.host) else (*self.allow_host, self.host, socket.gethostname())

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port {self.port}: give 1 to 65535, or 0 for any that is free")
        for name, value, least, most in (
            ("--buffer", self.start_buffer_s, 0.05, 10.0),
            ("--streams", self.streams, 1, 10_000),
            ("--suspend", self.suspend_s, 0.5, 86_400.0),
            ("--resume", self.resume_s, 1.0, 604_800.0),
            ("--keep-every", self.keep_every, 0, 100_000),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{name} {value:g}: give {least:g} to {most:g}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("a certificate needs its key: give both --tls-cert and --tls-key, or neither")
        if not is_loopback(self.host):
            if not self.token:
                raise ConfigError(f"--host {self.host} can be reached by others: give --token, or listen on 127.0.0.1")
            if self.tls_cert is None and not self.insecure_http:
                raise ConfigError(
                    f"--host {self.host} can be reached by others, and without TLS they can read the token: give --tls-cert and "
                    "--tls-key, put a proxy with TLS in front of 127.0.0.1, or say --insecure-http"
                )
        if not (self.token.isascii() and self.token.isprintable() and self.token == self.token.strip()):
            raise ConfigError("--token: give letters, digits and signs of ASCII, and no space at an end: headers carry no others")
        if self.token and len(self.token) < 16:
            raise ConfigError(f"--token: one of {len(self.token)} characters can be guessed; give at least 16")

    def check_files(self) -> None:
        """Check that the certificate and its key are there."""
        for flag, path in (("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            if path is not None and not path.is_file():
                raise ConfigError(f"{flag} {path}: there is no file of that name; give the certificate and its key as PEM files")


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine's loopback."""
    name = host.strip("[]").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
