"""Every metric of the node service."""

from __future__ import annotations

from sandfleet_common.messages import GIB, MIB
from sandfleet_common.metrics import Metrics

_MEMORY_BOUNDS = (MIB, 2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB, 4 * GIB, 16 * GIB)
_CORES_BOUNDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 16)
_IDLE_BOUNDS = (1, 10, 60, 300, 900, 3600, 14_400)


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
        self.pauses = self.counter("pauses", "Sandboxes paused, by who asked for it", "by")
        self.resume = self.seconds("resume", "From asking a paused sandbox to run until it does")
        self.given_back = self.counter(
            "given_back_bytes", "Memory given back, by pausing and from idle sandboxes", "by"
        )
        self.prefetched = self.counter("prefetched_bytes", "Read from swap ahead after a pause")
        self.swap = self.gauge("swap_bytes", "Swap of the machine")
        self.swap_missing = self.gauge(
            "swap_missing", "1 when swap was needed and none could be made"
        )
        self.swap_free = self.gauge("swap_free_bytes", "Free swap of the machine")
        self.commands = self.counter("commands", "Commands started")
        self.command = self.seconds("command", "From a request's arrival to its answer")
        self.function_calls = self.counter(
            "function_calls", "Calls that ended, by status", "status"
        )
        self.function_run = self.seconds("function_run", "From a warm sandbox to the answer")
        self.function_wait = self.seconds("function_wait", "Calls waiting for a warm sandbox")
        self.function_recycles = self.counter(
            "function_recycles", "Warm sandboxes that ended, by reason", "reason"
        )
        self.warm_sandboxes = self.gauge("warm_sandboxes", "Sandboxes warm for function calls")
        self.snapshots = self.counter("snapshots", "Snapshots that ended, by state", "state")
        self.snapshot_frozen = self.seconds(
            "snapshot_frozen", "How long a sandbox stood still for a snapshot"
        )
        self.snapshot_pack = self.seconds("snapshot_pack", "Cleaning and packing a snapshot")
        self.chunk_starts = self.counter("chunk_server_starts", "Chunk servers started")
        self.chunk_hits = self.counter("chunk_hits", "Chunks of layers read that were here")
        self.chunk_misses = self.counter("chunk_misses", "Chunks of layers read that were not")
        self.chunk_fetches = self.counter("chunk_fetches", "Reads from the store of layers")
        self.chunk_fetch_seconds = self.counter(
            "chunk_fetch_seconds", "Time that reads from the store took, all together"
        )
        self.chunk_fetched = self.counter("chunk_fetched_bytes", "Layer data fetched")
        self.chunk_ahead = self.counter(
            "chunk_ahead_bytes", "Of it, fetched ahead because an earlier sandbox read it"
        )
        self.chunk_failures = self.counter("chunk_failures", "Reads the store did not answer")
        self.chunk_corrupt = self.counter("chunk_corrupt", "Chunks that were not what they should")
        self.chunk_given_up = self.counter(
            "chunk_reads_failed", "Reads of sandboxes that ended with an error"
        )
        self.chunk_evictions = self.counter("chunk_evictions", "Chunks removed to make room")
        self.chunk_cache = self.gauge("chunk_cache_bytes", "Layer data kept on this machine")
        self.chunk_waiting = self.gauge("chunk_reads_waiting", "Reads that wait for the store")
        self.store_failing = self.gauge("store_failing", "1 while the store does not answer")
        self.layers_mounted = self.gauge("layers_mounted", "Layers mounted for sandboxes")
        self.layers_freed = self.counter(
            "layers_freed_bytes", "Layers removed from this machine because its disk filled"
        )
        self.operations = self.counter("operations", "Requests served, by operation", "operation")
        self.streams = self.gauge("streams", "Client streams that are open")
        self.records_waiting = self.gauge("records_waiting", "Records not in Redis yet")
        self.launcher_starts = self.counter("launcher_starts", "Connections made to a launcher")
        self.parts_ready = self.gauge("parts_ready", "Id ranges with parts made ahead")
        self.parts_claimed = self.counter(
            "parts_claimed", "Creations, by whether parts were ready", "outcome"
        )
        self.memory_available = self.gauge("memory_available_bytes", "Memory available")
        self.disk_free = self.gauge("disk_free_bytes", "Disk free below the state directory")
        self.inodes_free = self.gauge("inodes_free", "Files that the node's disk can still hold")
        self.pressure = self.gauge(
            "pressure_percent", "Time that work stood still in the last ten seconds", "want", "kind"
        )
        self.refusing = self.gauge("refusing", "1 while no sandbox is taken, whatever the reason")
        self.slowed = self.gauge("slowed", "1 while fewer sandboxes are set up at once")
        self.starts_per_second = self.gauge("starts_per_second", "Sandboxes that become ready")
        self.shedding = self.counter(
            "shedding_steps", "Steps taken against a want of memory or disk", "want", "step"
        )
        self.load_per_core = self.gauge("load_per_core", "Load average of a minute, for each core")
        self.requested_memory = self.gauge("requested_memory_bytes", "Memory promised to sandboxes")
        self.requested_cpu = self.gauge("requested_cpu_cores", "Cores promised to sandboxes")
        self.capacity_memory = self.gauge("capacity_memory_bytes", "Memory that may be promised")
        self.capacity_cpu = self.gauge("capacity_cpu_cores", "Cores that may be promised")
        self._declare_usage()

    def _declare_usage(self) -> None:
        """Declare sums and distributions; never a series for a sandbox."""
        self.sandboxes_by_qos = self.gauge("sandboxes_by_qos", "Live sandboxes, by class", "qos")
        self.used_cpu = self.counter("used_cpu_seconds", "CPU time of all sandboxes ever")
        self.used_memory = self.gauge("used_memory_bytes", "Memory of all sandboxes")
        self.used_swap = self.gauge("used_swap_bytes", "Swap of all sandboxes")
        self.used_disk = self.gauge("used_disk_bytes", "Writable layers of all sandboxes")
        self.processes = self.gauge("processes", "Processes and threads of all sandboxes")
        self.egress = self.counter("egress_bytes", "Sent by sandboxes, loopback aside")
        self.egress_connections = self.counter(
            "egress_connections", "Connections to hosts for sandboxes that build"
        )
        self.egress_open = self.gauge(
            "egress_open", "Open connections of sandboxes that build to their proxy"
        )
        self.egress_received = self.counter(
            "egress_received_bytes", "Received by sandboxes that build"
        )
        self.egress_refused = self.counter(
            "egress_refused", "Requests of sandboxes that build that were not served", "kind"
        )
        self.each_memory = self.distribution(
            "each_memory_bytes", "Sandboxes by the memory they hold", _MEMORY_BOUNDS
        )
        self.each_cpu = self.distribution(
            "each_cpu_cores", "Sandboxes by the cores they use", _CORES_BOUNDS
        )
        self.each_idle = self.distribution(
            "each_idle_seconds", "Sandboxes by how long they have been idle", _IDLE_BOUNDS
        )
