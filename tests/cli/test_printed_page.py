"""What a browser prints of a page, and shows of it on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from artefacts import write_guide, write_trace
from live_server import CHROMIUM
from terminal import Strobe

pytestmark = [pytest.mark.rest, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture
def browser() -> Iterator[Any]:
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def test_every_section_is_printed_and_closes_again(strobe: Strobe, browser: Any, tmp_path: Path) -> None:
    guide = write_guide(tmp_path)
    assert strobe("speedup", guide["fa_trace"], guide["vsa_trace"], "-o", tmp_path / "page").code == 0
    page = browser.new_page()
    page.goto((tmp_path / "page" / "report.html").as_uri())
    heights = "() => [...document.querySelectorAll('section')].map((section) => section.getBoundingClientRect().height)"
    shown = page.evaluate(heights)
    page.emulate_media(media="print")
    by_style = page.evaluate(heights)
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    by_script = page.evaluate(heights)
    page.emulate_media(media="screen")
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(heights) == shown
    closed = [at for at, height in enumerate(shown) if height < 100]
    assert closed and all(by_style[at] > shown[at] and by_script[at] > shown[at] for at in closed)


def test_a_long_kernel_name_does_not_widen_the_page_of_a_phone(strobe: Strobe, browser: Any, tmp_path: Path) -> None:
    name = "Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_align8>"
    path = write_trace(tmp_path / "t.json.gz", [[("kernel", name, 90_000)]] * 3)
    assert strobe("trace", path, "-o", tmp_path / "page").code == 0
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((tmp_path / "page" / "report.html").as_uri())
    page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
