"""SandboxFusion's dialect: its requests in our words, our results in its."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandfleet_common import messages as m
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import CallStatus, CallStep, FunctionResult
from sandfleet_gateway import fusion
from sandfleet_gateway.keys import password_key


def asked(**fields: Any) -> fusion.Asked:
    run = fusion.parse(json.dumps({"code": "1", "language": "python", **fields}).encode())
    return fusion.asked_of(run, environment="debian", queue_s=8, request_id="rq-1")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_what_verl_sends_is_a_call() -> None:
    call = asked(
        compile_timeout=10, run_timeout=3, code="print(input())", stdin="5\n",
        memory_limit_MB=1024, language="python", files={}, fetch_files=[],
    ).call  # fmt: skip
    assert (call.language, call.code, call.stdin) == ("python", "print(input())", b"5\n")
    assert (call.limits.wall_seconds, call.limits.memory_bytes) == (3, 1024**3)
    assert (call.environment, call.queue_seconds, call.request_id) == ("debian", 8, "rq-1")


def test_what_is_left_out_or_null_has_the_defaults_of_the_original() -> None:
    call = asked(stdin=None, files={"a": None}).call
    assert (call.limits.wall_seconds, call.limits.memory_bytes) == (10, fusion.UNLIMITED_BYTES)
    assert (call.stdin, call.files, call.compile_limits) == (b"", {}, None)


def test_the_compiler_has_a_limit_of_its_own() -> None:
    call = asked(language="cpp", compile_timeout=7, run_timeout=2).call
    assert call.compile_limits is not None
    assert (call.compile_limits.wall_seconds, call.limits.wall_seconds) == (7, 2)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("nodejs", "javascript"), ("bash", "bash"), ("c", "c"), ("cpp", "cpp"), ("pytest", "python")],
)
def test_languages_have_other_names(theirs: str, ours: str) -> None:
    assert asked(language=theirs).call.language == ours


def test_pytest_runs_the_code_as_a_test_file_with_its_arguments() -> None:
    call = asked(language="pytest", code="def test_a(): pass", args=["-k", "a'b"]).call
    assert call.files == {fusion.PYTEST_FILE: b"def test_a(): pass"}
    assert '"a\'b"' in call.code
    compile(call.code, "main.py", "exec")


def test_a_language_the_platform_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(BadRequest, match="does not run java; it runs bash, c, cpp, nodejs"):
        asked(language="java")


@pytest.mark.parametrize("seconds", [0, -1, 1e9, 0.5])
def test_any_time_is_brought_into_range(seconds: float) -> None:
    limits = asked(run_timeout=seconds).call.limits
    assert 0 < limits.wall_seconds <= 600


def test_files_are_base64_and_stay_below() -> None:
    call = asked(
        files={"./a//b": encoded(b"\xff"), "x/../c": encoded(b"c"), "IGNORE_THIS_FILE/x": "!"},
        fetch_files=["./out//x", "/etc/passwd", "../up", "."],
    )
    assert call.call.files == {"a/b": b"\xff", "c": b"c"}
    assert call.names == {"out/x": "./out//x"}
    for name in ("/etc/passwd", "../up", "a/../../up", ""):
        with pytest.raises(BadRequest, match="not below"):
            asked(files={name: ""})
    with pytest.raises(BadRequest, match="base64"):
        asked(files={"a": "x"})


@given(st.text(), st.sampled_from(["language", "files", "run_timeout", "stdin", "args"]))
def test_any_value_is_a_request_or_refused_in_words(value: str, name: str) -> None:
    body = json.dumps({"code": "1", "language": "python", name: value}).encode()
    try:
        fusion.parse(body)
    except ValidationError as problem:
        detail = json.loads(fusion.refusal(problem))["detail"]
        assert {"type", "loc", "msg"} == set(detail[0])


def test_a_body_that_does_not_fit_is_refused_as_the_original_does() -> None:
    for body, where in ((b"{}", ["body", "code"]), (b'{"code": "1", "language": "x"}', "language")):
        with pytest.raises(ValidationError) as raised:
            fusion.parse(body)
        detail = json.loads(fusion.refusal(raised.value))["detail"][0]
        assert where == detail["loc"] or where in detail["loc"]


def answer(status: CallStatus, language: str = "python", **fields: Any) -> dict[str, Any]:
    result = FunctionResult(status=status, node="n1", **fields)
    text = fusion.run_of(asked(language=language), result).model_dump_json()
    return json.loads(text)


def test_success_has_every_field_of_the_original() -> None:
    step = CallStep(exit_code=0, stdout=b"hello\n\xff", wall_seconds=0.25)
    assert answer("ok", step=step, files={"a": b"\xff"}) == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {
            "status": "Finished",
            "execution_time": 0.25,
            "return_code": 0,
            "stdout": "hello\n\ufffd",
            "stderr": "",
        },
        "executor_pod_name": "n1",
        "files": {"a": "/w=="},
    }


@pytest.mark.parametrize(
    ("status", "step", "run_status", "code"),
    [
        ("error", CallStep(exit_code=3), "Finished", 3),
        ("killed", CallStep(signal=11), "Finished", -11),
        ("memory", CallStep(exit_code=1), "Finished", 1),
        ("memory", CallStep(exit_code=0), "Finished", -9),
        ("timeout", CallStep(signal=9, stdout=b"part"), "TimeLimitExceeded", None),
    ],
)
def test_failure_is_told_as_verl_reads_it(
    status: CallStatus, step: CallStep, run_status: str, code: int | None
) -> None:
    found = answer(status, step=step)
    assert found["status"] == "Failed"
    ran = found["run_result"]
    assert (ran["status"], ran["return_code"], ran["stdout"]) == (
        run_status, code, step.stdout.decode(),
    )  # fmt: skip


def test_what_does_not_compile_does_not_run() -> None:
    found = answer("compile_error", "cpp", compiled=CallStep(exit_code=1, stderr=b"no\n"))
    assert (found["status"], found["run_result"]) == ("Failed", None)
    assert found["compile_result"]["return_code"] == 1
    assert found["compile_result"]["stderr"] == "no\n"
    late = answer("compile_error", "cpp", compiled=CallStep(signal=9, wall_seconds=10.01))
    assert late["compile_result"]["status"] == "TimeLimitExceeded"
    assert late["compile_result"]["return_code"] is None


def test_what_compiled_and_then_ran_too_long_is_late_in_the_run() -> None:
    found = answer("timeout", "c", compiled=CallStep(exit_code=0), step=CallStep(signal=9))
    assert found["compile_result"]["status"] == "Finished"
    assert found["run_result"]["status"] == "TimeLimitExceeded"


def test_a_lost_sandbox_is_the_platforms_fault() -> None:
    found = answer("lost")
    assert (found["status"], found["run_result"]) == ("SandboxError", None)
    assert found["message"]


def test_a_key_may_be_the_password_of_the_url() -> None:
    def header(text: str) -> dict[str, str]:
        return {"authorization": "Basic " + encoded(text.encode())}

    assert password_key(header("verl:sfk-1")) == "sfk-1"
    assert password_key(header(":sfk:1")) == "sfk:1"
    assert password_key(header("verl:")) is None
    assert password_key(header("verl")) is None
    assert password_key({"authorization": "Bearer " + encoded(b"a:b")}) is None
    assert password_key({"authorization": "Basic !!!"}) is None
    assert password_key({"authorization": "Basic " + "A" * 5000}) is None
    assert password_key({}) is None


def test_limits_fit_the_message() -> None:
    for megabytes in (1, 10**9):
        limits = asked(memory_limit_MB=megabytes).call.limits
        assert m.CallLimits.of(**limits.model_dump()) == limits
