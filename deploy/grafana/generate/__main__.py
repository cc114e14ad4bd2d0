"""Write the dashboards to their files: `python -m deploy.grafana.generate`.

Writes the tables of docs/monitoring.md, too.
"""

from pathlib import Path

from deploy.grafana.generate import tables
from deploy.grafana.generate.boards import BOARDS
from deploy.grafana.generate.build import built

FOLDER = Path(__file__).parents[1] / "dashboards"
DOCS = Path(__file__).parents[3] / "docs" / "monitoring.md"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.json"):
        file.unlink()
    for board in BOARDS:
        (FOLDER / f"{board.name}.json").write_text(built(board))
    DOCS.write_text(tables.filled_in(DOCS.read_text()))


if __name__ == "__main__":
    main()
