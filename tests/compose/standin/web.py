"""Answers 200 on the ports of Prometheus, Grafana and Alertmanager, once the files that it is given are there."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: A file of the shipped configuration, and the port of the program that reads it.
PROGRAMS = {
    "/etc/prometheus/prometheus.yml": 9090,
    "/etc/grafana/provisioning/datasources": 3000,
    "/etc/alertmanager/alertmanager.yml": 9093,
}


class Ok(BaseHTTPRequestHandler):
    """Whatever is asked."""

    def do_GET(self) -> None:
        """200."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


(port,) = [port for file, port in PROGRAMS.items() if Path(file).exists()]
print(f"{socket.gethostname()}: {port}", flush=True)
server = ThreadingHTTPServer(("0.0.0.0", port), Ok)
threading.Thread(target=server.serve_forever).start()
