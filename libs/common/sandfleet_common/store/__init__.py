"""Live state in Redis: the only package that meets it.

Keys, all under `sf:`:

    sandbox:<id>          hash: state, version, info (SandboxInfo as JSON)
    sandboxes             zset of all ids on record, by the time in the id
    sandboxes:live        likewise, those that live; not those still being placed
    sandboxes:ends        zset of ended ones, by end
    node:<n>:sandboxes    set of live ids
    job:<j>               hash: submit, info
    job:<j>:slots         hash: slot -> sandbox id as assigned last, or FAILED_SLOT
    job:<j>:failures      hash: slot -> SlotFailure
    jobs:waiting          hash: job -> when submitted, deadline, sandboxes it still waits for
    job:<j>:cancelled     there when somebody asked for its end
    mark:<name>           there until Redis loses its memory
    key:<k>               idempotency key -> sandbox id
    node:<n>              the latest NodeBeat; expires when beats stop
    node:<n>:intact       the boot id whose inventory is here; gone when Redis lost its memory
    alerts, alerts:<id>   lists of Alert, newest first

A sandbox's record is written only by a compare-and-set script compiled from
`states.TRANSITIONS`: a write counts when its version is newer and its state can
be reached from the one on record. So late writes change nothing, and the same
record written again is no conflict.

The record of a sandbox that a scheduler is placing expires by itself, soon after
its deadline: only what a node has taken is indexed, and only its node ends it.
"""

from .connection import Store, StoreSettings
from .jobs import FAILED_SLOT, WaitingJob
from .scripts import ENDED_SECONDS

__all__ = ["ENDED_SECONDS", "FAILED_SLOT", "Store", "StoreSettings", "WaitingJob"]
