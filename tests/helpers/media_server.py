"""Web servers on this machine: one that serves files and a live stream, and one that sends any bytes."""

import contextlib
import functools
import http.server
import itertools
import socketserver
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
def serve(server: socketserver.TCPServer) -> Iterator[str]:
    """Run a server within this context; yield its address."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def media_server(folder: Path) -> contextlib.AbstractContextManager[str]:
    """Serve a folder, and at ``/live`` a stream that the server ends after some images; yield the address."""
    handler = functools.partial(_Handler, directory=str(folder))
    return serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))


@dataclass
class RawServer:
    """A server that sends the same bytes to everyone."""

    address: str
    requests: list[bytes] = field(default_factory=list)
    is_closed: threading.Event = field(default_factory=threading.Event)
    """Whether a client has closed its connection before all was sent."""


@contextlib.contextmanager
def raw_server(start: bytes, then: Iterable[bytes] = (), pause: float = 0.0) -> Iterator[RawServer]:
    """Send ``start`` and, each after a pause, the parts in ``then``, whatever is requested; then close.

    Connections that are still open when the context ends are closed then.
    """
    closing = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            host.requests.append(self.request.recv(65536))
            try:
                self.request.sendall(start)
                for part in then:
                    if closing.wait(pause):
                        return
                    self.request.sendall(part)
            except ConnectionError:
                host.is_closed.set()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with serve(Server(("127.0.0.1", 0), Handler)) as address:
        host = RawServer(address)
        yield host
        closing.set()


def answer(*headers: str, body: bytes = b"", status: str = "200 OK") -> bytes:
    """An HTTP answer with these headers and body, right or not."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def endless(part: bytes) -> Iterable[bytes]:
    return itertools.repeat(part)
