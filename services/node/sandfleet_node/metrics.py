"""Every metric of the node service."""

from __future__ import annotations

from sandfleet_common.metrics import Metrics


class NodeMetrics(Metrics):
    """What a node counts."""

    def __init__(self) -> None:
        super().__init__("node")
        self.sandboxes = self.gauge("sandboxes", "Live sandboxes", "state")
        self.creations = self.counter("creations", "Sandboxes asked for, by outcome", "outcome")
        self.start = self.seconds("start", "From a request's arrival to a ready sandbox")
        self.endings = self.counter(
            "endings", "Sandboxes that ended, by state and origin", "state", "origin"
        )
        self.commands = self.counter("commands", "Commands started")
        self.command = self.seconds("command", "From a request's arrival to its answer")
        self.operations = self.counter("operations", "Requests served, by operation", "operation")
        self.streams = self.gauge("streams", "Client streams that are open")
        self.records_waiting = self.gauge("records_waiting", "Records not in Redis yet")
        self.launcher_starts = self.counter("launcher_starts", "Connections made to a launcher")
        self.memory_available = self.gauge("memory_available_bytes", "Memory available")
        self.disk_free = self.gauge("disk_free_bytes", "Disk free below the state directory")
        self.load_per_core = self.gauge("load_per_core", "Load average of a minute, for each core")
        self.requested_memory = self.gauge("requested_memory_bytes", "Memory promised to sandboxes")
        self.requested_cpu = self.gauge("requested_cpu_cores", "Cores promised to sandboxes")
        self.capacity_memory = self.gauge("capacity_memory_bytes", "Memory that may be promised")
        self.capacity_cpu = self.gauge("capacity_cpu_cores", "Cores that may be promised")
