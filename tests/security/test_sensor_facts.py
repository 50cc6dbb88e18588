"""What processes in a sandbox's cgroup do arrives as facts, and what others do does not."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from watching import PRELUDE, Cage, Heard, Running

from sandfleet_common.messages import Fact

pytestmark = [
    pytest.mark.integration,
    pytest.mark.root,
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("sensor"),
]

UMOUNT = 'libc.umount2(b"/there-is-no-such-place", 0)'
LAST = "call(272, 0x80)"
"""unshare(CLONE_NEWTIME), which changes nothing for the one who calls it: the last fact."""


def is_last(fact: Fact) -> bool:
    return fact.kind == "unshare"


async def test_suspicious_calls_arrive_with_arguments_and_result(cage: Cage, heard: Heard) -> None:
    sandbox, where = cage.sandbox("c1")
    cage.run(
        where,
        f"""
        call(101, 16, 1 << 22, 0, 0)                     # ptrace, a pid that is too high
        call(310, 1 << 22, 0, 0, 0, 0, 0)                # process_vm_readv
        libc.mount(b"none", b"/there-is-no-such-place", b"tmpfs", 0, None)
        {UMOUNT}
        call(308, -1, 0)                                 # setns
        call(321, 99, 0, 0)                              # bpf
        call(250, 6, 0, 0)                               # keyctl: describe
        call(175, 0, 0, 0)                               # init_module
        call(438, -1, 3, 0)                              # pidfd_getfd
        call(304, -1, 0, 0)                              # open_by_handle_at
        call(41, 40, 99, 0)                              # socket, AF_VSOCK
        call(430, 0, 0)                                  # fsopen
        call(155, 0, 0)                                  # pivot_root
        call(425, 0, 0)                                  # io_uring_setup
        {LAST}
        """,
    )
    await heard.until(is_last)
    found = {fact.kind: fact for fact in heard.of(sandbox)}
    assert set(found) == {
        *("exec", "ptrace", "process_vm_readv", "mount", "umount2", "setns", "bpf", "keyctl"),
        *("init_module", "pidfd_getfd", "open_by_handle_at", "socket", "fsopen", "pivot_root"),
        *("io_uring_setup", "unshare"),
    }
    results = {kind: found[kind].result for kind in ("ptrace", "mount", "setns", "pidfd_getfd")}
    assert results == {"ptrace": -3, "mount": -2, "setns": -9, "pidfd_getfd": -9}
    assert (found["bpf"].result, found["pivot_root"].result, found["unshare"].result) == (
        -22,
        -14,
        0,
    )
    assert found["ptrace"].arguments[:2] == [16, 1 << 22]
    assert found["socket"].arguments[:2] == [40, 99]
    assert found["mount"].program == found["exec"].program
    assert len({fact.pid for fact in found.values()}) == 1


async def test_a_program_start_arrives_with_its_path(cage: Cage, heard: Heard) -> None:
    sandbox, where = cage.sandbox("c1")
    cage.run_command(where, "/bin/sh", "-c", "/bin/true; /bin/true")
    await heard.until(lambda fact: fact.path == "/bin/true")
    await heard.until_all(lambda facts: len(facts) >= 3)
    starts = heard.of(sandbox, "exec")
    assert [(f.path, f.program) for f in starts] == [
        ("/bin/sh", "sh"),
        ("/bin/true", "true"),
        ("/bin/true", "true"),
    ]


async def test_a_program_that_has_no_file_is_noted(cage: Cage, heard: Heard) -> None:
    sandbox, where = cage.sandbox()
    cage.run(
        where,
        """
        fd = os.memfd_create("x", 0)
        os.write(fd, open("/bin/true", "rb").read())
        os.execve(fd, ["true"], {})
        """,
    )
    fact = await heard.until(lambda fact: "unlinked" in fact.notes)
    assert (fact.sandbox_id, fact.kind) == (sandbox, "exec")


async def test_what_seccomp_refuses_is_reported_all_the_same(cage: Cage, heard: Heard) -> None:
    sandbox, where = cage.sandbox("c1")
    cage.run(
        where,
        """
        refuse = 0x00050001  # SECCOMP_RET_ERRNO, EPERM
        steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 165), (0x6, 0, 0, refuse), (0x6, 0, 0, 0x7FFF0000)]
        code = b"".join(struct.pack("HBBI", *step) for step in steps)
        held = ctypes.create_string_buffer(code)
        program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held))
        assert libc.prctl(38, 1, 0, 0, 0) == 0           # no new privileges
        assert libc.prctl(22, 2, program) == 0           # seccomp, mode filter
        assert libc.mount(b"none", b"/there-is-no-such-place", b"tmpfs", 0, None) == -1
        assert ctypes.get_errno() == 1
        """,
    )
    fact = await heard.until(lambda fact: fact.kind == "mount")
    assert (fact.sandbox_id, fact.result) == (sandbox, -1)


async def test_processes_outside_yield_nothing(cage: Cage, heard: Heard) -> None:
    beside = cage.root / "beside"
    beside.mkdir()
    cage.run(beside, UMOUNT)
    cage.run(cage.directory, UMOUNT)
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", f"{PRELUDE}\n{UMOUNT}"], check=True
    )
    sandbox, where = cage.sandbox("c1")
    cage.run(where, LAST)
    await heard.until(is_last)
    assert {fact.sandbox_id for fact in heard.facts} == {sandbox}
    assert heard.of(sandbox, "umount2") == []


async def test_a_directory_that_is_not_named_like_a_sandbox_yields_nothing(
    cage: Cage, heard: Heard
) -> None:
    spare = cage.directory / "spare-1"
    spare.mkdir()
    cage.run(spare, UMOUNT)
    sandbox, where = cage.sandbox()
    cage.run(where, LAST)
    await heard.until(is_last)
    assert {fact.sandbox_id for fact in heard.facts} == {sandbox}


async def test_a_process_is_judged_from_its_first_exec(cage: Cage, heard: Heard) -> None:
    sandbox, where = cage.sandbox("c1")
    cage.run(where, LAST, before_exec=UMOUNT)
    await heard.until(is_last)
    assert heard.of(sandbox, "umount2") == []


async def test_what_is_forked_after_that_is_judged_without_an_exec(
    cage: Cage, heard: Heard
) -> None:
    sandbox, where = cage.sandbox("c1")
    cage.run(
        where,
        f"""
        if os.fork() == 0:
            if os.fork() == 0:
                {UMOUNT}
                os._exit(0)
            os.wait()
            os._exit(0)
        os.wait()
        import threading
        thread = threading.Thread(target=lambda: call(308, -1, 0))
        thread.start()
        thread.join()
        """,
    )
    await heard.until(lambda fact: fact.kind == "setns")
    assert len(heard.of(sandbox, "umount2")) == 1


async def test_no_depth_of_directories_hides_a_process(cage: Cage, heard: Heard) -> None:
    sandbox, where = cage.sandbox(*(f"d{n}" for n in range(25)))
    cage.run(where, UMOUNT)
    fact = await heard.until(lambda fact: fact.kind == "umount2")
    assert fact.sandbox_id == sandbox


async def test_high_bits_in_a_number_hide_nothing(cage: Cage, heard: Heard) -> None:
    # mov rax, 0xdeadbeef_000000a6; xor edi, edi; xor esi, esi; syscall; ret
    code = "48b8a6000000efbeadde31ff31f60f05c3"
    sandbox, where = cage.sandbox()
    cage.run(where, f"machine_code(bytes.fromhex('{code}'))")
    fact = await heard.until(lambda fact: fact.kind == "umount2")
    assert (fact.sandbox_id, fact.result) == (sandbox, -14)


async def test_a_32_bit_call_is_told_apart(cage: Cage, heard: Heard) -> None:
    # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
    code = "53b814000000cd805bc3"
    sandbox, where = cage.sandbox()
    process = cage.start(
        where, sys.executable, "-c", f"{PRELUDE}\nmachine_code(bytes.fromhex('{code}'))"
    )
    process.communicate(timeout=20)
    if process.returncode == -11:
        pytest.skip("doctor line `ebpf`: this kernel has no 32-bit calls to tell apart")
    fact = await heard.until(lambda fact: "i386" in fact.notes)
    assert (fact.sandbox_id, fact.kind) == (sandbox, "i386-20")
    assert fact.result == fact.pid


async def test_an_x32_call_is_told_apart(cage: Cage, heard: Heard) -> None:
    sandbox, where = cage.sandbox()
    cage.run(where, "call(0x40000000 + 39)")
    fact = await heard.until(lambda fact: "x32" in fact.notes)
    assert (fact.sandbox_id, fact.kind) == (sandbox, "x86_64-39")


async def test_a_new_namespace_by_clone3_is_seen_and_a_thread_is_not(
    cage: Cage, heard: Heard
) -> None:
    sandbox, where = cage.sandbox()
    cage.run(
        where,
        f"""
        import threading
        thread = threading.Thread(target=len, args=([],))
        thread.start()
        thread.join()
        # flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
        request = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
        held = ctypes.create_string_buffer(request, 64)
        pid = call(435, ctypes.addressof(held), 64)
        if pid == 0:
            os._exit(0)
        if pid > 0:
            os.waitpid(pid, 0)
        {LAST}
        """,
    )
    await heard.until(is_last)
    calls = [f for f in heard.of(sandbox) if f.kind in ("clone", "clone3")]
    assert [(f.kind, f.arguments[0]) for f in calls] == [("clone3", 0x10000000)]


async def test_a_call_aimed_at_pid_1_is_noted(cage: Cage, heard: Heard) -> None:
    sandbox, where = cage.sandbox()
    cage.run(where, "call(310, 1, 0, 0, 0, 0, 0)")
    fact = await heard.until(lambda fact: fact.kind == "process_vm_readv")
    assert (fact.sandbox_id, fact.notes) == (sandbox, ["at-init"])


async def test_a_flood_is_limited_counted_and_hides_nothing_else(
    cage: Cage, heard: Heard, sensor: Running
) -> None:
    sandbox, where = cage.sandbox("c1")
    cage.run(
        where,
        f"""
        for _ in range(20_000):
            call(101, 16, 1 << 22, 0, 0)
        {UMOUNT}
        """,
    )
    umount = await heard.until(lambda fact: fact.kind == "umount2")
    assert umount.sandbox_id == sandbox
    await heard.until_all(
        lambda facts: sum(f.count for f in facts if f.kind in ("ptrace", "held-back")) >= 20_000
    )
    told = sum(f.count for f in heard.of(sandbox, "ptrace"))
    held = [f for f in heard.of(sandbox, "held-back") if f.notes == ["ptrace"]]
    assert told + sum(f.count for f in held) == 20_000
    assert 200 <= told < 5000
    assert await sensor.metric('sandfleet_sensor_lost_total{where="ring"}') == 0


async def test_facts_of_two_sandboxes_are_kept_apart(cage: Cage, heard: Heard) -> None:
    first, first_place = cage.sandbox("c1")
    second, second_place = cage.sandbox("c1")
    cage.run(first_place, UMOUNT)
    cage.run(second_place, LAST)
    await heard.until(is_last)
    assert [f.kind for f in heard.of(first) if f.kind != "exec"] == ["umount2"]
    assert [f.kind for f in heard.of(second) if f.kind != "exec"] == ["unshare"]


async def test_a_node_directory_made_anew_is_found(
    cage: Cage, heard: Heard, sensor: Running
) -> None:
    cage.directory.rmdir()
    sandbox, where = cage.sandbox("c1")
    # It looks several times a second; calls go on until one is seen.
    cage.start(
        where,
        sys.executable,
        "-c",
        f"{PRELUDE}\nimport time\nwhile 1:\n {UMOUNT}\n time.sleep(.05)",
    )
    fact = await heard.until(lambda fact: fact.kind == "umount2")
    assert fact.sandbox_id == sandbox
