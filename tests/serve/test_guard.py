"""Nobody comes in who should not, and what junk does is bounded."""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from live_server import CIRCLE, Running, serving
from strobe.cli.serve import _addresses
from strobe.core.errors import ConfigError
from strobe.serve import protocol
from strobe.serve.client import watch
from strobe.serve.guard import COOKIE, LOGINS_A_MINUTE, is_loopback
from strobe.serve.settings import ServeSettings

TOKEN = "correct horse battery"


@pytest.fixture(scope="module")
def closed() -> Iterator[Running]:
    with serving(token=TOKEN, allow_host=("proxy.example",)) as here:
        yield here


def test_addresses_that_others_reach_need_a_token_and_tls() -> None:
    with pytest.raises(ConfigError, match="token"):
        ServeSettings(host="0.0.0.0")
    with pytest.raises(ConfigError, match="TLS"):
        ServeSettings(host="0.0.0.0", token=TOKEN)
    with pytest.raises(ConfigError, match="guessed"):
        ServeSettings(token="short")
    with pytest.raises(ConfigError, match="key"):
        ServeSettings(tls_cert=Path("cert.pem"))
    assert ServeSettings(host="0.0.0.0", token=TOKEN, insecure_http=True).host == "0.0.0.0"
    assert is_loopback("127.0.0.1") and is_loopback("[::1]") and is_loopback("localhost")
    assert not is_loopback("127.0.0.1.evil.example") and not is_loopback("192.168.0.1")


@pytest.mark.parametrize("path", ["/", "/metrics", "/v1/stream"])
def test_another_host_name_is_refused_even_on_loopback(running: Running, path: str) -> None:
    answer = httpx.get(running.http + path, headers={"Host": "evil.example"})
    assert answer.status_code == 403 and "--allow-host" in answer.text
    assert httpx.get(running.http + "/readyz", headers={"Host": "localhost:9999"}).status_code == 200  # through a tunnel


async def test_a_page_of_another_origin_is_refused(running: Running) -> None:
    assert httpx.get(running.http + "/readyz", headers={"Origin": "https://evil.example"}).status_code == 403

    async def connected(origin: str) -> None:
        async with connect(f"{running.ws}/v1/stream", origin=origin):  # type: ignore[arg-type]
            pass

    await connected(running.http)
    with pytest.raises(WebSocketException):
        await connected("https://evil.example")


def test_the_token_opens_and_nothing_else_does(closed: Running) -> None:
    for path in ("/metrics", "/v1/clips/x"):
        assert httpx.get(closed.http + path).status_code == 401
        assert httpx.get(closed.http + path, params={"token": TOKEN}).status_code == 401  # never in a URL
        assert httpx.get(closed.http + path, headers={"Authorization": f"Bearer {TOKEN}x"}).status_code == 401
    assert httpx.get(closed.http + "/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert httpx.get(closed.http + "/").status_code == httpx.get(closed.http + "/readyz").status_code == 200


async def test_the_event_log_never_has_a_prompt(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    async with watch(running.ws, prompt=CIRCLE):
        pass
    told = capfd.readouterr().err
    assert "stream opened" in told and "circle" not in told


def test_a_login_gives_a_cookie_that_scripts_cannot_read(closed: Running) -> None:
    with httpx.Client(base_url=closed.http) as browser:
        assert browser.post("/login", json={"token": "wrong"}).status_code == 403
        answer = browser.post("/login", json={"token": TOKEN})
        told = answer.headers["set-cookie"]
        assert answer.status_code == 204 and "HttpOnly" in told and "SameSite=Strict" in told and TOKEN not in told
        assert browser.get("/metrics").status_code == 200 and "Secure" not in told
        behind_tls = {"host": "localhost", "origin": "https://localhost"}  # a proxy ends TLS
        assert "; Secure" in browser.post("/login", json={"token": TOKEN}, headers=behind_tls).headers["set-cookie"]
        for body in (b"", b"[]", b"{", b'{"token": 3}', b"[" * 3000):
            assert browser.post("/login", content=body).status_code in (400, 403)
        assert browser.post("/login", content=b"x" * 5000).status_code == 413
        codes = {browser.post("/login", json={"token": "guess"}).status_code for _ in range(LOGINS_A_MINUTE)}
        assert 429 in codes


def test_only_the_token_of_a_server_makes_its_cookie(closed: Running) -> None:
    """Who does not know the token cannot compute the cookie, neither from no token nor from another one."""
    codes = {}
    for token in ("", "another one", TOKEN):
        digest = hmac.new(token.encode(), b"strobe login", hashlib.sha256).hexdigest()
        codes[token] = httpx.get(f"{closed.http}/metrics", headers={"cookie": f"{COOKIE}={digest}"}).status_code
    assert codes == {"": 401, "another one": 401, TOKEN: 200}


def test_the_page_knows_from_readyz_alone_whether_to_ask_for_the_token(closed: Running, running: Running) -> None:
    """A proxy may keep `/metrics` from the outside."""
    assert httpx.get(f"{closed.http}/readyz").json()["login"]
    assert not httpx.get(f"{closed.http}/readyz", headers={"authorization": f"Bearer {TOKEN}"}).json()["login"]
    assert not httpx.get(f"{running.http}/readyz").json()["login"]


def test_the_page_runs_no_script_but_its_own(running: Running) -> None:
    answer = httpx.get(running.http + "/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    text = answer.text
    assert (
        "<script>" not in text
        and " onclick" not in text
        and " style=" not in text
        and "http" not in text.replace("https://", "http")
    )


def test_no_path_of_a_request_reaches_the_disk(running: Running) -> None:
    for path in ("/static/app.js", "/../app.py", "/%2e%2e/app.py", "/app.py", "/v1/clips/..%2f..%2fetc%2fpasswd", "//etc/passwd"):
        assert httpx.get(running.http + path).status_code == 404


async def test_whoever_says_too_much_is_let_go(running: Running) -> None:
    async def flood() -> str:
        async with watch(running.ws) as viewer:
            with suppress(WebSocketException, OSError):
                for _ in range(3000):
                    await viewer.send(protocol.PaintedFrame(frame=0, generation=0, epoch=0))
                async for message in viewer:
                    if isinstance(message, protocol.Error):
                        return message.message
        return "closed"

    told = await flood()
    assert "messages a second" in told or told == "closed"


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Running]:
    with serving(host="0.0.0.0", token=TOKEN, insecure_http=True) as here:
        yield here


def said(port: int, *request: str) -> str:
    """Send a request as it stands; return the first line of the answer."""
    with socket.create_connection(("127.0.0.1", port), 10) as wire:
        wire.sendall("\r\n".join((*request, "", "")).encode())
        return wire.recv(4096).decode().splitlines()[0]


def test_every_address_that_is_printed_answers(everywhere: Running) -> None:
    url, others = _addresses(everywhere.server.settings, "0.0.0.0", everywhere.port)
    assert len(others) == 2 and "0.0.0.0" not in url + "".join(others)
    for address in (url, others[0]):
        assert httpx.get(address).status_code == 200, address
    tunnel = re.match(r"ssh -L (\d+):([\d.]+):(\d+) \S+   then (\S+)$", others[1])
    assert tunnel is not None and int(tunnel[1]) == urlsplit(tunnel[4]).port
    through = httpx.get(f"http://{tunnel[2]}:{tunnel[3]}/", headers={"Host": urlsplit(tunnel[4]).netloc})
    assert through.status_code == 200


@pytest.mark.parametrize(
    ("host", "bound", "shown", "target"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1", "localhost", "127.0.0.1"),
        ("::1", "::1", "[::1]", "[::1]"),
        ("192.0.2.2", "192.0.2.2", "192.0.2.2", "192.0.2.2"),
        ("box.example", "192.0.2.2", "box.example", "192.0.2.2"),
        ("::", "::", "[::1]", "[::1]"),
    ],
)
def test_the_tunnel_leads_to_where_it_listens(host: str, bound: str, shown: str, target: str) -> None:
    url, others = _addresses(ServeSettings(host=host, token=TOKEN, insecure_http=True), bound, 7860)
    assert url == f"http://{shown}:7860/" and others[-1].startswith(f"ssh -L 7860:{target}:7860 ")


@pytest.mark.parametrize("host", ["192.0.2.2:7860", "[2001:db8::2]:7860", "10.1.2.3", socket.gethostname()])
def test_an_address_of_the_machine_is_its_own_name_beyond_loopback(everywhere: Running, running: Running, host: str) -> None:
    assert httpx.get(everywhere.http, headers={"Host": host}).status_code == 200
    assert httpx.get(running.http, headers={"Host": host}).status_code == 403  # on loopback nobody comes under that name


@pytest.mark.parametrize("host", ["evil.example", "192.0.2.2.evil.example", "[", "", "0x7f.1.evil"])
def test_a_name_that_dns_could_give_to_anybody_is_refused(everywhere: Running, host: str) -> None:
    assert httpx.get(everywhere.http, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_are_answered_under_any_host_and_under_none(everywhere: Running, running: Running, path: str) -> None:
    for here in (everywhere, running):
        for host in ("10.244.1.7:7860", "pod.cluster.local", "["):
            assert httpx.get(here.http + path, headers={"Host": host}).status_code == 200
        assert said(here.port, f"GET {path} HTTP/1.0").split()[1] == "200"
        assert said(here.port, "GET / HTTP/1.0").split()[1] == "403"
        assert httpx.get(here.http + path, headers={"Host": "pod", "Origin": "https://evil.example"}).status_code == 403


def test_a_socket_asked_for_without_an_upgrade_says_what_a_proxy_must_pass(running: Running) -> None:
    answer = httpx.get(running.http + "/v1/stream")
    assert answer.status_code == 426 and answer.headers["upgrade"] == "websocket"
    assert "proxy_set_header Upgrade $http_upgrade" in answer.text and "HTTP/1.1" in answer.text
