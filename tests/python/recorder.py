"""A reverse proxy that writes down what passes. The SDK under test is not touched: only its address differs."""

import dataclasses
import http.client
import http.server
import threading


@dataclasses.dataclass
class Exchange:
    method: str
    path: str
    headers: dict  # names in lower case
    body: bytes
    status: int


class Recorder:
    """Listens on a free loopback port and forwards to `target` (host:port)."""

    def __init__(self, target: str):
        self.exchanges: list[Exchange] = []
        lock, exchanges = threading.Lock(), self.exchanges

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self):
                body = self.read_body()
                skipped = ("host", "transfer-encoding", "connection", "content-length")
                headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
                upstream = http.client.HTTPConnection(target, timeout=60)
                try:
                    upstream.request(self.command, self.path, body=body or None, headers=headers)
                    answer = upstream.getresponse()
                    text = answer.read()
                finally:
                    upstream.close()
                named = {name.lower(): value for name, value in self.headers.items()}
                with lock:
                    exchanges.append(Exchange(self.command, self.path, named, body, answer.status))
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = forward

            def read_body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                chunks = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return b"".join(chunks)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def ingested(self) -> list[Exchange]:
        """The exchanges that carried trace runs; each has to have been accepted."""
        kept = [
            exchange
            for exchange in self.exchanges
            if exchange.method in ("POST", "PATCH") and exchange.path.removeprefix("/api/v1").startswith("/runs")
        ]
        refused = [(e.method, e.path, e.status) for e in kept if e.status != 202]
        assert not refused, refused
        return kept

    def close(self):
        self.server.shutdown()
        self.server.server_close()
