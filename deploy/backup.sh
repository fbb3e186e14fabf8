#!/usr/bin/env bash
# Both stores as of one moment, and the signing keys: deploy/backup.sh FOLDER. Services pause for it and go on afterwards, also where it
# fails; nothing is lost.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: deploy/backup.sh FOLDER}
compose() { ${COMPOSE:-docker compose} "$@"; }
umask 077 # who has the keys can make any key
mkdir -p "$folder"
services=$(compose ps --services | sed -nE '/^(scheduler|gateway|env|trainer|rollout)/p')

go_on() {
  local status=$?
  trap '' INT TERM HUP # a second Ctrl-C must not leave everything stopped
  if ((status)); then
    rm -f "$folder/postgres.dump.part" "$folder/nats.tar.part" "$folder/keys.tar.part"
    echo "backup: it failed, for the reason above; $folder holds no backup of this moment" >&2
  fi
  if ! compose start nats || { [[ $services ]] && ! compose start $services; }; then
    echo "backup: not everything that was stopped could be restarted; next: docker compose up -d" >&2
    status=1
  fi
  exit "$status"
}
trap go_on EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Whoever writes is stopped first: a database of one moment and a stream of another would not fit.
if [[ $services ]]; then compose stop $services; else echo "backup: no service runs; the stores are saved as they are"; fi
compose exec -T postgres pg_dump -U marlaas --format=custom marlaas > "$folder/postgres.dump.part"
compose stop nats
compose run --rm -T --no-deps --entrypoint tar nats -C /data -cf - . > "$folder/nats.tar.part"
compose run --rm -T --no-deps --entrypoint tar init -C /volumes/keys -cf - . > "$folder/keys.tar.part"
# Under their names only once all are whole.
mv "$folder/keys.tar.part" "$folder/keys.tar"
mv "$folder/nats.tar.part" "$folder/nats.tar"
mv "$folder/postgres.dump.part" "$folder/postgres.dump"
echo "backed up: $(du -h "$folder/postgres.dump" "$folder/nats.tar" "$folder/keys.tar" | tr '\n\t' '  ')"
