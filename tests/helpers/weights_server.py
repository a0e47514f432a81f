"""A web server on this machine that sends a file as hosts of weights do, also badly."""

from __future__ import annotations

import contextlib
import http.server
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import pytest
import requests

from tests.helpers.media_server import serve

DRIVE_ID = "1aB2cD3eF4"
CONFIRMATION_PAGE = (
    "<!DOCTYPE html><html><body><p>Google Drive can't scan this file for viruses.</p>"
    '<form id="download-form" action="https://drive.usercontent.google.com/download" method="get">'
    f'<input type="hidden" name="id" value="{DRIVE_ID}"><input type="hidden" name="confirm" value="t">'
    '<input type="hidden" name="uuid" value="0-1-2"></form></body></html>'
)


@dataclass
class WeightsHost:
    """What the server sends, which a test may change at any time, and the paths that were requested."""

    data: bytes
    address: str = ""
    status: int = 200
    requests: list[str] = field(default_factory=list)


class _Handler(http.server.BaseHTTPRequestHandler):
    host: WeightsHost

    def do_GET(self) -> None:
        host = self.host
        host.requests.append(self.path)
        address = urlsplit(self.path)
        is_drive = address.path in ("/uc", "/open", "/download")
        if host.status != 200:
            self.send_error(host.status)
        elif is_drive and parse_qs(address.query)["id"] != [DRIVE_ID]:
            self.send_error(404)
        elif address.path in ("/uc", "/open"):
            self._send(CONFIRMATION_PAGE.encode(), "text/html; charset=utf-8")
        else:
            self._send(host.data, "application/octet-stream", 'attachment; filename="PoseNet.pth"')

    def _send(self, data: bytes, kind: str, disposition: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", kind)
        if disposition:  # by which gdown knows that this is a file
            self.send_header("Content-Disposition", disposition)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...


@contextlib.contextmanager
def weights_host(data: bytes) -> Iterator[WeightsHost]:
    """Serve ``data`` under every path, as a file of Google Drive under ``/uc?id=DRIVE_ID``."""
    host = WeightsHost(data)
    handler = type("Handler", (_Handler,), {"host": host})
    with serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as host.address:
        yield host


def redirect_google_drive(monkeypatch: pytest.MonkeyPatch, host: WeightsHost) -> None:
    """Send all requests for Google Drive to the server."""
    send = requests.Session.request

    def request(self: requests.Session, method: str, url: str, **options: object) -> requests.Response:
        local = re.sub(r"^https://(drive|docs|drive\.usercontent)\.google\.com", host.address, url)
        assert local.startswith(host.address), f"{url} is another server"
        return send(self, method, local, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(requests.Session, "request", request)
