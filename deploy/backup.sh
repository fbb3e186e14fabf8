#!/usr/bin/env bash
# Both stores as of one moment, and the signing keys: deploy/backup.sh FOLDER. Services pause for it and go on afterwards, also where it
# fails; nothing is lost.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: deploy/backup.sh FOLDER}
compose() { ${COMPOSE:-docker compose} "$@"; }
umask 077 # who has the keys can make any key
mkdir -p "$folder"
restarted=
services=$(compose ps --services | sed -nE '/^(scheduler|gateway|env|trainer|rollout)/p')

restart() { compose start nats && { [[ ! $services ]] || compose start $services; } && restarted=1; }
end() {
  local status=$?
  trap '' INT TERM HUP # a second Ctrl-C must not leave everything stopped
  if ((status)); then
    rm -f "$folder/postgres.dump.part" "$folder/nats.tar.part" "$folder/keys.tar.part"
    echo "backup: it failed, for the reason above; $folder holds no backup of this moment" >&2
  fi
  if [[ ! $restarted ]] && ! restart; then
    echo "backup: not everything that was stopped could be restarted; next: docker compose up -d" >&2
    status=1
  fi
  exit "$status"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

cut_off() {
  echo "backup: ${1%.part} is not whole: its output was cut off on its way out of the container; next: the same command again" >&2
  exit 1
}
check_tar() { # tar itself takes an archive without its end, two blocks of zeros, for a whole one
  [[ $(tail -c 1024 "$1" | tr -d '\0' | wc -c) -eq 0 ]] && tar -tf "$1" > /dev/null || cut_off "$1"
}

# Whoever writes is stopped first: a database of one moment and a stream of another would not fit.
if [[ $services ]]; then compose stop $services; else echo "backup: no service runs; the stores are saved as they are"; fi
compose exec -T postgres pg_dump -U marlaas --format=custom marlaas > "$folder/postgres.dump.part"
compose stop nats
compose run --rm -T --no-deps --entrypoint tar nats -C /data -cf - . > "$folder/nats.tar.part"
compose run --rm -T --no-deps --entrypoint tar init -C /volumes/keys -cf - . > "$folder/keys.tar.part"
restart || true # once more at the end, which reports it: the backup is good
# Under their names only once all are whole: output may be lost of a command that succeeds.
compose exec -T postgres pg_restore -f /dev/null < "$folder/postgres.dump.part" || cut_off "$folder/postgres.dump.part"
check_tar "$folder/nats.tar.part"
check_tar "$folder/keys.tar.part"
mv "$folder/keys.tar.part" "$folder/keys.tar"
mv "$folder/nats.tar.part" "$folder/nats.tar"
mv "$folder/postgres.dump.part" "$folder/postgres.dump"
echo "backed up: $(du -h "$folder/postgres.dump" "$folder/nats.tar" "$folder/keys.tar" | tr '\n\t' '  ')"
