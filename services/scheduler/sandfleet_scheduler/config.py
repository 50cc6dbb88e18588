"""Settings of the scheduler, read from SANDFLEET_SCHEDULER_*."""

from __future__ import annotations

import os
import socket

from pydantic import Field

from sandfleet_common.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """What one scheduler needs to know."""

    name: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """Names this replica in logs, on NATS and for its mark in Redis."""
    choices: int = Field(default=2, ge=1, le=16)
    """Nodes compared for each placement, drawn at random among those that can take it."""

    node_silent_seconds: float = Field(default=5, gt=0)
    """A node not heard of for so long is not chosen."""
    node_lost_seconds: float = Field(default=15, gt=0)
    """A node silent for so long on NATS, and gone from Redis, is lost with its sandboxes."""
    node_answer_seconds: float = Field(default=10, gt=0)
    """A node that has not answered a creation for so long is asked again, under the same ids."""

    batch_items: int = Field(default=64, ge=1, le=256)
    """Sandboxes in one request to a node."""
    jobs_at_once: int = Field(default=256, ge=1)
    """Jobs worked on at the same time; others wait in the queue."""
    job_ack_seconds: float = Field(default=10, ge=1)
    """A job whose scheduler has been silent for so long goes to another."""
    event_seconds: float = Field(default=0.05, ge=0)
    """A job's progress is told and recorded once in so long."""
    act_seconds: float = Field(default=50, gt=0, le=100)
    """Pausing, resuming or ending many sandboxes takes no longer; the rest is reported."""
    act_answer_seconds: float = Field(default=20, gt=0)
    """A node that has not answered a batch of these for so long is asked again."""
    act_batches: int = Field(default=2, ge=1, le=16)
    """Batches of these that one node works on at a time."""
    creates_waiting: int = Field(default=1000, ge=0)
    """Single creations that wait for room here; one more is answered with `busy`."""

    stream_replicas: int = Field(default=1, ge=1, le=5)
    """Copies JetStream keeps of the queue of jobs."""
