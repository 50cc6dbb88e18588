"""Unpacks the layers of an image into one tree. Runs inside a sandbox, alone: only Python.

    python3 -c "$(cat unpacking.py)" ROOT KEEP < layer.tar

The tar is not trusted: it is unpacked with ROOT as the root of the file system, so no name,
link or device in it leads out of that. Whiteouts (`.wh.*`) remove what lower layers have put
there; with KEEP=1 they also stay, as there are layers below that are not unpacked here.
Prints one line of JSON.
"""

# Paths are plain text, as the kernel is told them: they are many, and hostile.

import contextlib
import json
import os
import posixpath
import shutil
import stat
import sys
import tarfile
from typing import BinaryIO

MARK = ".wh."
OPAQUE = ".wh..wh..opq"
MOST_ENTRIES = 3_000_000
LONGEST_PATH = 4000
PIECE_BYTES = 1024 * 1024


class Refused(Exception):
    """The tar is not the layer of an image."""


class Tree:
    """A tree that a layer is unpacked into; paths begin at its root."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.placed: set[str] = set()
        self.above: set[str] = set()
        """Directories that hold something placed."""
        self.skipped: dict[str, int] = {}
        self.files = 0
        self.bytes = 0

    def add_all(self, source: BinaryIO) -> None:
        """Unpack a whole layer."""
        times: list[tuple[str, float]] = []
        with tarfile.open(fileobj=source, mode="r|") as tar:
            for member in tar:
                self.files += 1
                if self.files > MOST_ENTRIES:
                    raise Refused(f"the layer has more than {MOST_ENTRIES} entries")
                path = posixpath.normpath("/" + member.name).replace("//", "/")
                if len(os.fsencode(path)) > LONGEST_PATH:
                    raise Refused(f"the layer has a path of more than {LONGEST_PATH} bytes")
                self.add(tar, member, path)
                if member.isdir():
                    times.append((path, member.mtime))
        for path, at in reversed(times):
            with contextlib.suppress(OSError, OverflowError, ValueError):
                os.utime(path, (at, at), follow_symlinks=False)

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        """Unpack one entry."""
        folder, name = posixpath.split(path)
        if path == "/":
            if member.isdir():
                self.own(member, path)
            return
        if name.startswith(MARK):
            self.make_parents(folder)
            self.white_out(folder, name)
            return
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            self.skip("devices and pipes")
            return
        self.make_parents(folder)
        self.make_room(path, is_folder=member.isdir())
        self.make(tar, member, path)
        self.placed.add(path)
        while path != "/" and (path := posixpath.dirname(path)) not in self.above:
            self.above.add(path)

    def make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        """Make what an entry stands for."""
        if member.isdir():
            if not os.path.isdir(path):
                os.mkdir(path)
        elif member.issym():
            os.symlink(member.linkname, path)
        elif member.islnk():
            target = posixpath.normpath("/" + member.linkname).replace("//", "/")
            try:
                os.link(target, path, follow_symlinks=False)
            except FileNotFoundError:
                raise Refused(f"{path}: a hard link to {target}, which is not there") from None
            return  # owner, mode and times are those of the other name
        else:
            self.write(tar, member, path)
        self.own(member, path)

    def write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        """Write a file, its holes as holes."""
        content = tar.extractfile(member)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            while content is not None and (piece := content.read(PIECE_BYTES)):
                if piece.count(0) == len(piece):
                    file.seek(len(piece), os.SEEK_CUR)
                else:
                    file.write(piece)
                self.bytes += len(piece)
            file.truncate(member.size)

    def own(self, member: tarfile.TarInfo, path: str) -> None:
        """Give owner, mode, attributes and time."""
        try:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        except (OSError, OverflowError):
            self.skip("owners beyond 65535")
        if not member.issym():
            os.chmod(path, member.mode & 0o7777)
        for key, value in member.pax_headers.items():
            if key.startswith("SCHILY.xattr."):
                self.attribute(path, key[len("SCHILY.xattr.") :], value)
        with contextlib.suppress(OSError, OverflowError, ValueError):
            os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)

    def attribute(self, path: str, name: str, value: str) -> None:
        """Set an extended attribute, if it may be set here."""
        try:
            data = value.encode("utf-8", "surrogateescape")
            os.setxattr(path, name, data, follow_symlinks=False)
        except (OSError, ValueError):
            self.skip("extended attributes")

    def make_parents(self, folder: str) -> None:
        """Have the directories on the way; links on it lead where they lead in this tree."""
        if os.path.isdir(folder):
            return
        at = "/"
        for name in folder.strip("/").split("/"):
            at = posixpath.join(at, name)
            if os.path.isdir(at):
                continue
            if os.path.islink(at):
                raise Refused(f"{folder}: {at} is a link to nothing")
            self.make_room(at, is_folder=True)
            os.mkdir(at)
            os.chmod(at, 0o755)

    def make_room(self, path: str, *, is_folder: bool) -> None:
        """Remove what stands where an entry goes; a directory goes on as it is."""
        folder, name = posixpath.split(path)
        mark = posixpath.join(folder, MARK + name)
        hides = False
        if self.keep and os.path.lexists(mark):
            os.unlink(mark)
            hides = True
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            mode = 0
        if mode and not (is_folder and stat.S_ISDIR(mode)):
            remove(path)
            hides = True
        if hides and is_folder and self.keep and not os.path.lexists(path):
            # What lower layers have under this name must not show through the new directory.
            os.mkdir(path)
            touch(posixpath.join(path, OPAQUE))

    def white_out(self, folder: str, name: str) -> None:
        """Remove what lower layers have."""
        if name == OPAQUE:
            for child in os.listdir(folder):
                self.remove_lower(posixpath.join(folder, child))
        elif name.startswith(MARK + MARK):
            return  # notes of an old file system
        else:
            hidden = name[len(MARK) :]
            if hidden in ("", ".", ".."):
                raise Refused(f"{name!r} hides nothing")
            path = posixpath.join(folder, hidden)
            self.remove_lower(path)
            if os.path.lexists(path):
                if self.keep and os.path.isdir(path) and not os.path.islink(path):
                    touch(posixpath.join(path, OPAQUE))
                return
        if self.keep:
            touch(posixpath.join(folder, name))

    def remove_lower(self, path: str) -> None:
        """Remove what is there, but not what this layer has put there."""
        if not os.path.lexists(path):
            return
        is_folder = not os.path.islink(path) and os.path.isdir(path)
        if is_folder and (path in self.placed or path in self.above):
            for child in os.listdir(path):
                self.remove_lower(posixpath.join(path, child))
        elif path not in self.placed:
            remove(path)

    def skip(self, what: str) -> None:
        """Count what was left out."""
        self.skipped[what] = self.skipped.get(what, 0) + 1


def remove(path: str) -> None:
    """Remove a file or a directory with all in it."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def touch(path: str) -> None:
    """Make an empty file, if there is none."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644))


def main(root: str, keep: str) -> int:
    """Unpack a layer from standard input."""
    source = sys.stdin.buffer
    os.makedirs(root, exist_ok=True)
    "".encode("idna")  # codecs are looked up in files, which are out of reach soon
    os.chroot(root)
    os.chdir("/")
    os.umask(0)
    tree = Tree(keep == "1")
    try:
        tree.add_all(source)
    except (Refused, tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as problem:
        sys.stderr.write(f"{type(problem).__name__}: {problem}\n")
        return 1
    while source.read(PIECE_BYTES):
        pass  # what follows the end of the tar
    sys.stdout.write(
        json.dumps({"files": tree.files, "bytes": tree.bytes, "skipped": tree.skipped}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
