"""A server on the tiny model for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from live_server import CHROMIUM, Running, serving
from strobe.engine.load import load

T = TypeVar("T")


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
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, T]], T]:
    def call(work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(120):
                return await work

        return asyncio.run(bounded())

    return call
