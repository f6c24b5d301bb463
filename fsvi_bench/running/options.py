"""What `fsvi-bench run` and `fsvi_bench.run` take, one model for both. Nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fsvi_bench.running.settings import parse_option


def _read_settings(given: Any) -> Any:
    """`key=value` words of the command line, or a mapping."""
    return given if isinstance(given, Mapping) else dict(parse_option(text) for text in given)


class Request(BaseModel):
    """What is asked for; None and empty mean: as the protocol says, else the default."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    datasets: Sequence[str] = Field(default=(), description="Data set; may be repeated. Default: diabetes (bundled).")
    task_files: Sequence[Path] = Field(
        default=(), description="A frozen task file, or an official task such as boston:0; may be repeated."
    )
    methods: Sequence[str] = Field(default=(), description="Method name or file.py:Class; default: all.")
    families: Sequence[str] = Field(
        default=(), description="full, ffg, bernoulli or spike-slab; default: all that a method has."
    )
    splits: str | None = Field(default=None, description="0-19 or 0,3,5; default: all.")
    seeds: str | None = Field(default=None, description="0-4 or 0,2; a deterministic method is one cell.")
    measurement_points: Sequence[int] = Field(default=(), description="Size M of the measurement set; may be repeated.")
    max_steps: int | None = Field(default=None, description="Training steps, for methods that train.")
    protocol: str | None = Field(default=None, description="A named experiment, such as quick.")
    options: Annotated[dict[str, Any], BeforeValidator(_read_settings)] = Field(
        default={}, description="A method option; may be repeated."
    )


class RunOptions(Request):
    """A request, and how, where and on what it is computed."""

    device: str = Field(default="auto", description="auto, cpu or cuda.")
    executor: str = Field(default="local", description="local (processes here) or ray (a cluster).")
    ray_address: str | None = Field(
        default=None, description="Head of a Ray cluster, or auto. Default: $RAY_ADDRESS, else one started here."
    )
    gpu_share: float | None = Field(
        default=None, description="With ray: what a call takes of one GPU, such as 0.25. Default: 1."
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Processes of one thread each; default: one per core (with ray: all there is room for).",
    )
    wandb: str = Field(default="auto", description="auto (online with a key, else offline), online, offline or off.")
    out: Path = Field(
        default=Path("fsvi-bench-results"), description="Output folder; a second run there finishes what is missing."
    )
    rerun: str = Field(default="none", description="Finished cells to compute again: failed, diverged or all.")
    data_dir: Path | None = Field(
        default=None, description="Folder that holds UCI_Datasets/...; else $FSVI_BENCH_DATA, the cache, a download."
    )
