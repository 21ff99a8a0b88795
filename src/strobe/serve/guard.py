"""Access control: Host and Origin of every request, a token where the server is not for this machine alone, and limits."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import deque
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strobe.serve.metrics import Metrics
from strobe.serve.settings import is_loopback

COOKIE: Final = "strobe_login"
PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths that answer to any Host and to none: a load balancer asks by the machine's address, or in HTTP/1.0."""
OPEN_PATHS: Final = PROBES | {"/login"}
"""Paths that need no token; the page's own files need none either."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HARDENING: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LONGEST_BODY: Final = 4096
LOGINS_A_MINUTE: Final = 20


def is_address(name: str) -> bool:
    """Return whether a host is an IP address. No DNS answers for one, so no page of another origin can come in under it."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware that checks every request before the application.

    Args:
        hosts: names beside this machine's loopback that a Host header may have.
        addresses: it may also be any IP address, for a server that others reach.
        token: what a viewer must know; None: nothing, for a server on loopback.
        page: paths of the page's own files.
        secure: the server speaks TLS, so cookies are sent back over it alone.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str],
        addresses: bool,
        token: str | None,
        page: Iterable[str],
        secure: bool,
        metrics: Metrics,
    ) -> None:
        self._app, self._token, self._secure, self._metrics = app, token, secure, metrics
        self._hosts, self._addresses = frozenset(host.lower() for host in hosts), addresses
        self._free = OPEN_PATHS | frozenset(page)
        self._logins: deque[float] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            code, kind, message = refusal
            self._metrics.refused.labels(kind).inc()
            await refuse(scope, receive, send, code, message)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                own.update(HARDENING)
                own.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, sealed)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        """Return code, counter and sentence of why a request is refused; None if it is not."""
        host = headers.get("host", "")
        if scope["path"] not in PROBES and not self._answers_to(host):
            return 403, "host", "this server does not answer to that host name; start it with --allow-host NAME to have it do so"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return 403, "origin", "this page may not use that server: its origin is another"
        length = headers.get("content-length") or "0"
        if "transfer-encoding" in headers or not length.isdecimal() or int(length) > LONGEST_BODY:
            return 413, "body", f"a body of more than {LONGEST_BODY} bytes, or one that comes without its Content-Length"
        if scope["path"] not in self._free and not self.knows(headers):
            if "authorization" in headers:
                return 401, "token", "that is not the token"
            return 401, "token", "log in first: POST /login, or send the token as `Authorization: Bearer TOKEN`"
        return None

    def _answers_to(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # a bracket without its other
            return False
        return is_loopback(name) or name in self._hosts or (self._addresses and is_address(name))

    def knows(self, headers: Headers) -> bool:
        """Return whether the request has the token, or the cookie that replaces it."""
        if self._token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), self._token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _same(cookie.value, self._cookie())

    def login(self, token: str, *, secure: bool = False) -> str | None:
        """Return the cookie for a right token, else None; tries per minute are limited.

        Args:
            secure: the browser speaks TLS to a proxy, so it is to send the cookie over TLS alone.

        Raises:
            PermissionError: there were too many.
        """
        now = time.monotonic()
        while self._logins and now - self._logins[0] > 60:
            self._logins.popleft()
        if len(self._logins) >= LOGINS_A_MINUTE:
            raise PermissionError("too many logins; wait a minute")
        self._logins.append(now)
        if self._token is not None and not _same(token, self._token):
            return None
        only_tls = "; Secure" if self._secure or secure else ""
        # Without a path, so it is that of the login: of this server alone where a proxy has it under a prefix.
        return f"{COOKIE}={self._cookie()}; HttpOnly; SameSite=Strict; Max-Age=604800{only_tls}"

    def _cookie(self) -> str:
        """Compute the cookie that a browser keeps instead of the token."""
        return hmac.new((self._token or "").encode(), b"strobe login", hashlib.sha256).hexdigest()


def _same(given: str, expected: str) -> bool:
    """Compare two texts in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), expected.encode())


async def refuse(scope: Scope, receive: Receive, send: Send, code: int, message: str) -> None:
    """Answer a request with a status and a sentence, also one that would open a socket."""
    if scope["type"] == "websocket":
        await receive()
        if "websocket.http.response" not in scope.get("extensions", {}):  # what listens cannot do that: it answers 403
            await send({"type": "websocket.close", "code": 1008, "reason": message[:120]})
            return
    response = PlainTextResponse(message + "\n", status_code=code)
    await response(scope, receive, send)
