#!/usr/bin/env bash
# Both stores as of one moment: deploy/backup.sh FOLDER. Services pause for it and go on afterwards; nothing is lost.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: deploy/backup.sh FOLDER}
compose() { ${COMPOSE:-docker compose} "$@"; }
mkdir -p "$folder"
services=$(compose ps --services | grep -E '^(scheduler|env|trainer|rollout)')
# Whoever writes is stopped first: a database of one moment and a stream of another would not fit.
compose stop $services
compose exec -T postgres pg_dump -U marlaas --format=custom marlaas > "$folder/postgres.dump"
compose stop nats
compose run --rm -T --no-deps --entrypoint tar nats -C /data -cf - . > "$folder/nats.tar"
compose start nats
compose start $services
echo "backed up: $(du -h "$folder/postgres.dump" "$folder/nats.tar" | tr '\n\t' '  ')"
