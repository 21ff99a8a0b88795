"""Nobody comes in who should not, and what junk does is bounded."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import av
import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from live_server import CIRCLE, TOKEN, Running, serving
from strobe.cli.serve import _addresses
from strobe.core.errors import DataError
from strobe.serve import protocol
from strobe.serve.client import watch
from strobe.serve.guard import COOKIE, LOGINS_A_MINUTE, is_loopback
from strobe.serve.hub import KEY_EVERY_S, Encoder
from strobe.serve.protocol import CODECS, Codec, Picture, read_picture, read_viewer
from strobe.serve.settings import ServeSettings


def test_which_addresses_others_cannot_reach() -> None:
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
        assert all(browser.post("/login", content=long).status_code == 413 for long in (b"x" * 5000, iter([b"x" * 5000])))
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
    told = "closed"
    async with watch(running.ws) as viewer:
        with suppress(WebSocketException, OSError):
            for _ in range(3000):
                await viewer.send(protocol.PaintedFrame(frame=0, generation=0, epoch=0))
            async for message in viewer:
                if isinstance(message, protocol.Error):
                    told = message.message
                    break
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


# Messages: whole there and back, and nothing else passes.


U32 = st.integers(0, 2**32 - 1)


@given(st.sampled_from(sorted(CODECS)), st.booleans(), U32, U32, U32, st.integers(0, 2**53), st.binary(max_size=64))
def test_a_picture_comes_back_as_it_was(
    codec: str, key: bool, generation: int, frame: int, epoch: int, made: int, data: bytes
) -> None:
    picture = Picture(codec=codec, key=key, generation=generation, frame=frame, epoch=epoch, made_us=made, data=data)  # type: ignore[arg-type]
    assert read_picture(picture.header() + data) == picture


@given(st.binary(max_size=40))
def test_no_bytes_crash_the_reader_of_pictures(data: bytes) -> None:
    try:
        assert read_picture(data).data == data[24:]
    except DataError as error:
        assert "picture" in str(error)


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=200),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["type", "v", "text", "on", "frame"]), inner)
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value)),
    )
)
def test_no_text_crashes_the_reader_of_messages(text: str) -> None:
    try:
        read_viewer(text)
    except DataError as error:
        assert "protocol" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"open"}',
        '{"type":"open","v":1,"other":2}',
        '{"type":"prompt","text":"%s"}' % ("a" * (protocol.LONGEST_PROMPT + 1)),
        '{"type":"prompt","text":"a","mode":"fast"}',
        '{"type":"prompt","text":"a","over":0}',
        '{"type":"seen","frame":-1,"generation":0,"epoch":0}',
        '{"type":"seen","frame":1.5,"generation":0,"epoch":0}',
        '{"type":"reset","seed":-1}',
        '{"type":"welcome"}',
        "[" * 100_000,
        "\\ud800",
    ],
)
def test_what_is_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        read_viewer(text)


def test_the_page_speaks_this_version() -> None:
    text = (Path(protocol.__file__).with_name("static") / "player.js").read_text()
    assert int(re.search(r"VERSION = (\d+)", text)[1]) == protocol.VERSION  # type: ignore[index]
    assert int(re.search(r"HEADER = (\d+)", text)[1]) == len(
        Picture(codec="h264", key=True, generation=0, frame=0, epoch=0, made_us=0, data=b"").header()
    )  # type: ignore[index]
    listed = {number: name for name, number in CODECS.items()}
    assert json.loads(re.sub(r"(\d+):", r'"\1":', re.search(r"CODECS = ({.*})", text)[1].replace(" ", ""))) == {
        str(k): v for k, v in listed.items()
    }  # type: ignore[index]


def moving(count: int, height: int = 64, width: int = 96) -> list[NDArray[np.uint8]]:
    frames = []
    for number in range(count):
        frame = np.full((height, width, 3), (20, 40, 120), np.uint8)
        frame[16:48, (4 * number) % 64 : (4 * number) % 64 + 24] = (220, 200, 40)
        frames.append(frame)
    return frames


@pytest.mark.parametrize("codec", ["h264", "jpeg"])
def test_a_picture_decodes_at_once_to_its_frame(codec: Codec) -> None:
    encoder = Encoder(codec, 96, 64, 16)
    decoder = av.CodecContext.create("h264" if codec == "h264" else "mjpeg", "r")
    assert isinstance(decoder, av.VideoCodecContext)
    decoder.flags |= av.codec.context.Flags.low_delay
    decoder.thread_count = 1
    keys = []
    for number, frame in enumerate(moving(40)):
        data, key = encoder.encode(frame)
        keys.append(key)
        assert data, "the encoder held a frame back"
        (found,) = decoder.decode(av.Packet(data))
        error = (found.to_ndarray(format="rgb24").astype(float) - frame) ** 2
        assert 10 * np.log10(255**2 / error.mean()) > 27, number
    assert keys[0] and (all(keys) if codec == "jpeg" else keys.count(True) == 1 + 39 // (16 * KEY_EVERY_S))


def test_a_key_picture_names_its_codec() -> None:
    """The page reads profile and level from the sequence parameter set of a key picture."""
    data, key = Encoder("h264", 96, 64, 16).encode(moving(1)[0])
    at = data.index(b"\x00\x00\x01\x67") + 4
    assert key and data[at] in (66, 77) and data[:3] in (b"\x00\x00\x00", b"\x00\x00\x01")
