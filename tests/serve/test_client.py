"""The client in Python: what it says when there is no stream, and what a playback keeps."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from live_server import Running, serving
from strobe.core.errors import ConfigError, SessionError
from strobe.serve.client import Playback, watch

CIRCLE, TOKEN = "a red circle moving left", "correct horse battery"
Run = Callable[[Any], Any]


@pytest.fixture(scope="module")
def closed() -> Iterator[Running]:
    with serving(token=TOKEN) as here:
        yield here


async def opened(url: str, **asked: Any) -> str:
    async with watch(url, prompt=CIRCLE, **asked) as viewer:
        return viewer.welcome.preset


def test_the_server_s_status_and_sentence_are_passed_on(closed: Running, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SessionError, match=r"401: log in first.*watch\(\.\.\., token="):
        run(opened(closed.ws))
    with pytest.raises(SessionError, match="401: that is not the token"):
        run(opened(closed.ws, token="wrong horse battery"))
    monkeypatch.setattr("socket.getaddrinfo", to_loopback(socket.getaddrinfo, "other.example"))
    with pytest.raises(SessionError, match="403: .*--allow-host"):
        run(opened(f"ws://other.example:{closed.port}", token=TOKEN))
    assert run(opened(closed.ws, token=TOKEN)) == "turbo"
    monkeypatch.setattr(closed.server, "hub", None)
    with pytest.raises(SessionError, match="503: the server is warming up"):
        run(opened(closed.ws, token=TOKEN))


def to_loopback(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A look-up in which a name is that of this machine."""
    return lambda host, *rest, **more: real("127.0.0.1" if host == name else host, *rest, **more)


def test_the_address_that_the_server_prints_is_taken(running: Running, run: Run) -> None:
    assert run(opened(running.http + "/")) == "turbo"


def test_an_address_that_nobody_answers_is_named(run: Run) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"cannot connect to {url}: .*; start `strobe serve`, or give the address"):
            run(opened(url))


@pytest.mark.parametrize("url", ["127.0.0.1:7860", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port"])
def test_what_is_no_address_is_told(run: Run, url: str) -> None:
    with pytest.raises(ConfigError, match=r"give it as `strobe serve` prints it, such as http://127\.0\.0\.1:7860"):
        run(opened(url))


def test_a_playback_tells_which_prompts_were_refused(running: Running, run: Run) -> None:
    async def play() -> Playback:
        async with watch(running.ws, prompt=CIRCLE) as viewer:
            return await viewer.play(2.0, prompts=[(0.2, "a dragon in the snow"), (0.4, "a blue square moving up")])

    playback = run(play())
    assert len(playback.errors) == 1 and "dragon" in playback.errors[0]
    assert "errors=[" in repr(playback) and "_due" not in repr(playback) and "_dry" not in repr(playback)
    assert "_epoch" not in repr(playback)
