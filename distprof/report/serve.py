"""Handing a timeline to Perfetto's page: the browser fetches it from this machine, and it goes nowhere else."""

from __future__ import annotations

import http.server
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

ORIGIN = "https://ui.perfetto.dev"
# Perfetto's page may fetch from this port of the own machine and from no other.
PORT = 9001
_HOST = "127.0.0.1"


class TimelineServer(http.server.HTTPServer):
    """Serves one file to one page, on the loopback interface; `fetched` once it was handed over whole.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, path: Path, port: int = PORT) -> None:
        self.path = path
        self.fetched = False
        super().__init__((_HOST, port), _Handler)

    @property
    def address(self) -> str:
        """The page that shows the timeline."""
        return f"{ORIGIN}/#!/?url=http://{_HOST}:{self.server_port}{self.place}"

    @property
    def place(self) -> str:
        """The file's path on the server."""
        return f"/{quote(self.path.name)}"

    def serve_until_fetched(self) -> None:
        """Answer requests until the file was fetched."""
        while not self.fetched:
            self.handle_request()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: TimelineServer
    server_version = "distprof"
    sys_version = ""
    timeout = 60  # a client that says nothing must not hold up the one that asks

    def do_GET(self) -> None:
        with self._answered() as found:
            if found:
                with self.server.path.open("rb") as file:
                    shutil.copyfileobj(file, self.wfile)
                self.server.fetched = True

    def do_HEAD(self) -> None:
        with self._answered():
            pass

    @contextmanager
    def _answered(self) -> Iterator[bool]:
        """Send the headers; whether the file is what was asked for."""
        # A page that found a name for this machine in a DNS of its own would send that name.
        local = self.headers.get("Host", "").partition(":")[0] in (_HOST, "localhost")
        found = local and self.path == self.server.place
        if found:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(self.server.path.stat().st_size))
            self.send_header("Access-Control-Allow-Origin", ORIGIN)
            self.send_header("Cache-Control", "no-cache")
            self.end_headers()
        else:
            self.send_error(404)
        yield found

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nothing to tell the user about."""
