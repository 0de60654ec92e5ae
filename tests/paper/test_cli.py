"""The commit of the code, as programs record it."""

from paper import cli
from tests.workflow.tree import git


def test_the_commit_is_that_of_the_code_and_marked_where_files_differ(tmp_path, monkeypatch):
    """Also of a tagged commit, and from another folder."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "PATHCOND_COMMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    code = tmp_path / "code"
    code.mkdir()
    (code / "file").write_text("one")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "file"], [*who, "commit", "-qm", "one"], ["tag", "v1"]):
        git(code, *words)
    monkeypatch.setattr(cli, "CODE", code)
    clean = git(code, "rev-parse", "HEAD").strip()
    assert cli.commit() == clean
    (code / "file").write_text("two")
    assert cli.commit() == f"{clean}-dirty"
    monkeypatch.setattr(cli, "CODE", tmp_path)  # no repository
    assert cli.commit() is None
    monkeypatch.setenv("PATHCOND_COMMIT", "abc")  # of a copy without git
    assert cli.commit() == "abc"
