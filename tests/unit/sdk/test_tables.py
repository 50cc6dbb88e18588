"""Tables of the command line, in pipes and on terminals of some width."""

from __future__ import annotations

from sandfleet.cli.listing import Listing

JOB = "job-01m8rd69zyrre7etyd5qr4y077"
WHY = "no node could take it: 1 refused (environment 'debian:99' has no such version)"


def made() -> Listing:
    table = Listing(("SANDBOX", "NODE", "STATE", "JOB", "NOTE", "WHY"), spare=("NODE", "STATE"))
    table.rows.append(["e0gkghpt", "local-17b8c0", "running", JOB, "", ""])
    table.rows.append(["jfda3sf1", "local-17b8c0", "rejected", "", "", WHY])
    return table


def test_in_a_pipe_nothing_is_cut_and_every_column_is_there() -> None:
    title, first, second = made().lines(None)
    assert title.split() == ["SANDBOX", "NODE", "STATE", "JOB", "NOTE", "WHY"]
    assert first.split() == ["e0gkghpt", "local-17b8c0", "running", JOB]
    assert second.endswith(f"  {WHY}")
    assert second.index(WHY) == title.index("WHY")


def test_a_wide_terminal_shows_the_same_as_a_pipe() -> None:
    assert made().lines(300) == made().lines(None)


def test_a_narrow_terminal_does_without_what_is_empty_then_without_what_is_spare() -> None:
    assert made().lines(100)[0].split() == ["SANDBOX", "NODE", "STATE", "JOB", "WHY"]
    assert made().lines(90)[0].split() == ["SANDBOX", "STATE", "JOB", "WHY"]


def test_no_line_is_wider_than_the_terminal_and_the_last_column_goes_on_below() -> None:
    lines = made().lines(80)
    assert max(map(len, lines)) <= 80
    column = lines[0].index("WHY")
    assert " ".join(line[column:] for line in lines[2:]) == WHY
    assert not any(line[:column].strip() for line in lines[3:])


def test_an_id_is_whole_however_narrow_the_terminal_is() -> None:
    assert JOB in "\n".join(made().lines(20))


def test_a_word_that_is_too_long_for_the_last_column_stays_whole() -> None:
    table = Listing(("NAME", "LOG"), rows=[["nats", f"see {JOB}"]])
    assert table.lines(26) == ["NAME  LOG", "nats  see", f"      {JOB}"]


def test_wide_letters_take_two_places() -> None:
    table = Listing(("NAME", "STATE"), rows=[["砂箱", "up"], ["four", "up"]])
    assert table.lines(None) == ["NAME  STATE", "砂箱  up", "four  up"]


def test_a_table_without_rows_is_its_titles() -> None:
    assert Listing(("A", "B")).lines(None) == Listing(("A", "B")).lines(80) == ["A  B"]
