"""A Dockerfile's lines and instructions: what is understood, and what is refused where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet.building import instructions as i
from sandfleet.building import planning, stages
from sandfleet.building.dockerfile import parse
from sandfleet_common.errors import BadRequest


def refused(text: str) -> str:
    with pytest.raises(BadRequest) as caught:
        stages.recipe(text)
    return caught.value.message


def only(text: str) -> i.Instruction:
    found = stages.recipe(f"FROM debian\n{text}")
    (step,) = found.stages[0].steps
    return step


def test_comments_and_empty_lines_are_nothing() -> None:
    found = parse("# one\n\n  # two\nFROM debian # not a comment\n")
    assert [(line.number, line.keyword, line.rest) for line in found] == [
        (4, "FROM", "debian # not a comment")
    ]


def test_lines_are_continued_past_comments() -> None:
    (line,) = parse("run a && \\\n  # why\n\n  b \\  \n  && c\n")
    assert (line.number, line.keyword) == (1, "RUN")
    assert line.rest.split() == ["a", "&&", "b", "&&", "c"]


def test_the_escape_directive_counts_at_the_top_only() -> None:
    (line,) = parse("# syntax=docker/dockerfile:1\n# escape=`\nRUN dir C:\\ `\n && x\n")
    assert line.rest == "dir C:\\  && x"
    (other,) = parse("# a comment\n# escape=`\nRUN a \\\n b\n")
    assert other.rest == "a  b"
    assert "escape=x" in refused("# escape=x\nFROM debian")
    assert "twice" in refused("# escape=`\n# escape=`\nFROM debian")


def test_here_documents_are_read_as_they_stand() -> None:
    found = parse(
        'RUN <<EOF\n# not a comment\necho \\\nEOF\nCOPY <<-"A" <<B /x/\n\tone\nA\ntwo\nB\n'
    )
    assert found[0].heredocs[0].body == "# not a comment\necho \\\n"
    first, second = found[1].heredocs
    assert (first.body, first.is_literal) == ("one\n", True)
    assert (second.body, second.is_literal) == ("two\n", False)
    assert "Dockerfile:2" in refused("FROM debian\nRUN <<EOF\nno end\n").replace(":3:", ":2:")
    shift = only("RUN echo $((1<<2))")
    assert isinstance(shift, i.Run)
    assert shift.text == "echo $((1<<2))"


def test_a_here_document_alone_is_the_script() -> None:
    step = only("RUN <<EOF\necho a\necho b\nEOF\n")
    assert isinstance(step, i.Run)
    assert step.text == "echo a\necho b\n"
    other = only("RUN cat <<EOF > /x\na\nEOF\n")
    assert isinstance(other, i.Run)
    assert other.text == "cat <<EOF > /x\na\nEOF"


def test_run_has_two_forms() -> None:
    json_form, shell_form, broken = only('RUN ["a", "b c"]'), only("RUN a b"), only("RUN ['a']")
    assert isinstance(json_form, i.Run)
    assert json_form.argv == ("a", "b c")
    assert isinstance(shell_form, i.Run)
    assert (shell_form.argv, shell_form.text) == (None, "a b")
    assert isinstance(broken, i.Run)
    assert broken.argv is None  # as Docker: what is not JSON goes to the shell


def test_cache_mounts_are_left_out_with_a_warning_and_others_refused() -> None:
    step = only("RUN --mount=type=cache,target=/root/.cache pip install x")
    assert isinstance(step, i.Run)
    assert step.text == "pip install x"
    assert "cache" in step.warnings[0]
    assert "--mount=type=secret" in refused("FROM debian\nRUN --mount=type=secret,id=a cat /a")
    assert "--what is not supported" in refused("FROM debian\nRUN --what=1 true")


def test_copy_knows_its_flags_and_forms() -> None:
    step = only('COPY --from=build --chown=1:2 --chmod=755 --link ["a b", "c/"]')
    assert isinstance(step, i.Copy)
    assert (step.from_, step.chown, step.chmod) == ("build", "1:2", "755")
    assert (step.sources, step.target) == (("a b",), "c/")
    assert "ADD takes no --from" in refused("FROM debian\nADD --from=x a b")
    assert "what to copy" in refused("FROM debian\nCOPY a")
    assert "needs a value" in refused("FROM debian\nCOPY --chown a b")


@pytest.mark.parametrize("url", ["https://host/x.tar", "git@host:x", "http://a/b"])
def test_add_of_a_url_is_refused_clearly(url: str) -> None:
    said = refused(f"FROM debian\nADD {url} /x")
    assert said.startswith("Dockerfile:2: ADD of ")
    assert "RUN" in said


def test_env_has_an_old_form_and_a_new_one() -> None:
    new, old = only('ENV A=1 B="two words" C=$A'), only("ENV A some  words")
    assert isinstance(new, i.Env)
    assert new.pairs == (("A", "1"), ("B", '"two words"'), ("C", "$A"))
    assert isinstance(old, i.Env)
    assert old.pairs == (("A", "some  words"),)
    assert "no value" in refused("FROM debian\nENV A")
    assert "not NAME=value" in refused("FROM debian\nENV A=1 B")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no FROM"),
        ("RUN true", "Dockerfile:1: the first instruction is FROM"),
        ("FROM debian\nONBUILD RUN true", "Dockerfile:2: ONBUILD is not supported"),
        ("FROM debian\nRUNS true", "Dockerfile:2: RUNS is not supported: is it misspelt?"),
        ("FROM debian\n123", "does not begin with an instruction"),
        ("FROM debian\nRUN", "Dockerfile:2: RUN needs a value"),
        ("FROM a as B as c", "FROM image AS name"),
        ("FROM debian AS 1x", "no name for a stage"),
        ("FROM debian\nSHELL /bin/bash", "SHELL is written as JSON"),
        ("ARG 1=2\nFROM debian", "cannot be the name of an argument"),
        ("FROM debian\n\0", "NUL"),
        ("FROM debian\nRUN [ ]", "names no command"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, said: str) -> None:
    assert said in refused(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        stages.recipe(text)
    except BadRequest as problem:
        assert "Dockerfile" in problem.message


_WORDS = st.sampled_from(
    [
        *("FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "USER", "WORKDIR", "LABEL", "SHELL", "CMD"),
        *("debian", "AS", "a", "/b", "$X", "${X:-y}", "'\"", "--from=a", "--chown=1"),
        *("<<EOF", "EOF", "#", "=", "\\", '["a"]', "\n", "\n"),
    ]
)


@given(st.lists(_WORDS, max_size=40))
def test_any_arrangement_of_words_is_planned_or_refused(parts: list[str]) -> None:
    try:
        found = stages.recipe("FROM debian\n" + " ".join(parts))
        for stage in found.stages:
            planning.plan(stage, stages.Ground(("sha256:" + "0" * 64,)), {}, {"X": "x"})
    except BadRequest as problem:
        assert "Dockerfile" in problem.message
