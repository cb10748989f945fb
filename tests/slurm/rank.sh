#!/bin/bash
# Stands for the ranks of a run in tests of what a script does with their end: rank.sh FOLDER yes|slow|no
# The first start waits for a signal, saves (unless no), and ends as a run does that a signal stopped; the second is done.
folder=$1 saves=$2
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
  echo "started again from $(ls "$folder/checkpoints")"
  exit 0
fi
trap 'stopped=1' USR1 TERM
echo "waiting"
touch "$folder/waiting"
for _ in $(seq 3000); do
  [ -z "${stopped:-}" ] || break
  sleep 0.1
done
[ "$saves" = no ] || mkdir -p "$folder/checkpoints/step00000003"
echo "stopped"
if [ "$saves" = slow ]; then # the last rank leaves late: srun kills it, and says so instead of 85
  echo '{"state": "requeue"}' >"$folder/status.json"
  [ "$SLURM_PROCID" = 0 ] || sleep 60
fi
exit 85
