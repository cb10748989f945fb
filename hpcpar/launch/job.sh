# What every job of hpcpar does around its run (bash; sourced by jobs/*.sbatch, copied into the scripts of `hpcpar submit`).
#
#   time limit nears   Slurm sends USR1 to the ranks (#SBATCH --signal=USR1@...) -> all save after the same step, exit 85 -> requeue
#   preemption         Slurm sends TERM to the ranks                             -> the same; Slurm may have requeued it already
#   scancel            Slurm sends TERM to the ranks and to this shell           -> no requeue
#   any other end      its exit code is the job's                                -> no requeue
#
# A job that was requeued has the same id, appends to its log (#SBATCH --open-mode=append) and goes on from the newest checkpoint.

requeue_code=85 # hpcpar's: stopped by a signal, saved

# The newest checkpoint of a run's folder, by name; nothing where there is none.
newest_checkpoint() {
  local all=("$1"/checkpoints/step*[0-9])
  [ -e "${all[-1]}" ] && basename -- "${all[-1]}"
}

# run_job FOLDER COMMAND...: run the command, and requeue this job where it was stopped by a signal and saved. Ends the script.
run_job() {
  local folder=$1 before code state
  shift
  before=$(newest_checkpoint "$folder")
  job_cancelled=
  trap 'job_cancelled=1' TERM
  "$@"
  code=$?
  # A rank that is still leaving when the first one has left is killed by srun, whose code then hides 85: the folder knows better.
  if [ "$code" -ne 0 ] && [ "$code" -ne 2 ] && grep -qs '"state": *"requeue"' "$folder/status.json"; then code=$requeue_code; fi
  [ "$code" -eq "$requeue_code" ] && [ -n "${SLURM_JOB_ID:-}" ] || exit "$code"
  state=$(scontrol --oneliner show job "$SLURM_JOB_ID" | grep -o ' JobState=[A-Z]*')
  if [ -n "$job_cancelled" ] || [ "${state#*=}" = CANCELLED ]; then
    echo "hpcpar: job $SLURM_JOB_ID was cancelled after $(newest_checkpoint "$folder"); it is not requeued"
  elif [ "$(newest_checkpoint "$folder")" = "$before" ]; then
    echo "hpcpar: job $SLURM_JOB_ID was stopped before its first new checkpoint after ${before:-the start}; it is not requeued: give it more time"
  elif scontrol requeue "$SLURM_JOB_ID"; then
    echo "hpcpar: job $SLURM_JOB_ID is requeued, to go on from $(newest_checkpoint "$folder")"
  else
    echo "hpcpar: job $SLURM_JOB_ID could not be requeued; submit it again: it goes on from $(newest_checkpoint "$folder")"
  fi
  exit "$code"
}
