"""A worker that keeps the protocol and loads nothing; what it does wrong is chosen by ``FAKE_WORKER``.

Run as ``python fake_worker.py SETTINGS_FD EVENTS_FD PARENT_PID``, like the real one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ERROR_LINE = "0.00.012.345 E llama_model_load: error loading model: the file is made of cheese"


class Handler(BaseHTTPRequestHandler):
    """The few routes that the parent asks."""

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer(200, {"path": self.path, "key": self.headers["Authorization"]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("stream"):
            self._stream()
        elif body.get("refuse"):
            self._answer(400, {"error": {"code": 400, "message": "no thanks", "type": "invalid"}})
        elif body.get("break"):
            self._answer(500, {"error": {"code": 500, "message": "out of order", "type": "server_error"}})
        else:
            self._answer(200, {"asked": body, "path": self.path})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(3):
            self.wfile.write(b": ping\n\ndata: " + json.dumps({"number": number}).encode() + b"\n\n")
            self.wfile.flush()
        if os.environ["FAKE_WORKER"] == "die-in-stream":
            os.kill(os.getpid(), signal.SIGKILL)
        self.wfile.write(b"data: [DONE]\n\n")


def main(settings_fd: int, events_fd: int) -> int:
    behaviour = os.environ.get("FAKE_WORKER", "ready")
    with os.fdopen(settings_fd) as pipe:
        settings = json.load(pipe)

    def send(**event: Any) -> None:
        os.write(events_fd, json.dumps(event).encode() + b"\n")

    send(event="loading", pid=os.getpid())
    print("0.00.000.001 I starting", flush=True)
    if behaviour == "error":
        print(ERROR_LINE, flush=True)
        send(event="error", message="llama.cpp could not load x.gguf", details={"engine_message": "no"})
        return 5
    if behaviour.startswith("signal:"):
        os.kill(os.getpid(), int(behaviour.partition(":")[2]))
    if behaviour.startswith("complain:"):
        print("0.00.012.345 E schema: somebody else's schema", flush=True)
        time.sleep(float(behaviour.partition(":")[2]))
        os.kill(os.getpid(), signal.SIGSEGV)
    if behaviour.startswith("exit:"):
        print("RuntimeError: all is lost", flush=True)
        return int(behaviour.partition(":")[2])
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "environment":
        names = ("GOMP_SPINCOUNT", "MALLOC_ARENA_MAX", "LD_PRELOAD", "GGML_NO_BACKTRACE")
        print("env", json.dumps({name: os.environ.get(name) for name in names}), flush=True)
    if behaviour == "silent":
        time.sleep(60)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    line = json.dumps({"event": "ready", "address": f"127.0.0.1:{server.server_port}"}).encode() + b"\n"
    for half in (line[:9], line[9:]):  # an event may arrive in pieces
        os.write(events_fd, half)
        time.sleep(0.02)
    print("settings", json.dumps(settings), flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
