"""What a source's files look like: the interface of `cifar` and `mnist`, and reading members of an archive."""

import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paper.data.identity import Arrays, Identity


@dataclass(frozen=True)
class Format:
    """How one data set is laid out by its sources.

    Attributes:
        folder: torchvision's folder for it.
        files: the files in that folder, each as the names it may have, in order of preference.
        members: the members of the npm archive that are read.
        from_files: decodes the files, by name, one of each of `files`; raises on anything unexpected.
        from_members: decodes the members, by name; raises on anything unexpected.
    """

    folder: str
    files: tuple[tuple[str, ...], ...]
    members: tuple[str, ...]
    from_files: Callable[[Mapping[str, bytes], Identity], Arrays]
    from_members: Callable[[Mapping[str, bytes], Identity], Arrays]


def read_members(archive: Path, names: Iterable[str], limit: int) -> dict[str, bytes]:
    """Reads members of a gzipped tar archive into memory; nothing is extracted.

    Args:
        archive: the file.
        names: exact names of the members wanted.
        limit: bytes that no member may exceed.

    Raises:
        ValueError: if a member is missing, doubled, too large, neither file nor folder, or named to escape.
    """
    wanted, found = set(names), dict[str, bytes]()
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            _admit(member, limit)
            if member.name not in wanted:
                continue
            stream = tar.extractfile(member)
            if stream is None or member.name in found:
                raise ValueError(f"member {member.name!r}: expected one regular file")
            found[member.name] = stream.read()
    if missing := sorted(wanted - set(found)):
        raise ValueError(f"members missing: {', '.join(missing)}")
    return found


def _admit(member: tarfile.TarInfo, limit: int) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"member {member.name!r}: the name leaves the archive's folder")
    if not (member.isreg() or member.isdir()):
        raise ValueError(f"member {member.name!r}: expected a regular file, got a link or device")
    if member.size > limit:
        raise ValueError(f"member {member.name!r}: expected at most {limit} bytes, got {member.size}")
