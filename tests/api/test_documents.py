"""The sessions in the documents and the docstrings are run, and the notebooks."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import sruserve
import sruserve.api
import sruserve.api.options

ROOT = Path(__file__).parent.parent.parent
FLAGS = doctest.ELLIPSIS
SESSION = re.compile(r"```pycon\n(.*?)```", re.DOTALL)
PAGE = "docs/python.md"
MODULES = sorted(path.stem for path in Path(sruserve.api.__path__[0]).glob("[!_]*.py"))


def run_sessions(name: str) -> doctest.TestResults:
    """Run all sessions of a document, one after another."""
    text = "\n".join(SESSION.findall((ROOT / name).read_text()))
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    return doctest.DocTestRunner(optionflags=FLAGS).run(test)


@pytest.mark.parametrize("name", [PAGE, "README.md"])
def test_the_sessions_of_a_document_show_what_is_printed(name: str) -> None:
    failed, attempted = run_sessions(name)
    assert (failed, attempted > 0) == (0, True)


def test_the_page_and_the_readme_begin_with_five_lines() -> None:
    page = (ROOT / PAGE).read_text()
    assert page.startswith("# From Python\n\n```pycon\n")
    for text in (page, (ROOT / "README.md").read_text()):
        assert SESSION.findall(text)[0].count("\n") == 5


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(f"sruserve.api.{name}")
    failed, attempted = doctest.testmod(module, optionflags=FLAGS)
    assert (failed, attempted > 0) == (0, name == "load")


def test_the_page_names_every_method_and_every_option() -> None:
    page = (ROOT / PAGE).read_text()
    methods = [name for name in vars(sruserve.Model) if not name.startswith("_")]
    options = sruserve.api.options.PromptOptions.__annotations__
    for name in (*methods, *options):
        assert re.search(rf"\b{name}\b", page), name
