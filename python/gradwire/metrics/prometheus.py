"""Metrics for Prometheus: an HTTP endpoint that it scrapes, and files for node exporter's textfile collector."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from gradwire.metrics.table import METRICS, Value
from gradwire.metrics.writer import needed_module, writable_folder
from gradwire.settings.metrics_targets import LARGEST_PORT

_PACKAGE = "prometheus-client"
_POLL_SECONDS = 0.1  # how soon the server notices its end
_REQUEST_SECONDS = 10.0  # a client that sends nothing for this long is disconnected


class _Collector:
    """What prometheus_client asks for metrics."""

    def __init__(self, target: str) -> None:
        self._core = needed_module("prometheus_client.core", _PACKAGE, target)
        self._labels: tuple[str, str] = ("", "")
        self._values: tuple[Value, ...] = ()  # replaced whole: requests read it on threads of their own
        self.registry = needed_module("prometheus_client", _PACKAGE, target).CollectorRegistry()
        self.registry.register(self)

    def begin(self, rank: int, store: str) -> None:
        self._labels = (str(rank), store)

    def write(self, values: Iterable[Value]) -> None:
        self._values = tuple(values)

    def collect(self) -> Iterator[Any]:
        values = self._values
        kinds = {"counter": self._core.CounterMetricFamily, "gauge": self._core.GaugeMetricFamily}
        for metric in METRICS:
            own = [value for value in values if value.metric is metric]
            if own:
                names = ["rank", "store", *([metric.label] if metric.label else [])]
                family = kinds[metric.kind](metric.prometheus_name, metric.help, labels=names)
                for value in own:
                    more = [] if value.label_value is None else [value.label_value]
                    family.add_metric([*self._labels, *more], value.number)
                yield family


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a request that never ends does not hold the process
    allow_reuse_port = False  # or two workers could share a port, and Prometheus would see either

    def server_bind(self) -> None:
        """Leaves out HTTPServer's reverse look-up of the host's name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def log_message(self, *_: Any) -> None:
        """Logs nothing: there is a request every few seconds."""


class Endpoint:
    """Serves http://HOST:PORT/metrics until close(). Implements Writer.

    Threading: one thread accepts connections; each request has one of its own. They end with the process.
    """

    is_ours = True

    def __init__(self, host: str, port: int, local_rank: int) -> None:
        """Listens at once, and has no metrics until write().

        Args:
            host: address on which to listen; empty: all interfaces.
            port: of local rank 0; others have the next ones.
            local_rank: of this worker among those of its host.

        Raises:
            ImportError: prometheus_client is not installed.
            OSError: the port cannot be used; says why.
            ValueError: there is no such port.
        """
        own_port = port + local_rank
        self.name = f"prometheus:{host}:{own_port}" if host else f"prometheus:{own_port}"
        if own_port > LARGEST_PORT:
            raise ValueError(
                f"metrics: prometheus: {port} plus local rank {local_rank} is no port: expected at most "
                f"{LARGEST_PORT}; give a lower one"
            )
        self._collector = _Collector(self.name)
        app = needed_module("prometheus_client", _PACKAGE, self.name).make_wsgi_app(self._collector.registry)
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, own_port), _Handler)
        except OSError as error:
            raise OSError(
                error.errno,
                f"metrics: {self.name}: cannot listen there ({error.strerror}); the port is {port} plus this worker's "
                f"local rank, {local_rank}; give another port, or set GRADWIRE_LOCAL_RANK if workers of one host "
                "have the same",
            ) from None
        self._server.set_app(app)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_POLL_SECONDS,),
            name="gradwire-metrics-http",
            daemon=True,
        )
        self._thread.start()

    def begin(self, rank: int, store: str) -> None:
        """Sets the labels."""
        self._collector.begin(rank, store)

    def write(self, values: Iterable[Value], step: int) -> None:
        """Replaces what the next request gets."""
        self._collector.write(values)

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()


class TextFile:
    """Writes FOLDER/gradwire-rank-N.prom, each time whole. It stays there at the end. Implements Writer."""

    is_ours = True

    def __init__(self, folder: str) -> None:
        """Makes the folder.

        Raises:
            ImportError: prometheus_client is not installed.
            OSError: the folder cannot be made or written; says why.
        """
        self.name = f"textfile:{folder}"
        self._collector = _Collector(self.name)
        self._write = needed_module("prometheus_client", _PACKAGE, self.name).write_to_textfile
        self._folder = writable_folder(folder, self.name)

    def begin(self, rank: int, store: str) -> None:
        """Sets the labels and the file's name."""
        self._collector.begin(rank, store)
        self._path = self._folder / f"gradwire-rank-{rank}.prom"

    def write(self, values: Iterable[Value], step: int) -> None:
        """Replaces the file.

        Raises: OSError: it cannot be written.
        """
        self._collector.write(values)
        self._write(str(self._path), self._collector.registry)

    def close(self) -> None:
        """Leaves the file as it is."""
