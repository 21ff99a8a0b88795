"""The page in a browser behind a real nginx with the file of docs/deploy.md, at the root and under a prefix that is stripped."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from certificate import write_certificate
from live_server import CHROMIUM, TOKEN, Running, recorded, serving

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
PROGRAMS = {"chromium": CHROMIUM, "nginx": NGINX, "openssl": shutil.which("openssl")}
MISSING = [name for name, found in PROGRAMS.items() if found is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: apt-get install {' '.join(MISSING)}")
DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"
AROUND = """
pid {folder}/pid; error_log {folder}/error.log; daemon off; master_process off;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {site}
}}
"""


def documented(server: Running, port: int, folder: Path) -> str:
    """The site of docs/deploy.md, with the ports and files of this test in place of those it names."""
    site = re.search(r"```nginx\n(.*?)^```$", DEPLOY.read_text(), re.M | re.S)
    assert site is not None
    text = re.sub(r"    server 127\.0\.0\.1:7861;\n", "", site[1])
    for old, new in (
        ("127.0.0.1:7860", f"127.0.0.1:{server.port}"),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/letsencrypt/live/video.example.org/fullchain.pem", str(folder / "cert.pem")),
        ("/etc/letsencrypt/live/video.example.org/privkey.pem", str(folder / "key.pem")),
    ):
        assert old in text, f"docs/deploy.md names no {old}"
        text = text.replace(old, new)
    return text


@contextmanager
def nginx(server: Running, folder: Path, *changes: tuple[str, str]) -> Iterator[str]:
    """Run nginx with the documented site, changed; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    write_certificate(folder)
    site = documented(server, port, folder)
    for old, new in changes:
        assert old in site, f"docs/deploy.md has no {old!r}"
        site = site.replace(old, new)
    config = folder / "nginx.conf"
    config.write_text(AROUND.format(folder=folder, site=site))
    process = subprocess.Popen([str(NGINX), "-p", str(folder), "-c", str(config)], stderr=subprocess.PIPE, text=True)
    address = f"https://127.0.0.1:{port}"
    try:
        ends = time.monotonic() + 20
        while True:
            try:
                httpx.get(address, verify=False)
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < ends, (folder / "error.log").read_text()
                time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("prefix", ["/", "/strobe/"])
def test_the_page_logs_in_plays_and_downloads(browser: Any, closed: Running, tmp_path: Path, prefix: str) -> None:
    under = [("location / {", f"location {prefix} {{"), ("http://strobe;", "http://strobe/;")] if prefix != "/" else []
    with nginx(closed, tmp_path, *under) as address:
        context = browser.new_context(ignore_https_errors=True, accept_downloads=True)
        page = context.new_page()
        page.goto(address + prefix.rstrip("/") + "/")
        page.locator("#token").wait_for(state="visible", timeout=20_000)
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        page.locator("body[data-first='1']").wait_for(timeout=60_000)
        assert "h264" in page.inner_text("#facts")  # a secure context behind TLS
        (cookie,) = context.cookies()
        assert cookie["path"] == (prefix.rstrip("/") or "/") and cookie["secure"] and cookie["httpOnly"]
        recorded(page, tmp_path / "clip.mp4")
        if prefix == "/":
            assert httpx.get(f"{address}/metrics", verify=False, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 403
        context.close()


def test_a_proxy_that_passes_no_upgrade_is_told_what_to_pass(browser: Any, tmp_path: Path) -> None:
    with serving() as here, nginx(here, tmp_path, ("proxy_set_header Upgrade $http_upgrade;", "")) as address:
        page = browser.new_page(ignore_https_errors=True)
        page.goto(address)
        page.get_by_text("proxy_set_header Upgrade $http_upgrade").wait_for(timeout=20_000)
        page.close()
