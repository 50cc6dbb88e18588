"""Every metric of the scheduler."""

from __future__ import annotations

from sandfleet_common.metrics import Metrics


class SchedulerMetrics(Metrics):
    """What a scheduler counts."""

    def __init__(self) -> None:
        super().__init__("scheduler")
        self.placements = self.counter(
            "placements", "Sandboxes by how their placement ended", "outcome"
        )
        self.refusals = self.counter("refusals", "Sandboxes a node refused", "code")
        self.asked_again = self.counter(
            "asked_again", "Requests sent to a node again because no answer came"
        )
        self.placing = self.seconds("placing", "From request to outcome of a single sandbox")
        self.node_answer = self.seconds("node_answer", "From request to answer of a node's batch")
        self.batch_items = self.counter("batch_items", "Sandboxes sent to nodes")
        self.jobs = self.counter("jobs", "Jobs by how they ended", "outcome")
        self.jobs_running = self.gauge("jobs_running", "Jobs this scheduler works on")
        self.job_duration = self.seconds("job_duration", "From submission to the end of a job")
        self.jobs_taken_over = self.counter(
            "jobs_taken_over", "Jobs continued that another scheduler had begun"
        )
        self.nodes = self.gauge("nodes", "Nodes heard of")
        self.nodes_silent = self.gauge("nodes_silent", "Nodes known and not chosen, being silent")
        self.nodes_lost = self.counter("nodes_lost", "Nodes declared lost by this scheduler")
        self.sandboxes_lost = self.counter("sandboxes_lost", "Sandboxes ended with a lost node")
        self.acted = self.counter(
            "acted", "Sandboxes paused, resumed or ended with many others", "action", "outcome"
        )
        self.creates_waiting = self.gauge(
            "creates_waiting", "Single creations that wait for room on a node"
        )
        self.creates_turned_away = self.counter(
            "creates_turned_away", "Single creations answered with busy: too many wait"
        )
        self.slots_waiting = self.gauge(
            "slots_waiting", "Sandboxes that jobs of this scheduler wait for"
        )
