"""Every metric of the gateway."""

from __future__ import annotations

from sandfleet_common.metrics import Metrics


class GatewayMetrics:
    """What the gateway counts. Routes are named by their pattern, never by a path."""

    def __init__(self) -> None:
        self.metrics = Metrics("gateway")
        self.requests = self.metrics.counter(
            "requests", "Requests answered", "method", "route", "status"
        )
        self.request = self.metrics.seconds(
            "request", "From a request's head to the end of its answer", "route"
        )
        self.under_way = self.metrics.gauge("requests_under_way", "Requests being answered")
        self.unauthorized = self.metrics.counter(
            "unauthorized", "Requests with a missing or an unknown API key"
        )
        self.uploaded = self.metrics.counter("uploaded_bytes", "Bytes of raw files taken in")
        self.downloaded = self.metrics.counter("downloaded_bytes", "Bytes of raw files given out")
        self.event_streams = self.metrics.gauge("event_streams", "Streams of job events open")
        self.sockets = self.metrics.gauge("sockets", "WebSocket sessions open")
        self.sockets_ended = self.metrics.counter(
            "sockets_ended", "WebSocket sessions that ended, by close code", "code"
        )
        self.channels = self.metrics.gauge("channels", "Commands attached to sessions")
        self.channel_bytes = self.metrics.counter(
            "channel_bytes", "Payload carried by sessions; in: to the command", "direction"
        )
        self.held = self.metrics.gauge("channel_held_bytes", "Output held for slow sessions")
        self.reattached = self.metrics.counter(
            "reattached", "Streams opened anew behind a session's back", "cause"
        )
        self.malformed = self.metrics.counter(
            "malformed", "Messages of sessions that could not be understood"
        )
