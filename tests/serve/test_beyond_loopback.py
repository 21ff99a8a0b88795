"""A server that others reach: printed addresses answer, so do probes, and a proxy is told what it must pass."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from live_server import Running, serving
from strobe.cli.serve import _addresses
from strobe.serve.settings import ServeSettings

TOKEN = "correct horse battery"
SOCKETS = ("/v1/stream",)


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


@pytest.mark.parametrize("path", SOCKETS)
def test_a_socket_asked_for_without_an_upgrade_says_what_a_proxy_must_pass(running: Running, path: str) -> None:
    answer = httpx.get(running.http + path)
    assert answer.status_code == 426 and answer.headers["upgrade"] == "websocket"
    assert "proxy_set_header Upgrade $http_upgrade" in answer.text and "HTTP/1.1" in answer.text
