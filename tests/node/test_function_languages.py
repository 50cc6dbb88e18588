"""Function calls in C, C++ and JavaScript, in an environment with this host's compilers."""

from __future__ import annotations

from pathlib import Path

import pytest
from node.function_nodes import LANGUAGES, add_languages, call, python_layers
from node.nodes import RunningNode
from requirements import need_root

from sandfleet_common import messages as m

pytestmark = [
    pytest.mark.root,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]
MIB = 1024 * 1024


@pytest.fixture(scope="session")
def tiny_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_root()
    store = python_layers(tmp_path_factory.mktemp("language-layers"))
    add_languages(store)
    return store.root


HELLO_C = """
#include <stdio.h>
#include <math.h>
int main(void) {
    int n;
    if (scanf("%d", &n) != 1) return 9;
    printf("%d %.0f\\n", n * 2, sqrt(n));
    return 3;
}
"""


async def test_c_is_compiled_and_run(node: RunningNode) -> None:
    result = await call(node, HELLO_C, language="c", environment=LANGUAGES, stdin=b"16")
    assert result.compiled is not None
    assert result.compiled.exit_code == 0, result.compiled.stderr
    assert (result.status, result.step.exit_code) == ("error", 3)
    assert result.step.stdout == b"32 4\n"


async def test_cpp_is_compiled_and_its_memory_bounded(node: RunningNode) -> None:
    code = "#include <vector>\n#include <iostream>\nint main() { std::cout << N << std::endl; }"
    wide = m.CallLimits(memory_bytes=1024 * MIB, wall_seconds=60)
    result = await call(
        node, "#define N 5\n" + code, language="cpp", environment=LANGUAGES, compile_limits=wide,
        fetch=["main"],
    )  # fmt: skip
    assert (result.status, result.step.stdout) == ("ok", b"5\n"), result
    assert result.files["main"].startswith(b"\x7fELF")
    hungry = code.replace("std::cout << N", "std::cout << std::vector<char>(400 << 20).size()")
    small = m.CallLimits(memory_bytes=128 * MIB, wall_seconds=20)
    result = await call(
        node, hungry, language="cpp", environment=LANGUAGES, limits=small, compile_limits=wide
    )
    assert result.status == "memory", result


async def test_code_that_does_not_compile_says_why(node: RunningNode) -> None:
    result = await call(node, "int main( { return x; }", language="c", environment=LANGUAGES)
    assert result.status == "compile_error"
    assert result.compiled is not None
    assert b"error:" in result.compiled.stderr
    assert result.step == m.CallStep()


async def test_a_compiler_has_limits_too(node: RunningNode) -> None:
    endless = '#include "/dev/zero"\nint main(void) { return 0; }'
    result = await call(
        node, endless, language="c", environment=LANGUAGES,
        compile_limits=m.CallLimits(wall_seconds=1, memory_bytes=256 * MIB),
    )  # fmt: skip
    assert result.status == "compile_error"
    assert (await call(node, "print(1)", environment=LANGUAGES)).status == "ok"


async def test_a_crash_and_a_spin_in_c_are_told(node: RunningNode) -> None:
    crash = "int main(void) { *(volatile int *)0 = 1; return 0; }"
    result = await call(node, crash, language="c", environment=LANGUAGES)
    assert (result.status, result.step.signal) == ("killed", 11)
    spin = "int main(void) { for (;;) ; }"
    result = await call(
        node, spin, language="c", environment=LANGUAGES, limits=m.CallLimits(wall_seconds=3)
    )
    assert result.status == "timeout"


async def test_javascript_runs(node: RunningNode) -> None:
    code = """
let text = '';
process.stdin.on('data', d => text += d).on('end', () => {
  console.log(text.length, require('fs').readdirSync('.').join());
  process.exitCode = 2;
});
"""
    result = await call(
        node, code, language="javascript", environment=LANGUAGES, stdin=b"x" * 100_000
    )
    assert (result.status, result.step.exit_code) == ("error", 2), result
    assert result.step.stdout == b"100000 main.js\n"


async def test_javascript_has_its_bound_of_memory(node: RunningNode) -> None:
    code = "const a = []; for (;;) a.push(new Array(1e5).fill(1.5));"
    result = await call(
        node, code, language="javascript", environment=LANGUAGES,
        limits=m.CallLimits(memory_bytes=256 * MIB, wall_seconds=30),
    )  # fmt: skip
    assert result.status == "memory", result
    assert (await call(node, "1", language="javascript", environment=LANGUAGES)).status == "ok"
