"""Names of system calls, by the number that the kernel reports. Pure."""

from __future__ import annotations

from typing import Final

from .records import NR_EXEC, NR_FOREIGN

X86_64: Final = {
    41: "socket",
    56: "clone",
    101: "ptrace",
    155: "pivot_root",
    165: "mount",
    166: "umount2",
    175: "init_module",
    176: "delete_module",
    248: "add_key",
    249: "request_key",
    250: "keyctl",
    272: "unshare",
    298: "perf_event_open",
    304: "open_by_handle_at",
    308: "setns",
    310: "process_vm_readv",
    311: "process_vm_writev",
    313: "finit_module",
    321: "bpf",
    323: "userfaultfd",
    425: "io_uring_setup",
    428: "open_tree",
    429: "move_mount",
    430: "fsopen",
    431: "fsconfig",
    432: "fsmount",
    433: "fspick",
    435: "clone3",
    438: "pidfd_getfd",
    442: "mount_setattr",
}
"""What native/bpf/watched.h watches."""

I386: Final = {
    21: "mount",
    22: "umount",
    26: "ptrace",
    52: "umount2",
    102: "socketcall",
    120: "clone",
    128: "init_module",
    129: "delete_module",
    217: "pivot_root",
    286: "add_key",
    287: "request_key",
    288: "keyctl",
    310: "unshare",
    336: "perf_event_open",
    342: "open_by_handle_at",
    346: "setns",
    347: "process_vm_readv",
    348: "process_vm_writev",
    350: "finit_module",
    357: "bpf",
    359: "socket",
    374: "userfaultfd",
    425: "io_uring_setup",
    428: "open_tree",
    429: "move_mount",
    430: "fsopen",
    431: "fsconfig",
    432: "fsmount",
    433: "fspick",
    435: "clone3",
    438: "pidfd_getfd",
    442: "mount_setattr",
}
"""The 32-bit table, where it matters which call it was."""

KINDS: Final = frozenset({"exec", "held-back", *X86_64.values(), *I386.values()})
"""What a rule may ask for; other calls are of a kind that their number names."""


def call_name(number: int, *, is_i386: bool = False) -> str:
    """Return the name of a call, or its table and number when it has none here."""
    if is_i386:
        return I386.get(number, f"i386-{number}")
    return X86_64.get(number, f"x86_64-{number}")


def held_back_name(number: int) -> str:
    """Return what kind of record a count of held-back records is about."""
    if number == NR_EXEC:
        return "exec"
    return "foreign" if number == NR_FOREIGN else call_name(number)
