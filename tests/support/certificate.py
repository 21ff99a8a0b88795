"""A certificate that signs itself, for servers of tests and of the manual's commands."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Final

REQUEST: Final = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost "
    "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -out cert.pem -keyout key.pem"
)


def write_certificate(folder: Path) -> None:
    """Write cert.pem and key.pem for this machine's loopback into a folder, with the program openssl."""
    subprocess.run(shlex.split(REQUEST), cwd=folder, check=True, capture_output=True)
