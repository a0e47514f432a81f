"""A web server on this machine that sends a file of weights, also badly."""

from __future__ import annotations

import contextlib
import http.server
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.helpers.media_server import serve


@dataclass
class WeightsHost:
    """What the server sends, which a test may change at any time, and the paths that were requested."""

    data: bytes
    address: str = ""
    status: int = 200
    requests: list[str] = field(default_factory=list)


@contextlib.contextmanager
def weights_host(data: bytes) -> Iterator[WeightsHost]:
    """Serve ``data`` under every path."""
    host = WeightsHost(data)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host.requests.append(self.path)
            self.send_response(host.status)
            self.send_header("Content-Length", str(len(host.data)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(host.data)

        def log_message(self, format: str, *args: object) -> None: ...

    with serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as host.address:
        yield host
