"""Read the words and templates of the tagger's sentences from the files beside this one."""

from pathlib import Path

_HERE = Path(__file__).parent


def read_words() -> dict[str, list[str]]:
    """The lists of `entity_words.txt` by name: places, given names, months and so on."""
    lists = dict[str, list[str]]()
    words = list[str]()
    for line in (_HERE / "entity_words.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            words = lists[line.strip("[]")] = []
        else:
            words += filter(None, line.split(";"))
    return lists


def read_templates() -> list[str]:
    """The sentences of `entity_templates.txt`, with slots such as `{date}`."""
    return (_HERE / "entity_templates.txt").read_text(encoding="utf-8").splitlines()
