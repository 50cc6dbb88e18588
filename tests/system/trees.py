"""Trees of files inside sandboxes: one with everything files can be, and what makes two equal."""

from __future__ import annotations

from sandfleet import AsyncSandbox

SHAPES = r"""
import os, shutil

os.makedirs("/srv/shapes/empty/deep")
os.chdir("/srv/shapes")
with open("plain", "wb") as file:
    file.write(os.urandom(300_000))
with open("repeated", "wb") as file:
    file.write(b"\0" * 70_000 + b"same" * 500_000)
os.link("plain", "empty/deep/linked")
with open("sparse", "wb") as file:
    file.truncate(50_000_000)
    file.seek(25_000_000)
    file.write(b"middle")
open("nothing", "w").close()
os.symlink("plain", "link")
os.symlink("x" * 200 + "/nowhere", "dangling")
os.mkfifo("fifo", 0o640)
for number, name in enumerate((b"n" * 254, b"\xff\xfe", b"a\nb", b" ", b".wh.like", b"\xc3\xa9")):
    with open(os.fsencode("/srv/shapes/") + name, "wb") as file:
        file.write(name * number)
os.mkdir("many")
for number in range(500):
    with open(f"many/{number}", "w") as file:
        file.write(str(number))
    os.chown(f"many/{number}", number, 65535 - number)
os.chmod("nothing", 0o4755)
os.chmod("many", 0o1777)
os.chmod("plain", 0)
os.setxattr("repeated", "user.note", b"kept\0\xff")
os.setxattr("many", "user.empty", b"")
os.utime("nothing", ns=(0, 1_000_000_007))
os.utime("link", ns=(0, 86_400_000_000_000), follow_symlinks=False)
# What lay below: removed, replaced by another kind, a directory emptied and made anew, renamed.
os.remove("/etc/issue")
os.remove("/etc/motd")
os.mkdir("/etc/motd")
shutil.rmtree("/usr/share/terminfo")
os.mkdir("/usr/share/terminfo")
with open("/etc/profile", "a") as file:
    file.write("# changed\n")
os.chmod("/etc/passwd", 0o600)
os.rename("/etc/group", "/etc/group-before")
"""
"""Makes a file of every kind that is kept, and changes what lies below in every way.

Sockets and devices are not kept; names of 255 bytes mkfs.erofs cannot store.
"""

_DIGEST = r"""
import hashlib, os, stat

MOUNTED = {b"/proc", b"/sys", b"/dev", b"/run", b"/tmp"}
# Made for each sandbox when it starts, which is when /etc was last changed.
MADE = {b"/etc/hostname", b"/etc/hosts", b"/etc/resolv.conf"}
total = hashlib.sha256()
links = {}


def told(path):
    known = os.lstat(path)
    kind = stat.S_IFMT(known.st_mode)
    facts = [path, known.st_mode, known.st_uid, known.st_gid]
    facts.append(0 if path == b"/etc" else known.st_mtime_ns)
    if kind != stat.S_IFDIR:
        facts.append(known.st_nlink)
    if kind == stat.S_IFLNK:
        facts.append(os.readlink(path))
    elif kind in (stat.S_IFDIR, stat.S_IFREG):
        names = sorted(n for n in os.listxattr(path) if not n.startswith("trusted."))
        facts.append([(name, os.getxattr(path, name)) for name in names])
    if kind == stat.S_IFREG:
        facts.append(known.st_size)
        facts.append(links.setdefault(known.st_ino, path) if known.st_nlink > 1 else "")
        with open(path, "rb") as file:
            facts.append(hashlib.file_digest(file, "sha256").hexdigest())
    total.update(repr(facts).encode() + b"\n")
    return kind == stat.S_IFDIR


pending = [b"/"]
while pending:
    here = pending.pop()
    for name in sorted(os.listdir(here)):
        path = os.path.join(here, name)
        if path not in MOUNTED | MADE and told(path):
            pending.append(path)
print(total.hexdigest())
"""


async def digest_of(sandbox: AsyncSandbox) -> str:
    """Return a digest over names, modes, owners, times, links, attributes and content of all files.

    What is made for every sandbox is not part of it: /proc, /sys, /dev, /run, /tmp, its name.
    """
    result = await sandbox.run(["python3", "-I", "-S", "-B", "-c", _DIGEST], check=True, timeout=60)
    return result.text.strip()
