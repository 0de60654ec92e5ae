"""Make the links and pictures of README.md absolute, for a package index: python tools/package_readme.py ADDRESS TAG.

ADDRESS is that of the repository, such as https://github.com/OWNER/NAME. The file is changed in place.
"""

import re
import sys
from pathlib import Path


def absolute(text: str, address: str, tag: str) -> str:
    """The text with links to files of the repository at a tag; a picture is linked to its content."""

    def link(found: re.Match[str], kind: str) -> str:
        name, path = found.groups()
        inside = path.removeprefix("../../")  # of the repository's own pages, such as the results of its tests
        return f"{name}({address}/{inside})" if inside != path else f"{name}({address}/{kind}/{tag}/{path})"

    # Pictures first: they may be inside of a link.
    text = re.sub(r"(!\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)", lambda found: link(found, "raw"), text)
    return re.sub(r"(\])\((?![a-z]+:|#)([^)\s]+)\)", lambda found: link(found, "blob"), text)


if __name__ == "__main__":
    readme = Path("README.md")
    readme.write_text(absolute(readme.read_text("utf-8"), *sys.argv[1:3]), "utf-8")
