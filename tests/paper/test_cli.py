"""What the programs share: bad input gives a message, a bug gives a traceback; the commit of the code."""

import shutil
import subprocess

import pytest

from paper import cli
from paper.errors import PaperError
from pathcond import PathCondError


@pytest.mark.parametrize("error", [PaperError, PathCondError])
def test_an_error_to_act_on_is_one_message_and_status_two(error, capsys):
    def main():
        raise error("expected this, got that.")

    with pytest.raises(SystemExit) as caught:
        cli.run(main)
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", "error: expected this, got that.\n")


@pytest.mark.parametrize("bug", [ZeroDivisionError, ValueError])
def test_a_bug_keeps_its_traceback(bug):
    def main():
        raise bug

    with pytest.raises(bug):
        cli.run(main)


def test_success_is_silent(capsys):
    done = []
    cli.run(lambda: done.append(1))
    assert done == [1]
    assert capsys.readouterr() == ("", "")


def test_say_goes_to_the_log(capsys):
    cli.say("half way")
    assert capsys.readouterr() == ("", "half way\n")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder with one commit and a tag, which the code is run from."""
    git = shutil.which("git") or pytest.skip("no git")
    monkeypatch.chdir(tmp_path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").write_text("one")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "file"], [*who, "commit", "-qm", "one"], ["tag", "v1"]):
        subprocess.run([git, *words], check=True)  # noqa: S603 - fixed words
    return tmp_path


def test_the_commit_is_named_and_marked_where_files_differ(repository):
    clean = cli.commit()
    assert clean is not None
    assert len(clean) == 40
    assert int(clean, 16)
    (repository / "file").write_text("two")
    assert cli.commit() == f"{clean}-dirty"


def test_a_copy_is_told_its_commit(repository, monkeypatch):
    monkeypatch.setenv("PATHCOND_COMMIT", "abc")
    assert cli.commit() == "abc"


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert cli.commit() is None
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert cli.commit() is None
