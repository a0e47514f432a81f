"""A web server on this machine that sends a file as hosts of weights do, also badly."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import pytest
import requests

DRIVE_ID = "1aB2cD3eF4"
CONFIRMATION_PAGE = (
    "<!DOCTYPE html><html><body><p>Google Drive can't scan this file for viruses.</p>"
    '<form id="download-form" action="https://drive.usercontent.google.com/download" method="get">'
    '<input type="hidden" name="id" value="{id}"><input type="hidden" name="confirm" value="t">'
    '<input type="hidden" name="uuid" value="0-1-2"></form></body></html>'
)
QUOTA_PAGE = """<!DOCTYPE html><html><body><p class="uc-error-caption">Sorry</p>
<p class="uc-error-subcaption">Too many users have viewed or downloaded this file recently.</p></body></html>"""


@dataclass
class WeightsHost:
    """What the server sends, which a test may change at any time, and the requests that it has received."""

    data: bytes
    address: str = ""
    version: str = '"1"'
    """ETag; empty for none."""
    has_ranges: bool = True
    sends_length: bool = True
    cut_after: int | None = None
    """Bytes of one answer after which the connection is cut."""
    cuts: int = 10**9
    """Number of connections that are cut."""
    status: int = 200
    quota_is_exceeded: bool = False
    page: str = ""
    """A page to send instead of the file, with status 200."""
    requests: list[str] = field(default_factory=list)
    """Path and range of every request."""


class _Handler(http.server.BaseHTTPRequestHandler):
    host: WeightsHost

    def do_GET(self) -> None:
        host = self.host
        host.requests.append(f"{self.path} {self.headers.get('Range', '')}".strip())
        address = urlsplit(self.path)
        is_drive = address.path in ("/uc", "/open", "/download")
        if host.status != 200:
            self.send_error(host.status)
        elif is_drive and parse_qs(address.query)["id"] != [DRIVE_ID]:
            self.send_error(404)
        elif is_drive and host.quota_is_exceeded:
            self._send_page(QUOTA_PAGE)
        elif address.path in ("/uc", "/open"):
            self._send_page(CONFIRMATION_PAGE.format(id=DRIVE_ID))
        elif host.page:
            self._send_page(host.page)
        else:
            self._send_file(is_drive)

    def _send_page(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def _send_file(self, is_drive: bool) -> None:
        host = self.host
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        is_unchanged = self.headers.get("If-Range", host.version) == host.version
        start = int(asked[1]) if asked and host.has_ranges and is_unchanged else 0
        if start and start >= len(host.data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(host.data) - 1}/{len(host.data)}")
        if host.sends_length:
            self.send_header("Content-Length", str(len(host.data) - start))
        if host.version:
            self.send_header("ETag", host.version)
        if is_drive:
            self.send_header("Content-Disposition", 'attachment; filename="PoseNet.pth"')
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        body = host.data[start:]
        if host.cut_after is not None and host.cuts > 0:
            host.cuts -= 1
            body = body[: host.cut_after]
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@contextlib.contextmanager
def weights_host(data: bytes) -> Iterator[WeightsHost]:
    """Serve ``data`` under every path, as a file of Google Drive under ``/uc?id=DRIVE_ID``."""
    host = WeightsHost(data)
    handler = type("Handler", (_Handler,), {"host": host})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        host.address = f"http://127.0.0.1:{server.server_port}"
        yield host
        server.shutdown()
        thread.join()


def redirect_google_drive(monkeypatch: pytest.MonkeyPatch, host: WeightsHost) -> None:
    """Send all requests for Google Drive to the server."""
    send = requests.Session.request

    def request(self: requests.Session, method: str, url: str, **options: object) -> requests.Response:
        local = re.sub(r"^https://(drive|docs|drive\.usercontent)\.google\.com", host.address, url)
        assert local.startswith(host.address), f"{url} is another server"
        return send(self, method, local, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(requests.Session, "request", request)
