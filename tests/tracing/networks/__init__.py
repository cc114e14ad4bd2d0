"""Networks as people write them, each with the task that it was trained for.

A network's loss is only there to give it weights that random initialization does not have.
"""

from tests.tracing.networks import embeddings, features, libraries, poolings, steps, words
from tests.tracing.networks.network import FEATURES, WORDS, Network

NETWORKS = {
    **words.NETWORKS,
    **embeddings.NETWORKS,
    **poolings.NETWORKS,
    **features.NETWORKS,
    **steps.NETWORKS,
    **libraries.NETWORKS,
}

__all__ = ["FEATURES", "NETWORKS", "WORDS", "Network"]
