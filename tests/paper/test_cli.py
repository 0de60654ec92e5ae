"""The commit of the code, as programs record it."""

import shutil
import subprocess

import pytest

from paper import cli


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of the code with one commit and a tag; programs run in another repository's folder."""
    git = shutil.which("git") or pytest.skip("no git")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "PATHCOND_COMMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for name in ("code", "elsewhere"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "file").write_text(name)
        for words in (["init", "-q"], ["add", "file"], [*who, "commit", "-qm", name], ["tag", "v1"]):
            subprocess.run([git, "-C", folder, *words], check=True)  # noqa: S603 - fixed words
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(cli, "CODE", tmp_path / "code")
    return tmp_path / "code"


def test_the_commit_is_that_of_the_code_and_marked_where_files_differ(checkout, monkeypatch):
    git = shutil.which("git") or pytest.skip("no git")
    head = subprocess.run([git, "-C", checkout, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)  # noqa: S603
    clean = head.stdout.strip()
    assert cli.commit() == clean
    (checkout / "file").write_text("two")
    assert cli.commit() == f"{clean}-dirty"
    monkeypatch.setenv("PATHCOND_COMMIT", "abc")  # of a copy without git
    assert cli.commit() == "abc"
    monkeypatch.delenv("PATHCOND_COMMIT")
    monkeypatch.setattr(cli, "CODE", checkout.parent)  # no repository
    assert cli.commit() is None
