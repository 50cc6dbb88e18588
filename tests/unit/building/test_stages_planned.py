"""From stages to layers: what is carried over, what is grouped, under which keys."""

from __future__ import annotations

import pytest

from sandfleet.building import planning, stages
from sandfleet.building.builder import needed
from sandfleet.building.keys import group_key
from sandfleet.building.planning import Plan
from sandfleet.building.stages import MOST_LAYERS, Command, Files, Ground, MakeDir
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import LayerKind

BASE = Ground(("sha256:" + "0" * 64,), {"PATH": "/bin"}, None, None, {"cmd": "sh"})


def planned(text: str, *, ground: Ground = BASE, **given: str) -> Plan:
    found = stages.recipe(text)
    known = stages.global_arguments(found, given)
    return planning.plan(found.target(None), ground, known, given)


def commands(plan: Plan) -> list[Command]:
    return [a for group in plan.groups for a in group.actions if isinstance(a, Command)]


def test_what_a_step_sees_is_what_stood_before_it() -> None:
    plan = planned(
        "FROM debian\nRUN a\nENV A=1 PATH=/opt:$PATH\nUSER me\nWORKDIR /w\nWORKDIR x\nRUN b\n"
    )
    first, second = commands(plan)
    assert (first.env, first.user, first.workdir) == ((("PATH", "/bin"),), None, "/")
    assert (second.env, second.user) == ((("A", "1"), ("PATH", "/opt:/bin")), "me")
    assert second.workdir == "/w/x"
    assert (plan.user, plan.workdir, plan.env["A"]) == ("me", "/w/x", "1")


def test_values_of_one_env_do_not_see_each_other() -> None:
    assert planned("FROM debian\nENV A=1\nENV A=2 B=$A").env["B"] == "1"


def test_arguments_have_defaults_and_end_with_their_stage() -> None:
    text = "ARG V=1\nFROM debian AS a\nARG V\nARG W=w$V\nRUN x\nFROM debian\nRUN y\n"
    found = stages.recipe(text)
    known = stages.global_arguments(found, {"V": "2"})
    first = planning.plan(found.stages[0], BASE, known, {"V": "2"})
    assert dict(commands(first)[0].env) == {"PATH": "/bin", "V": "2", "W": "w2"}
    assert "V" not in first.env
    second = planning.plan(found.stages[1], BASE, known, {"V": "2"})
    assert dict(commands(second)[0].env) == {"PATH": "/bin"}
    assert found.unclaimed({"V": "", "Z": ""}) == ["Z"]


def test_from_may_name_an_argument_and_must_not_become_empty() -> None:
    found = stages.recipe("ARG B=debian\nFROM ${B}:12\n")
    known = stages.global_arguments(found, {})
    assert stages.image_of(found.stages[0], known) == "debian:12"
    with pytest.raises(BadRequest) as caught:
        stages.image_of(stages.recipe("FROM $B").stages[0], {})
    assert "--build-arg" in caught.value.message


def test_copies_in_a_row_are_one_layer_and_every_run_is_its_own() -> None:
    plan = planned("FROM debian\nWORKDIR /w\nCOPY a .\nENV X=1\nADD b .\nRUN c\nRUN d\nCOPY e .\n")
    kinds = [[type(a) for a in group.actions] for group in plan.groups]
    assert kinds == [[MakeDir, Files, Files], [Command], [Command], [Files]]


def test_a_directory_alone_goes_with_what_comes_next() -> None:
    plan = planned("FROM debian\nWORKDIR /w\nRUN c\nWORKDIR /end\n")
    kinds = [[type(a) for a in group.actions] for group in plan.groups]
    assert kinds == [[MakeDir, Command], [MakeDir]]


def test_a_comment_makes_a_step_a_toolkit() -> None:
    plan = planned(
        "FROM debian\nCOPY a .\n# sandfleet: toolkit\nCOPY b .\n#sandfleet: toolkit\nRUN c"
    )
    assert [g.kind for g in plan.groups] == [
        LayerKind.WORKSPACE,
        LayerKind.TOOLKIT,
        LayerKind.TOOLKIT,
    ]
    with pytest.raises(BadRequest) as caught:
        planned("FROM debian\n# sandfleet: base\nRUN c")
    assert "Dockerfile:3" in caught.value.message


def test_layers_are_never_more_than_an_environment_may_have() -> None:
    text = "FROM debian\n" + "".join(f"RUN {n}\n" for n in range(300))
    plan = planned(text)
    assert len(plan.groups) <= MOST_LAYERS - 1
    assert len(commands(plan)) == 300
    full = Ground(tuple(f"sha256:{n:064x}" for n in range(64)))
    with pytest.raises(BadRequest):
        planned("FROM debian\nRUN a", ground=full)


def test_targets_are_absolute_and_say_whether_they_are_directories() -> None:
    plan = planned("FROM debian\nWORKDIR /w\nCOPY a .\nCOPY a b\nCOPY a /c/\nCOPY a ../../d\n")
    targets = [a.target for g in plan.groups for a in g.actions if isinstance(a, Files)]
    assert targets == ["/w/", "/w/b", "/c/", "/d"]
    with pytest.raises(BadRequest) as caught:
        planned("FROM debian\nCOPY a b c")
    assert "c/" in caught.value.message


def test_how_to_run_it_is_noted_and_inherited() -> None:
    plan = planned('FROM debian\nENTRYPOINT ["x"]\nLABEL a=b\nVOLUME /v\nEXPOSE 80\n')
    assert plan.notes == {"cmd": "sh", "entrypoint": '["x"]', "label.a": "b", "expose": "80"}
    assert any("VOLUME" in warning for warning in plan.warnings)


def test_a_users_group_is_left_out_with_a_warning() -> None:
    plan = planned("FROM debian\nUSER me:staff")
    assert plan.user == "me"
    assert "staff" in plan.warnings[0]


def test_only_stages_that_are_needed_are_built() -> None:
    found = stages.recipe(
        "FROM debian AS a\nFROM debian AS unused\nFROM a AS b\nFROM debian\nCOPY --from=b /x /x\n"
    )
    assert [s.number for s in needed(found, found.target(None), {})] == [0, 2, 3]
    assert [s.number for s in needed(found, found.target("b"), {})] == [0, 2]
    with pytest.raises(BadRequest) as caught:
        found.target("nope")
    assert "unused" in caught.value.message


def test_a_stage_cannot_build_on_itself_or_a_later_one() -> None:
    found = stages.recipe("FROM b AS b\nFROM c\nFROM debian AS c\n")
    assert found.stage("b", 0) is None
    assert found.stage("c", 1) is None


def key_of(text: str, ground: tuple[str, ...] = ("g",), content: str = "") -> str:
    group = planned(text).groups[-1]
    return group_key(ground, group, dict.fromkeys(range(len(group.actions)), content))


def test_a_key_is_of_all_that_decides_about_a_layer_and_of_nothing_else() -> None:
    step = "FROM debian\nENV A=1\nUSER u\nWORKDIR /w\nCOPY a b\n"
    same = "# comment\n\nFROM  debian\nENV A=1\nLABEL x=y\nUSER u\nWORKDIR /w\nCOPY   a b\n"
    assert key_of(step) == key_of(same)
    run = "FROM debian\nENV A=1\nUSER u\nWORKDIR /w\nRUN x\n"
    different = {
        key_of(step),
        key_of(step, ground=("other",)),
        key_of(step, content="other"),
        key_of(step.replace("a b", "a c")),
        key_of(run),
        key_of(run.replace("A=1", "A=2")),
        key_of(run.replace("USER u", "USER v")),
        key_of(run.replace("/w", "/v")),
        key_of(run.replace("RUN x", "RUN y")),
        key_of(run.replace("RUN x", 'RUN ["x"]')),
        key_of(run.replace("RUN", "# sandfleet: toolkit\nRUN")),
    }
    assert len(different) == 11
