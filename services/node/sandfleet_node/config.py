"""Settings of the node service, read from SANDFLEET_NODE_*."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from sandfleet_common.errors import BadRequest
from sandfleet_common.ids import check_node
from sandfleet_common.settings import ServiceSettings

from .egress.policy import Rule

IDS_EACH = 65_536
"""Host ids in the range of one sandbox."""
STRIDE = IDS_EACH + 128
"""From the first id of a range to that of the next. The kernel finds a user by the low bits of
its id: at multiples of 65536 all sandboxes' users would stand in one list."""


def _default_name() -> str:
    letters = [c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname().lower()]
    return "-".join(part for part in "".join(letters)[:40].split("-") if part) or "node"


class NodeSettings(ServiceSettings):
    """What one node needs to know."""

    name: str = Field(default_factory=_default_name)
    """The node's name; part of the id of every sandbox it owns."""
    state_dir: Path = Path("/var/lib/sandfleet")
    """Layers are read below it, sandboxes live below it."""
    store_url: str = ""
    """Where layers and environments are: a directory that nodes may share (file:///path), an
    object store (s3://bucket/prefix; credentials from the environment), or empty: `layers` below
    the state directory."""
    store_endpoint: str = ""
    """http(s)://host:port of an object store that is not Amazon's."""
    store_timeout_seconds: float = Field(default=30, gt=0)
    """One request to an object store may take so long, all its tries together."""
    chunk_cache_bytes: int = Field(default=64 * 1024**3, ge=16 * 1024**2)
    """Of layers in an object store, so much stays on this machine's disk."""
    chunk_wait_seconds: float = Field(default=30, gt=0)
    """A sandbox's read waits so long for a store that does not answer; then it fails (EIO)."""
    chunk_foresight: bool = True
    """Note which parts of a layer are read first, and fetch those ahead the next time."""
    native_binary: str = ""
    """sandfleet-native; empty: that of the checkout, else the one in PATH."""

    cpu: float = Field(default=0, ge=0)
    """Cores to offer; 0: all there are."""
    memory_bytes: int = Field(default=0, ge=0)
    """Memory to offer; 0: all there is."""
    disk_bytes: int = Field(default=0, ge=0)
    """Disk to offer; 0: the size of the state directory's file system."""
    overcommit_cpu: float = Field(default=2000, gt=0)
    """Cores promised for each one there is; sandboxes mostly wait for their model."""
    overcommit_memory: float = Field(default=100, gt=0)
    """Bytes promised for each one there is; memory_floor_bytes is what protects the node."""
    overcommit_disk: float = Field(default=1000, gt=0)
    """Bytes promised for each one there is; disk_floor_bytes is what protects the node."""
    memory_floor_bytes: int = Field(default=512 * 1024**2, ge=0)
    """No new sandbox while less memory than this is available."""
    disk_floor_bytes: int = Field(default=1024**3, ge=0)
    """No new sandbox while less disk than this is free."""
    inodes_floor: int = Field(default=100_000, ge=0)
    """No new sandbox while the disk can hold fewer new files than this: as many as 25 sandboxes
    that each unpack a large source tree."""
    memory_stall_percent: float = Field(default=10, gt=0, le=100)
    """No new sandbox while all work stands still so much of the time for want of memory (PSI
    `full`) and less than a tenth of memory is available. A tenth of the time is when users
    notice; a healthy machine shows less than one percent."""
    cpu_slow_percent: float = Field(default=80, gt=0, le=100)
    """Fewer sandboxes are set up at once while some work waits so much of the time for a core
    (PSI `some`). Busy machines that still answer show up to about 60."""
    io_slow_percent: float = Field(default=40, gt=0, le=100)
    """The same while all work stands still so much of the time for the disk (PSI `full`)."""
    load_slow_per_core: float = Field(default=8, gt=0)
    """Where the kernel does not measure pressure: the same from so many running tasks for each
    core, by the load average of a minute."""
    pressure_margin: float = Field(default=0.25, ge=0, lt=1)
    """How far back behind a limit a value must be before all is well again, as a part of it."""
    memory_end_bytes: int = Field(default=256 * 1024**2, ge=0)
    """The largest best-effort sandbox is ended while less memory than this is available, and
    neither reclaiming nor pausing has helped. The kernel's own killer comes near zero."""
    disk_end_bytes: int = Field(default=256 * 1024**2, ge=0)
    """The best-effort sandbox that has written most is ended while less disk than this is free."""
    shed_settle_seconds: float = Field(default=2, gt=0)
    """How long the effect of one step against a want of memory or disk is waited for."""
    shed_rest_seconds: float = Field(default=30, gt=0)
    """When no step helps, they begin anew after so long."""
    disk_cap: Literal["auto", "pool", "accounting"] = "auto"
    """What holds sandboxes to their disk: a pool (btrfs with simple quotas in an image below
    the state directory: Linux 6.7, btrfs-progs), accounting (one that is found over its cap
    is ended), or the pool where there can be one."""
    disk_pool_bytes: int = Field(default=0, ge=0)
    """Size of the pool's image, which takes only what is written in it; 0: the size of the
    state directory's file system."""
    disk_reserve_bytes: int = Field(default=512 * 1024**2, ge=0)
    """Sandboxes' writes fail while less than this is free on the disk below the pool, which
    would break if that were full. Should be less than disk_floor_bytes."""
    sandboxes_max: int = Field(default=4000, gt=0, le=30_000)
    """Sandboxes alive at once."""
    starting_limit: int = Field(default=512, gt=0)
    """Sandboxes accepted and not ready yet; beyond it the node refuses."""
    starting_at_once: int = Field(default=16, gt=0, le=32)
    """Sandboxes set up at the same time; the others wait for their turn."""
    starting_at_once_slow: int = Field(default=4, gt=0, le=32)
    """The same while work waits for cores or for the disk."""

    swap: Literal["auto", "none"] = "auto"
    """Where memory of paused and idle sandboxes goes. auto: the machine's swap; on a machine
    without, a file in the state directory, made when it is first needed. none: make no file."""
    swap_bytes: int = Field(default=0, ge=0)
    """Size of that file; 0: as much as there is memory, but a tenth of the free disk at most."""
    pausing_at_once: int = Field(default=2, gt=0, le=16)
    """Paused sandboxes whose memory is given back at the same time."""
    prefetch_bytes: int = Field(default=256 * 1024**2, ge=0)
    """How much is read back from swap when a sandbox resumes, beside what it asks for itself;
    0: nothing."""
    reclaim_idle_seconds: float = Field(default=30, ge=0)
    """Cold memory of a sandbox that was idle for so long goes to swap; 0: never."""
    reclaim_cpu_cores: float = Field(default=0.02, gt=0, le=1)
    """How much CPU time looking for cold memory may take."""

    function_warm_min: int = Field(default=0, ge=0, le=256)
    """Warm sandboxes that an environment keeps once its functions have been called."""
    function_warm_max: int = Field(default=0, ge=0, le=256)
    """Warm sandboxes of one environment, each for one call at a time; 0: two for each core."""
    function_queue: int = Field(default=1024, ge=0, le=16_384)
    """Function calls of one environment that may wait for a warm sandbox."""
    function_calls_each: int = Field(default=1000, gt=0, le=40_000)
    """A warm sandbox is replaced after so many calls."""
    function_idle_seconds: float = Field(default=300, gt=0)
    """A warm sandbox ends when it was not called for so long."""
    function_cpu: float = Field(default=2, gt=0)
    """Cores of one warm sandbox."""
    function_memory_bytes: int = Field(default=1024**3, ge=64 * 1024**2)
    """Memory of one warm sandbox, files and output of its call included."""
    function_disk_bytes: int = Field(default=1024**3, ge=16 * 1024**2)
    """Disk of one warm sandbox."""
    function_pids: int = Field(default=512, ge=16)
    """Processes and threads of one warm sandbox; a call may allow itself fewer."""
    function_imports: list[str] = Field(default_factory=lambda: ["numpy"])
    """Imported by a warm sandbox, beside common parts of Python's library, where the environment
    has them. An environment names more in its note `imports`, separated by commas."""

    layer_idle_seconds: float = Field(default=900, ge=0)
    """A layer that no sandbox has used for so long is unmounted."""
    layers_free_bytes: int = Field(default=2 * 1024**3, ge=0)
    """Layers that nobody needs are removed from the node's disk while less than this is free.
    Should be more than disk_floor_bytes; 0: never."""

    snapshot_packs_at_once: int = Field(default=2, gt=0, le=16)
    """Snapshots packed at the same time; the others wait, holding still what they will pack."""
    snapshot_pack_seconds: float = Field(default=900, gt=0)
    """Packing one may take so long."""
    snapshot_holes_bytes: int = Field(default=8 * 1024**3, ge=0)
    """By how much the files of one may together be longer than the sandbox's disk: holes are
    read, too."""
    snapshot_files_max: int = Field(default=1_000_000, gt=0)
    """Files of one snapshot."""
    snapshot_rules: str = ""
    """File of rules that say what snapshots leave out; empty: the one that comes with the node
    (snapshots/scrub.txt, which says how rules are written)."""

    build_hosts: list[str] = Field(default_factory=list[str])
    """Hosts that sandboxes with network `build` reach: names, `*.suffix`, each with a `:port` or
    at 80 and 443; in a variable, with commas between them. A host named here may be at a private
    address, those behind a `*` may not."""
    build_hosts_auto: bool = True
    """Beside them those that apt, pip and npm of this machine get packages from."""
    build_connections_each: int = Field(default=64, gt=0, le=1024)
    """Open connections of one such sandbox; further ones wait."""
    build_connections: int = Field(default=1024, gt=0, le=16_384)
    """Those of all of them together."""

    parts_ahead: int = Field(default=64, ge=0, le=512)
    """Id ranges whose namespaces, control groups and directory are made ahead of need; 0: none."""

    core_scheduling: bool = False
    """Let the hyperthreads of one core run only one sandbox at a time (see `cores`): no
    sandbox can watch another through a core they share. It costs throughput where cores are
    busy, so it is for tenants that must not trust one another. Sandboxes that run when it is
    set get it for the commands they start from then on."""

    uid_base: int = Field(default=0x7000_0000, ge=IDS_EACH)
    """First host id of the sandboxes' ranges; a multiple of 65536."""

    commands_kept: int = Field(default=256, gt=0)
    """Ended commands remembered in each sandbox, with their output."""
    output_kept_bytes: int = Field(default=256 * 1024**2, gt=0)
    """Output of ended commands kept in each sandbox."""
    ended_kept_seconds: float = Field(default=3600, gt=0)
    """How long the end of a sandbox is remembered."""
    ended_kept: int = Field(default=20_000, gt=0)
    """How many ends are remembered at most."""

    departure_seconds: float = Field(default=180, gt=0)
    """A sandbox that is about to move waits so long to hear how that ended; then the record
    decides."""
    usage_seconds: float = Field(default=60, gt=0)
    """Every sandbox's use of CPU and memory is looked at so often, when nobody asks."""
    heartbeat_seconds: float = Field(default=1.0, gt=0, le=5)
    stop_sandboxes_on_exit: bool = False
    """End all sandboxes and the launcher when the service is told to stop. Otherwise they
    wait for its next start."""
    orphan_seconds: int = Field(default=600, gt=0)
    """The launcher ends everything when no node service has come for so long."""

    @field_validator("name")
    @classmethod
    def _names_a_node(cls, value: str) -> str:
        try:
            return check_node(value)
        except BadRequest as problem:
            raise ValueError(problem.message) from None

    @field_validator("build_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object) -> object:
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @field_validator("build_hosts")
    @classmethod
    def _names_hosts(cls, value: list[str]) -> list[str]:
        for text in value:
            Rule.parse(text)
        return value

    @model_validator(mode="after")
    def _ranges_fit(self) -> NodeSettings:
        if self.uid_base % IDS_EACH:
            raise ValueError(f"uid_base must be a multiple of {IDS_EACH}")
        if self.uid_base + self.ranges() * STRIDE > 0xFFFF_0000:
            raise ValueError(
                "uid_base leaves too few ids for sandboxes_max and parts_ahead ranges of 65664"
            )
        return self

    def ranges(self) -> int:
        """Return how many ranges of host ids the node uses, those of parts made ahead included."""
        return self.sandboxes_max + self.parts_ahead

    def binary(self) -> Path:
        """Return where the native binary is.

        Raises:
            FileNotFoundError: it is nowhere.
        """
        if self.native_binary:
            given = Path(self.native_binary)
            if given.is_file():
                return given.resolve()
            raise FileNotFoundError(f"native_binary {given} does not exist")
        built = Path(__file__).parents[3] / "native" / "build" / "sandfleet-native"
        if built.is_file():
            return built
        found = shutil.which("sandfleet-native")
        if found is None:
            raise FileNotFoundError("there is no sandfleet-native: build it with `make native`")
        return Path(found)
