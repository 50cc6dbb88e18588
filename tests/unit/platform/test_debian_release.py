"""What a base layer is built from, read from the host's own configuration; and cleaning."""

from __future__ import annotations

from pathlib import Path

from sandfleet_node.layers.debian import clean, parse_mirrors, parse_os_release

PRINTED = """\
'http://mirror.example/debian/dists/trixie/InRelease' mirror.example_debian_dists_trixie_InRelease 0
'http://mirror.example/debian/dists/trixie/main/binary-amd64/Packages.xz' mirror.example_Packages 0
'https://other.example/security/dists/trixie-security/InRelease' other.example_InRelease 0
'http://second.example/debian/dists/trixie/InRelease' second.example_InRelease 0
"""


def test_the_mirror_of_a_suite_is_the_first_that_apt_asks() -> None:
    assert parse_mirrors(PRINTED) == {
        "trixie": "http://mirror.example/debian",
        "trixie-security": "https://other.example/security",
    }


def test_apt_without_sources_has_no_mirrors() -> None:
    assert parse_mirrors("") == {}


def test_quotes_in_os_release_are_not_part_of_a_value() -> None:
    text = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\n\nVERSION_ID="13"\n'
    found = parse_os_release(text)
    assert (found["ID"], found["VERSION_ID"]) == ("debian", "13")


def test_cleaning_keeps_nothing_of_this_host(tmp_path: Path) -> None:
    for name in ("etc", "var/log", "dev", "usr/share/doc/bash", "usr/share/locale/de"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        "etc/resolv.conf", "etc/hostname", "etc/machine-id", "var/log/dpkg.log", "dev/null",
        "usr/share/doc/bash/copyright", "usr/share/doc/bash/README", "usr/share/locale/de/x.mo",
    ):  # fmt: skip
        (tmp_path / name).write_text("of this host\n")
    clean(tmp_path)
    files = {
        str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()
    }
    assert files == {
        "etc/machine-id": "",
        "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "usr/share/doc/bash/copyright": "of this host\n",
    }
    assert (tmp_path / "dev").is_dir()
