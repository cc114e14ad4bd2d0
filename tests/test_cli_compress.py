"""The commands compress and decompress: files appear whole or not at all, mistakes are one line."""

import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.model.atomic_file import new_file
from tests.preloaded import command
from tests.support import save_random_model

TEXT = b"To be, or not to be: that is the question.\n"


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout + result.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "letter.txt"
    path.write_bytes(TEXT)
    return path


def test_a_file_is_compressed_beside_itself_and_restored(file: Path) -> None:
    code, output = run("compress", file)
    small = file.with_name("letter.txt.sruz")
    assert (code, output) == (
        0,
        f"wrote {small}: {small.stat().st_size:,} bytes, from {len(TEXT)}\n",
    )
    file.unlink()
    assert run("decompress", small)[0] == 0
    assert file.read_bytes() == TEXT
    assert sorted(file.parent.iterdir()) == [file, small]


def test_standard_input_and_output_are_files(tmp_path: Path) -> None:
    preloader = command(tmp_path / "sruserve", "-m", "sruserve")

    def piped(name: str, content: bytes) -> subprocess.CompletedProcess[bytes]:
        words = [str(tmp_path / "sruserve"), name, "-"]
        return subprocess.run(
            words, input=content, pass_fds=[preloader], capture_output=True, check=True
        )

    small = piped("compress", TEXT)
    back = piped("decompress", small.stdout)
    assert (back.stdout, small.stderr, back.stderr) == (TEXT, b"", b"")


def test_a_model_folder_is_named_again_for_decompression(file: Path, tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "own", vocab_size=200)
    small = tmp_path / "small.sruz"
    assert run("compress", file, "--model", model, "-o", small)[0] == 0
    code, output = run("decompress", small)
    assert code == 1
    assert "the model own, which is not bundled: name its folder with --model" in output
    code, output = run("decompress", small, "--model", "shakespeare")
    assert code == 1
    assert "name the folder of the file's model with --model" in " ".join(output.split())
    assert run("decompress", small, "--model", model)[0] == 0
    assert (tmp_path / "small").read_bytes() == TEXT


def test_an_existing_file_is_replaced_only_on_request(file: Path) -> None:
    small = file.with_name("letter.txt.sruz")
    small.write_bytes(b"mine")
    code, output = run("compress", file)
    assert (code, output) == (
        1,
        f"error: {small} exists: name another file, or add --force\n",
    )
    assert small.read_bytes() == b"mine"
    assert run("compress", file, "--force")[0] == 0
    code, output = run("decompress", small)
    assert (code, "letter.txt exists" in output) == (1, True)
    assert run("decompress", small, "--force")[0] == 0


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["careful", "forced"])
def test_a_pipe_a_folder_or_a_link_is_not_replaced_even_on_request(
    file: Path, force: list[str]
) -> None:
    pipe, folder, link = (file.with_name(name) for name in ("pipe", "folder", "link"))
    os.mkfifo(pipe)  # a device, such as /dev/null, can be removed like a pipe
    folder.mkdir()
    link.symlink_to("letter.txt")
    before = {path: path.lstat().st_ino for path in (pipe, folder, link)}
    for path, inode in before.items():
        code, output = run("compress", file, "-o", path, *force)
        reason = "not a regular file, so it is not replaced: name another file"
        assert (code, output) == (1, f"error: {path}: {reason}\n")
        assert path.lstat().st_ino == inode
    assert file.read_bytes() == TEXT


def test_a_damaged_file_leaves_nothing(file: Path) -> None:
    run("compress", file)
    small = file.with_name("letter.txt.sruz")
    small.write_bytes(small.read_bytes()[:-1])
    file.unlink()
    code, output = run("decompress", small)
    assert (code, output) == (1, "error: the file is damaged: it ends too early\n")
    assert list(file.parent.iterdir()) == [small]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["compress", "absent"], "absent: No such file or directory"),
        (["compress", "letter.txt", "--model", "nobody"], "no bundled model"),
        (["compress", "letter.txt", "--model", "question-type"], "has the task classify"),
        (["compress", "letter.txt", "-o", "absent/x"], "No such file or directory"),
        (["compress", "letter.txt", "--device", "tpu"], "is not a device"),
        (["decompress", "letter.txt"], "does not end with .sruz"),
        (
            ["decompress", "letter.txt", "-o", "x"],
            "this is no file of `sruserve compress`: give one",
        ),
        (["compress", "."], "Is a directory"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(file.parent)
    code, output = run(*arguments)
    assert code == 1
    assert output.startswith("error: ")
    assert reason in output
    assert output.count("\n") == 1
    assert os.listdir() == ["letter.txt"]


def test_a_new_file_replaces_none_that_appears_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writing = new_file(path)
    writing.__enter__().write(b"ours")
    path.write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        writing.__exit__(None, None, None)
    assert path.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    with new_file(tmp_path / "new") as target:
        target.write(b"x")
    (tmp_path / "other").write_bytes(b"x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode
