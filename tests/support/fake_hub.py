"""A Hugging Face hub on this machine: the routes by which its library finds and fetches the files of a repository."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import forked

MAIN, OLD = "a" * 40, "b" * 40
"""Commits: of `main`, and of the tag `v1`."""
REVISIONS = {"main": MAIN, MAIN: MAIN, "v1": OLD, OLD: OLD}


@dataclass(kw_only=True)
class Hub:
    """Repositories and who asked for what.

    Args:
        repositories: files by repository; the commit of `v1` has the same ones.
        gated: repositories whose files are for those who accepted terms.
        fetched: files that were sent, with the commit.
    """

    repositories: Mapping[str, Mapping[str, bytes]]
    gated: tuple[str, ...] = ()
    fetched: list[str] = field(default_factory=list)
    port: int = 0

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request."""
        route = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/?]+)(?:\?.*)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = route or file
        if found is None:
            return 404, {}, b"{}"
        repository, revision = found[1], found[3] if route else found[2]
        if repository not in self.repositories:
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if revision not in REVISIONS:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files, commit = self.repositories[repository], REVISIONS[revision]
        if file:
            if repository in self.gated:
                return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
            if file[3] not in files:
                return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
            digest = hashlib.sha256(files[file[3]]).hexdigest()
            return 200, {"ETag": f'"{digest}"', "X-Repo-Commit": commit}, files[file[3]]
        if found[2] == "tree":
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            return 200, {}, json.dumps(listed).encode()
        said = {"id": repository, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        return 200, {}, json.dumps(said).encode()

    def environment(self, home: Path) -> dict[str, str]:
        """Variables by which the hub's library comes here, with a cache of its own."""
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{self.port}", "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        return hub | {"HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "*"}

    def run(self, code: str, home: Path, **variables: str) -> str:
        """What Python prints that meets this hub."""
        done = forked.run(code, environment=self.environment(home) | variables)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Run a hub as long as the body takes."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)
                if "/resolve/" in self.path and status == 200:
                    hub.fetched.append(self.path.partition("/resolve/")[2])

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.port = server.server_port
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
