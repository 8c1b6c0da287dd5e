"""Keeping secrets out of the run directory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"
SECRET_NAMES = re.compile(
    r"(?i)(token(?!s|i)|secret|passw|pwd|api[-_]?key|credential|auth(?!or)|private[-_]?key|access[-_]?key)"
)
SECRET_VALUES = re.compile(
    r"(?:gh[pousr]_|github_pat_|hf_|sk-|xox[abp]-|AKIA|ASIA|glpat-|ya29\.|eyJ[A-Za-z0-9_-]{1,1000}\.)[A-Za-z0-9._-]{8,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # user:password in an address
)
# What explains a measurement; everything else in the environment is nobody's business.
_ENVIRONMENT = re.compile(
    r"^(OMP_|MKL_|GOMP_|KMP_|OPENBLAS_|NCCL_|RCCL_|GLOO_|TORCH_|TORCHINDUCTOR_|PYTORCH_|CUDA_|HIP_|ROCR_|HSA_|CUBLAS_|"
    r"ZE_|FI_|UCX_|MALLOC_|LD_PRELOAD$|WORLD_SIZE$|LOCAL_WORLD_SIZE$|TORCHELASTIC_RESTART_COUNT$|SLURM_JOB_ID$|"
    r"SLURM_NNODES$|SLURM_CPUS_PER_TASK$|SLURM_STEP_NUM_TASKS$)"
)


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments with those values replaced that look like secrets, or that follow an option which names one."""
    masked = []
    hide_next = False
    for argument in arguments:
        if hide_next and not argument.startswith("-"):
            masked.append(MASK)
            hide_next = False
            continue
        name, equals, _ = argument.partition("=")
        names_secret = bool(SECRET_NAMES.search(name)) and (argument.startswith("-") or bool(equals))
        hide_next = names_secret and not equals
        masked.append(f"{name}={MASK}" if names_secret and equals else mask_text(argument))
    return masked


def mask_text(text: str) -> str:
    """Text with everything replaced that has the shape of a known kind of secret."""
    return SECRET_VALUES.sub(MASK, text)


def measured_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a measurement, masked."""
    return {
        name: MASK if SECRET_NAMES.search(name) else mask_text(value)
        for name, value in sorted(environment.items())
        if _ENVIRONMENT.match(name)
    }
