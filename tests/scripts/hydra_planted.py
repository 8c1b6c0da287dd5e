"""planted.py as a Hydra app: its arguments are overrides, and Hydra makes a folder for it.

torchrun ... hydra_planted.py +decode_ms=60 +work_ms=60 [+workers=2]
"""

from __future__ import annotations

import json
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from planted import train


@hydra.main(version_base=None, config_path=None)
def main(config: DictConfig) -> None:
    print(json.dumps({"argv": sys.argv[1:], "folder": HydraConfig.get().runtime.output_dir}), flush=True)
    train(decode_ms=config.decode_ms, work_ms=config.work_ms)


if __name__ == "__main__":
    main()
