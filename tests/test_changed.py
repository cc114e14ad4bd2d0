"""Which tests `make check` runs."""

import pytest

from tests.changed import ALWAYS, ROOT, affected_tests


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("sruserve/server/http/shortcuts.py", "tests/server/http/test_shortcuts.py"),
        (
            "sruserve/server/engine/sampling/sampler.py",
            "tests/server/engine/sampling/test_sampler.py",
        ),
        ("tests/test_layers.py", "tests/test_layers.py"),
        ("examples/onnx/web/page.js", "tests/examples"),
        ("sruserve/server/http/page/lane.js", "tests/server/http/page"),
        ("sruserve/server/http/swagger_ui/start.js", None),
        ("docs/http.md", None),
        ("docs/site/links.py", "tests/site"),
        ("sruserve/__init__.py", None),
    ],
)
def test_a_changed_file_has_its_own_tests(changed: str, expected: str | None) -> None:
    assert set(affected_tests([changed])) == {*ALWAYS, *([expected] if expected else [])}


def test_a_file_whose_tests_fill_a_folder_has_all_of_that() -> None:
    folder = ROOT / "tests/server/http/intake"
    every = {str(path.relative_to(ROOT)) for path in folder.glob("test_*.py")}
    assert len(every) > 1
    assert set(affected_tests(["sruserve/server/http/intake.py"])) == {*ALWAYS, *every}


def test_a_file_without_affected_tests_its_own_has_those_of_its_folder() -> None:
    folder = ROOT / "tests/server/websocket"
    every = {str(path.relative_to(ROOT)) for path in folder.glob("test_*.py")}
    assert set(affected_tests(["sruserve/server/websocket/session.py"])) == {*ALWAYS, *every}


def test_removed_tests_are_not_run() -> None:
    assert affected_tests(["tests/server/test_that_is_no_more.py"]) == sorted(ALWAYS)
