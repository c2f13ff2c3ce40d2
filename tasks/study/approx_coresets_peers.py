"""Summaries by other packages, run by the Python of their own environment: `python FILE IN.npz OUT.npz`.

They need numpy 1; this file imports nothing of Seedloom. IN holds X, k, peer, size, seed; OUT points, weights, seconds.
"""

import sys
import time

import numpy as np


def main(given: str, out: str) -> None:
    with np.load(given, allow_pickle=False) as arrays:
        X = np.load(str(arrays["points"]))
        k, size, seed, peer = int(arrays["k"]), int(arrays["size"]), int(arrays["seed"]), str(arrays["peer"])
    if peer == "bico":
        from bico import BICO

        start = time.process_time()
        made = BICO(n_clusters=k, summary_size=size, random_state=seed, fit_coreset=False).fit(X)
        points, weights = made.coreset_points_, made.coreset_weights_
    else:
        import coresets

        kinds = {
            "coresets": coresets.KMeansCoreset,
            "coresets_lightweight": coresets.KMeansLightweightCoreset,
        }
        more = {"n_clusters": k} if peer == "coresets" else {}
        np.random.seed(seed)  # noqa: NPY002  its draw takes numpy's own source of chance
        start = time.process_time()
        points, weights = kinds[peer](X, random_state=seed, **more).generate_coreset(size)
    np.savez(
        out,
        points=np.asarray(points, dtype=float),
        weights=np.asarray(weights, dtype=float),
        seconds=time.process_time() - start,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
