"""The server under load: against its peers and itself (`python -m bench.serve`), and for an hour
among hostile clients (`python -m bench.serve.soak`)."""

import sruserve  # noqa: F401, before torch: it limits how long OpenMP's threads spin
