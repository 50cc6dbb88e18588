"""What developers do all day raises no high or critical alert."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from servers import Connect
from watching import Cage, Heard

from sandfleet_common import subjects
from sandfleet_common.messages import AlertList, Severity

pytestmark = [pytest.mark.integration, pytest.mark.root, pytest.mark.timeout(120)]

WORK = {
    "a commit, a clone and a repack": (
        "git",
        """
        git init -q a; cd a
        git config user.email a@example.org; git config user.name a
        for n in 1 2 3; do echo $n > f$n; git add .; git commit -qm "c$n"; done
        cd ..; git clone -q ./a b; cd b; git gc -q; git fsck
        """,
    ),
    "a build with threads and the leak sanitizer": (
        "gcc make",
        r"""
        cat > t.c <<'C'
        #include <pthread.h>
        #include <stdlib.h>
        static void *work(void *p) { return p; }
        int main(void)
        {
            pthread_t t[8];
            char *kept = malloc(10);
            for (int i = 0; i < 8; i++) pthread_create(&t[i], 0, work, kept);
            for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
            free(kept);
            return 0;
        }
        C
        printf 't: t.c\n\tgcc -g -fsanitize=address -pthread -o t t.c\n' > Makefile
        make && ./t
        """,
    ),
    "strace of a child": ("strace", "strace -f -o s.txt sh -c 'ls / >/dev/null' && test -s s.txt"),
    "gdb of a child": (
        "gdb gcc",
        """
        echo 'int main(void) { return 0; }' > d.c; gcc -g -o d d.c
        gdb -q -batch -ex 'break main' -ex run -ex 'info registers' -ex continue ./d
        """,
    ),
    "processes of Python by every way to start them": (
        "python3",
        """
        cat > m.py <<'P'
        import multiprocessing as mp
        from multiprocessing import shared_memory
        def square(x): return x * x
        if __name__ == "__main__":
            for way in ("fork", "spawn", "forkserver"):
                with mp.get_context(way).Pool(2) as pool:
                    assert pool.map(square, range(20))[-1] == 361
            block = shared_memory.SharedMemory(create=True, size=4096)
            block.close(); block.unlink()
        P
        python3 m.py
        """,
    ),
    "servers and clients on loopback": (
        "python3",
        """
        cat > s.py <<'P'
        import asyncio
        async def main():
            async def echo(r, w):
                w.write(await r.read(5)); await w.drain(); w.close()
            async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                for _ in range(50):
                    r, w = await asyncio.open_connection("127.0.0.1", port)
                    w.write(b"hello"); assert await r.read(5) == b"hello"; w.close()
        asyncio.run(main())
        P
        python3 s.py
        """,
    ),
    "archives, copies and links": (
        "tar gzip",
        """
        mkdir d; for n in 1 2 3 4 5; do echo $n > d/$n; ln d/$n d/l$n; done
        tar czf d.tgz d; mkdir x; tar xzf d.tgz -C x; cp -r --reflink=auto d e; diff -r d x/d
        """,
    ),
    "keys for ssh": ("ssh-keygen", "ssh-keygen -q -t ed25519 -N '' -f k && ssh-keygen -lf k.pub"),
    "a configure loop": (
        "gcc",
        """
        for n in 1 2 3 4 5 6 7 8; do
            echo 'int main(void) { return 0; }' > c.c; gcc -o c c.c; ./c
        done
        """,
    ),
    "a node script with workers": (
        "node",
        """
        cat > w.js <<'J'
        const {Worker, isMainThread} = require('worker_threads');
        if (isMainThread) for (let i = 0; i < 3; i++) new Worker(__filename);
        require('child_process').execSync('true');
        require('fs').promises.readFile(__filename);
        J
        node w.js
        """,
    ),
    "a walk over everything": (
        "find",
        "find /proc -maxdepth 2 -name status >/dev/null 2>&1 || true; ps aux",
    ),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.usefixtures("sensor", "monitor")
async def test_everyday_work_raises_no_high_alert(
    name: str, cage: Cage, heard: Heard, connect: Connect, tmp_path: Path
) -> None:
    tools, script = WORK[name]
    for tool in tools.split():
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed, and no sandbox would have it either")
    sandbox, where = cage.sandbox("c1")
    lines = "\n".join(line.removeprefix(" " * 8) for line in script.splitlines())
    text = f"set -eu\ncd {tmp_path}\n{lines}\n"
    await asyncio.to_thread(cage.run_command, where, "/bin/sh", "-c", text)
    # What comes last is an alert itself: once it is there, so is all that came before.
    cage.run(where, "call(321, 99, 0, 0)")
    await heard.until(lambda fact: fact.kind == "bpf")
    assert len(heard.of(sandbox, "exec")) > 1
    if "sanitizer" in name:
        attached = [f for f in heard.of(sandbox, "ptrace") if f.arguments[0] == 16]
        assert attached, "the sanitizer did not trace anything, so this shows nothing"
        assert all(fact.notes == ["shares-parent"] for fact in attached)
    trainer = await connect("trainer")
    async with asyncio.timeout(20):
        while True:
            query = AlertList(sandbox_id=sandbox, severity=Severity.HIGH)
            page = await trainer.ask(subjects.ALERT_LIST, query, within=5)
            if page.alerts:
                break
            await asyncio.sleep(0.05)
    assert [(a.rule, a.message) for a in page.alerts if a.rule != "ebpf"] == []
