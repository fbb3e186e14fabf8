"""Writes a base model with an adapter merged into its weights: `python -m trainer_svc.merge MODEL ADAPTER FOLDER`."""

import argparse
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer_svc.merge", description="Write a base model with an adapter merged into it.")
    parser.add_argument("model", help="folder or Hugging Face name of the base model")
    parser.add_argument("adapter", type=Path, help="a PEFT folder")
    parser.add_argument("folder", type=Path, help="where to write; plain transformers load it")
    parser.add_argument("--revision", help="of the base model's repository; default: what this machine's services use")
    options = parser.parse_args()
    from common.errors import MarlaasError
    from common.pools import Pool
    from common.pools.model_files import with_model_files
    from trainer_svc.model.adapter import write_merged

    folder = Path(options.model)
    pool = Pool(model=str(folder.absolute()) if folder.is_dir() else options.model, revision=options.revision)
    try:
        dropped = write_merged(with_model_files("merge", pool).model, options.adapter, options.folder)
    except MarlaasError as error:
        sys.exit(f"merge: {error}")
    if dropped:
        sys.stderr.write(f"merge: generation_config.json of the base model contradicts itself; left out: {', '.join(dropped)}\n")


if __name__ == "__main__":
    main()
