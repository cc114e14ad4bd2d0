"""The pictures of the page in docs/ show the page as it is."""

import pytest

from tests.server.http.page.picture import DOCS, digest_in, page_digest

MAX_BYTES = 200_000


@pytest.mark.parametrize("name", ["page-tour.png", "page-generate.png", "page-tag.png"])
def test_a_picture_is_small_and_not_older_than_the_page(name: str) -> None:
    picture = (DOCS / name).read_bytes()
    assert len(picture) < MAX_BYTES
    advice = "take it again: python -m tests.server.http.page.picture"
    assert digest_in(picture) == page_digest(), advice
