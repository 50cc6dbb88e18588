"""What Redis does in one step: the Lua scripts of `store`.

Each may be sent twice, as a client does that has not heard the answer, with the
same effect and the same answer as sent once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1

from sandfleet_common.ids import created_ms
from sandfleet_common.messages import SandboxInfo
from sandfleet_common.states import TERMINAL, TRANSITIONS, Origin, State

ENDED_SECONDS = 3600
"""How long the record of a sandbox that has ended is kept."""
LOST_SECONDS = 86_400
"""The same for one lost with its node: should the node come back, it must learn of it."""
PLACING_SECONDS = 3600
"""How long the record of a sandbox that nobody took is kept; no deadline is longer."""

Call = tuple[Sequence[str], Sequence[str | float | int]]
"""Keys and arguments of one run of a script."""


@dataclass(frozen=True)
class Script:
    """A script and the name Redis knows it by."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        """Work out the name."""
        object.__setattr__(self, "sha", sha1(self.text.encode(), usedforsecurity=False).hexdigest())


SAVE = Script("""
-- KEYS: sandbox, all, live, ends, node set
-- ARGV: id, state, version, info, order, ended, kind (placing, live, ended), keep seconds, from
local known = redis.call('HMGET', KEYS[1], 'state', 'version', 'info')
if known[1] then
  if known[3] == ARGV[4] then return 1 end
  if tonumber(ARGV[3]) <= tonumber(known[2]) then return 0 end
  if not string.find(ARGV[9], ',' .. known[1] .. ',', 1, true) then return 0 end
end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'version', ARGV[3], 'info', ARGV[4])
if ARGV[7] == 'placing' then
  redis.call('EXPIRE', KEYS[1], ARGV[8])
  return 1
end
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[1])
if ARGV[7] == 'ended' then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('SREM', KEYS[5], ARGV[1])
  redis.call('ZADD', KEYS[4], ARGV[6], ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[8])
else
  redis.call('ZADD', KEYS[3], ARGV[5], ARGV[1])
  redis.call('SADD', KEYS[5], ARGV[1])
  redis.call('PERSIST', KEYS[1])
end
return 1
""")

CLAIM_SLOTS = Script("""
-- KEYS: slots of a job
-- ARGV: keep seconds, then for each slot: number, holder expected ('' for none), new holder
-- Returns who holds each slot now. A slot that nobody holds is free whatever was expected:
-- Redis may have lost its memory.
local holders = {}
for i = 2, #ARGV, 3 do
  local known = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  if known == '' or known == ARGV[i + 1] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
    known = ARGV[i + 2]
  end
  holders[#holders + 1] = known
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return holders
""")

SWAP = Script("""
-- KEYS: standing. ARGV: text expected ('' for none), new text, seconds to keep it
local known = redis.call('GET', KEYS[1]) or ''
if known == ARGV[2] then return 1 end
if known ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
""")


def reachable(transitions: Mapping[State, frozenset[State]]) -> dict[State, frozenset[State]]:
    """Return for each state all states that some path of one or more steps leads to."""
    closed = {state: set(following) for state, following in transitions.items()}
    for _ in transitions:
        for following in closed.values():
            for state in tuple(following):
                following |= closed[state]
    return {state: frozenset(following) for state, following in closed.items()}


def _sources() -> dict[State, str]:
    closure = reachable(TRANSITIONS)
    return {
        state: "," + "".join(f"{s}," for s in State if _leads(s, state, closure)) for state in State
    }


def _leads(before: State, after: State, closure: Mapping[State, frozenset[State]]) -> bool:
    return after in closure[before] or (before == after and before not in TERMINAL)


SOURCES = _sources()
"""For each state those on record that it may replace, as the SAVE script searches them."""


def save_call(info: SandboxInfo) -> Call:
    """Return keys and arguments of SAVE for one record."""
    kind, keep = "live", ENDED_SECONDS
    if info.state in TERMINAL:
        kind = "ended"
        keep = LOST_SECONDS if info.origin == Origin.NODE_LOST else ENDED_SECONDS
    elif info.state in (State.REQUESTED, State.PLACING):
        kind, keep = "placing", PLACING_SECONDS
    keys = [
        f"sf:sandbox:{info.sandbox_id}",
        "sf:sandboxes",
        "sf:sandboxes:live",
        "sf:sandboxes:ends",
        f"sf:node:{info.node}:sandboxes",
    ]
    args: list[str | float | int] = [
        info.sandbox_id,
        info.state,
        info.version,
        info.model_dump_json(exclude_defaults=True),
        created_ms(info.sandbox_id),
        info.ended_at or 0,
        kind,
        keep,
        SOURCES[info.state],
    ]
    return keys, args
