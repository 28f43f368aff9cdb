"""How many layers a size has, from the parameters of its parts."""

from __future__ import annotations

from collections.abc import Mapping

from tinyllama_tools.prediction.refusal import RatesRefusedError

# embedding + L x layer + final norm + LM head are all parameters of a size (model/cost.cpp)
ONCE = ("embedding", "loss", "rms_norm")
LAYERS: tuple[Mapping[str, int], ...] = ({"block": 1}, {"attention": 1, "ffn": 1, "rms_norm": 2})
WHOLES = ("optimizer", "full_step", "model")


def layers_of(size: str, parameters: Mapping[str, float]) -> int | None:
    """`parameters`: by component. None where too few components are there to tell.

    RatesRefusedError where they do not add up, which two different sizes under one name do not.
    """
    whole = next((parameters[name] for name in WHOLES if name in parameters), None)
    layer = next((c for c in LAYERS if all(name in parameters for name in c)), None)
    if whole is None or layer is None or any(name not in parameters for name in ONCE):
        return None
    rest = whole - sum(parameters[name] for name in ONCE)
    one = sum(count * parameters[name] for name, count in layer.items())
    layers = round(rest / one)
    if layers < 1 or layers * one != rest:
        raise RatesRefusedError(
            f"size '{size}': {whole:.0f} parameters are no whole number of layers of {one:.0f}; "
            "two different models under one name cannot be predicted from"
        )
    return layers


def layer_counts(parameters: Mapping[tuple[str, str], float]) -> dict[str, int]:
    """Layers by size. `parameters`: by (size, component); sizes that cannot be told are left out.

    RatesRefusedError as layers_of.
    """
    by_size: dict[str, dict[str, float]] = {}
    for (size, component), value in parameters.items():
        by_size.setdefault(size, {})[component] = value
    found = {size: layers_of(size, known) for size, known in by_size.items()}
    return {size: layers for size, layers in found.items() if layers is not None}
