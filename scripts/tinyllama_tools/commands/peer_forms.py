"""The forms in which LlamaForCausalLM is measured, and what each is called.

Imports no package: the Python that has torch need not have the tools' own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

HIGHEST = "highest"
# float32 GEMMs by way of oneDNN; true float32 only where the processor has nothing less exact
MEDIUM = "medium"
FOR_LOOP = "for-loop"
FUSED = "fused"
PREFIX = "peer:"
DTYPES = ("f32", "bf16", "amp_bf16")


@dataclass(frozen=True)
class PeerForm:
    """How one peer runs.

    `precision`: the float32 matmul precision that it asks for; it gets `highest` where the
    asked-for one is not true float32. `inductor`: settings of torch._inductor.config. `malloc`: a
    caching malloc is preloaded.
    """

    name: str
    attention: str
    is_compiled: bool = False
    precision: str = HIGHEST
    adamw: str = FUSED
    malloc: bool = False
    inductor: dict[str, bool | int | str] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The name of the variant in case names."""
        return PREFIX + self.name

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)

    def but(self, **changes: object) -> PeerForm:
        """Itself with other settings."""
        return replace(self, **changes)  # type: ignore[arg-type]


FORMS = {
    form.name: form
    for form in (
        PeerForm("eager", attention="eager", adamw=FOR_LOOP),
        PeerForm("sdpa", attention="sdpa"),
        PeerForm("compile_default", attention="sdpa", is_compiled=True),
        PeerForm(
            "compile_tuned", attention="eager", is_compiled=True, precision=MEDIUM, malloc=True
        ),
    )
}
