"""A web server on this machine that serves files and a live stream."""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import cv2

from tests.helpers.videos import grey_image

IMAGES_PER_CONNECTION = 8


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if "secret" in self.path and self.headers["Authorization"] != "Basic bWU6cEBzcw==":  # me:p@ss
            self.send_error(401)
            return
        if self.path != "/live":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=image")
        self.end_headers()
        for number in range(IMAGES_PER_CONNECTION):
            data = cv2.imencode(".jpg", grey_image(number))[1].tobytes()
            part = b"--image\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%s\r\n" % (len(data), data)
            with contextlib.suppress(ConnectionError):  # the client has closed the stream
                self.wfile.write(part)

    def copyfile(self, source: object, outputfile: object) -> None:
        with contextlib.suppress(ConnectionError):
            super().copyfile(source, outputfile)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None: ...


@contextlib.contextmanager
def media_server(folder: Path) -> Iterator[str]:
    """Serve a folder, and at ``/live`` a stream that the server ends after some images; yield the address."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
