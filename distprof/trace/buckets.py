"""Which all-reduces of a backward are DDP's gradient buckets, and which bucket each of them is."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.trace.recordings import DdpFacts

# Beside the buckets DDP reduces integers: which parameters were used, in what order.
GRADIENT_DTYPES = ("Float", "Half", "BFloat16", "Double", "ComplexFloat", "ComplexDouble")

Bucket = tuple[str, int]


def number_buckets(
    sizes: Sequence[int | None], groups: Sequence[int], models: Sequence[DdpFacts]
) -> list[Bucket | None]:
    """Recognise the buckets among the floating-point all-reduces of one backward.

    A model's buckets are reduced in their order, all of them or none, in one group. Whatever explains the most
    all-reduces holds, if only one thing does. Before DDP rebuilt its buckets their sizes are not known, only the sum.

    Args:
        sizes: bytes of each all-reduce in the order of creation, None where they are not known.
        groups: its process group.
        models: the rank's DDP instances.

    Returns:
        (model, bucket) of each all-reduce, None where it cannot be told.
    """
    undecided: list[Bucket | None] = [None] * len(sizes)
    if not models or None in sizes:
        return undecided
    unknown = [model for model in models if model.bucket_bytes is None]
    if unknown:
        only = models[0] if len(models) == 1 and len(set(groups)) == 1 else None
        return [(only.name, bucket) for bucket in range(len(sizes))] if only else undecided
    found = _interleave(sizes, groups, models)
    if found is not None:
        return found
    same_sum = [model for model in models if sum(model.bucket_bytes or ()) == sum(size or 0 for size in sizes)]
    if len(same_sum) == 1 and len(set(groups)) == 1:
        return [(same_sum[0].name, bucket) for bucket in range(len(sizes))]
    return undecided


# How far each model's sequence has come, and in which group.
_State = tuple[tuple[int, int], ...]


def _interleave(
    sizes: Sequence[int | None], groups: Sequence[int], models: Sequence[DdpFacts]
) -> list[Bucket | None] | None:
    """Lay the models' sequences of sizes into `sizes` so that they explain the most; None if there is no way or two."""
    begin: _State = tuple((0, -1) for _ in models)
    # For each state: how many are explained, in how many ways, and the last move and state of one of them.
    layers: list[dict[_State, tuple[int, int, Bucket | None, _State]]] = [{begin: (0, 1, None, begin)}]
    for size, group in zip(sizes, groups, strict=True):
        layer: dict[_State, tuple[int, int, Bucket | None, _State]] = {}
        for state, (explained, ways, _, _) in layers[-1].items():
            moves: list[tuple[_State, Bucket | None]] = [(state, None)]
            for index, model in enumerate(models):
                done, own_group = state[index]
                expected = model.bucket_bytes or []
                if done < len(expected) and expected[done] == size and own_group in (-1, group):
                    after = (*state[:index], (done + 1, group), *state[index + 1 :])
                    moves.append((after, (model.name, done)))
            for after, bucket in moves:
                score = explained + (bucket is not None)
                known = layer.get(after)
                if known is None or score > known[0]:
                    layer[after] = (score, ways, bucket, state)
                elif score == known[0]:
                    layer[after] = (score, known[1] + ways, *known[2:])
        layers.append(layer)
    whole = [
        (explained, ways, state)
        for state, (explained, ways, _, _) in layers[-1].items()
        if all(done in (0, len(model.bucket_bytes or [])) for (done, _), model in zip(state, models, strict=True))
    ]
    most = max(explained for explained, _, _ in whole)
    best = [(ways, state) for explained, ways, state in whole if explained == most]
    if not most or len(best) > 1 or best[0][0] > 1:
        return None
    state = best[0][1]
    found: list[Bucket | None] = []
    for layer in reversed(layers[1:]):
        _, _, bucket, state = layer[state]
        found.append(bucket)
    return found[::-1]
