"""A server on the tiny model for the tests of this folder."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from live_server import CHROMIUM, TOKEN, Running, serving
from strobe.engine.load import load
from strobe.engine.model import Model
from tiny_model import well_read_model


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(suspend_s=1.0, resume_s=60.0) as here:
        yield here


@pytest.fixture(scope="module")
def bundled() -> Iterator[Running]:
    """A server on the bundled model, whose pictures are such that an encoder keeps them."""
    with serving(load("shapes"), suspend_s=1.0, resume_s=60.0) as here:
        yield here


@pytest.fixture(scope="module")
def closed() -> Iterator[Running]:
    """A server that asks for a token, and takes the name of a proxy too."""
    with serving(token=TOKEN, allow_host=("proxy.example",)) as here:
        yield here


@pytest.fixture(scope="module")
def model() -> Model:
    return well_read_model()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, which has two minutes."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def bounded() -> None:
        async with asyncio.timeout(120):
            await pyfuncitem.obj(**given)

    asyncio.run(bounded())
    return True
